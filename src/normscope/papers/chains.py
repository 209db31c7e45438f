"""The networks of the papers' definitions: linear layers one after another, normalized or not."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.core.value import Kind, Value
from normscope.papers.measure import Function

#: The stabilizer of normalizers, as torch has it.
EPS = 1e-5


def chain(
    weights: Sequence[Tensor], after: Callable[[Tensor, int], Tensor] | None = None, activation: Function = torch.relu
) -> Function:
    """Return the network ``h_k = g(NO_k(W_k h_{k-1}))`` of the paper's definitions.

    ``after`` is the normalizer of layer ``k`` (from zero), applied to its total input; none for a plain network.

    >>> chain([2 * torch.eye(2)])(torch.tensor([1.0, -1.0])).tolist()
    [2.0, 0.0]
    """

    def network(x: Tensor) -> Tensor:
        for k, weight in enumerate(weights):
            total = x @ weight.mT
            x = activation(total if after is None else after(total, k))
        return x

    return network


def standardized(y: Tensor) -> Tensor:
    """Return a batch normalized by its own statistics, without a stabilizer.

    >>> standardized(torch.tensor([[1.0], [3.0]])).tolist()
    [[-1.0], [1.0]]
    """
    return (y - y.mean(0)) / y.std(0, unbiased=False)


def layer_norm(x: Tensor, _: int = 0, *, eps: float = EPS) -> Tensor:
    """Return LayerNorm over the last axis, as :func:`chain` takes it.

    >>> layer_norm(torch.ones(2)).tolist()
    [0.0, 0.0]
    """
    return F.layer_norm(x, x.shape[-1:], eps=eps)


def of_weight(network: Callable[[list[Tensor]], Function], weights: list[Tensor], i: int, x: Tensor) -> Function:
    """Return the output at ``x`` as a function of the weight ``W_i`` (from zero) alone.

    >>> of_weight(chain, [torch.eye(2)], 0, torch.tensor([1.0, 0.0]))(torch.ones(1, 2)).tolist()
    [1.0]
    """
    return lambda weight: network([*weights[:i], weight, *weights[i + 1 :]])(x)


def padded_identity(rows: int, columns: int) -> Tensor:
    """Return the paper's ``I_k``: an identity, truncated or padded with zeros.

    >>> padded_identity(1, 2).tolist()
    [[1.0, 0.0]]
    """
    return torch.eye(rows, columns, dtype=torch.float64)


def certified(values: Iterable[float]) -> list[Value]:
    """Return numbers as the certified values that printed formulas take.

    >>> certified([2.0])[0].kind.name
    'CERTIFIED'
    """
    return [Value.of(x, Kind.CERTIFIED) for x in values]
