"""Tools of the checks: dense float64 Jacobians by autograd, small networks, and how a number decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.core.value import Kind, Value
from normscope.papers.claim import Number, Outcome, Verdict, close

Function = Callable[[Tensor], Tensor]
Measured = dict[str, Number]

#: What rounding may do to a number a check measures.
RELATIVE = 1e-9
#: The stabilizer of normalizers, as torch has it.
EPS = 1e-5


class CorrectionError(Exception):
    """What we state in place of a claim does not hold either: shown as an error of the audit, never swallowed."""


def numbers(*values: float) -> Tensor:
    """Return a float64 vector.

    >>> numbers(1, 2).dtype
    torch.float64
    """
    return torch.tensor(values, dtype=torch.float64)


def gaussian(seed: int, *shape: int) -> Tensor:
    """Return standard normal numbers in float64; the global generator is not touched.

    >>> bool((gaussian(1, 3) == gaussian(1, 3)).all())
    True
    """
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def norm(matrix: Tensor) -> float:
    """Return the spectral norm of a matrix by its singular values.

    >>> norm(torch.eye(2, dtype=torch.float64) * 3)
    3.0
    """
    return float(torch.linalg.matrix_norm(matrix.detach(), 2))


def jacobian(function: Function, x: Tensor) -> Tensor:
    """Return the dense Jacobian at a point by autograd, as a matrix.

    >>> jacobian(lambda x: 2 * x, numbers(1, 1)).tolist()
    [[2.0, 0.0], [0.0, 2.0]]
    """
    with torch.enable_grad():
        derivative = torch.autograd.functional.jacobian(function, x.detach())
    return derivative.reshape(-1, x.numel())


def jacobian_norm(function: Function, x: Tensor) -> float:
    """Return the spectral norm of the Jacobian at a point.

    >>> jacobian_norm(torch.relu, numbers(1, -1))
    1.0
    """
    return norm(jacobian(function, x))


def gradient(function: Function, x: Tensor) -> Tensor:
    """Return the gradient of a scalar function by autograd.

    >>> gradient(lambda x: (x**2).sum(), numbers(3)).tolist()
    [6.0]
    """
    with torch.enable_grad():
        point = x.detach().clone().requires_grad_()
        (found,) = torch.autograd.grad(function(point), point)
    return found


def quotient(function: Function, a: Tensor, b: Tensor) -> float:
    """Return ``||f(a) - f(b)|| / ||a - b||``.

    >>> quotient(lambda x: 3 * x, numbers(1), numbers(0))
    3.0
    """
    return float((function(a) - function(b)).detach().norm() / (a - b).norm())


def chain(
    weights: Sequence[Tensor], after: Callable[[Tensor, int], Tensor] | None = None, activation: Function = torch.relu
) -> Function:
    """Return the network ``h_k = g(NO_k(W_k h_{k-1}))`` of the paper's definitions.

    ``after`` is the normalizer of layer ``k`` (from zero), applied to its total input; none for a plain network.

    >>> chain([2 * torch.eye(2, dtype=torch.float64)])(numbers(1, -1)).tolist()
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

    >>> standardized(numbers(1, 3).reshape(2, 1)).tolist()
    [[-1.0], [1.0]]
    """
    return (y - y.mean(0)) / y.std(0, unbiased=False)


def layer_norm(x: Tensor, _: int = 0, *, eps: float = EPS) -> Tensor:
    """Return LayerNorm over the last axis, as :func:`chain` takes it.

    >>> layer_norm(numbers(1, 1)).tolist()
    [0.0, 0.0]
    """
    return F.layer_norm(x, x.shape[-1:], eps=eps)


def certified(values: Iterable[float]) -> list[Value]:
    """Return numbers as the certified values that printed formulas take.

    >>> certified([2.0])[0].kind.name
    'CERTIFIED'
    """
    return [Value.of(x, Kind.CERTIFIED) for x in values]


def of_weight(network: Callable[[list[Tensor]], Function], weights: list[Tensor], i: int, x: Tensor) -> Function:
    """Return the output at ``x`` as a function of the weight ``W_i`` (from zero) alone.

    >>> of_weight(chain, [torch.eye(2, dtype=torch.float64)], 0, numbers(1, 0))(torch.ones(1, 2).double()).tolist()
    [1.0]
    """
    return lambda weight: network([*weights[:i], weight, *weights[i + 1 :]])(x)


def padded_identity(rows: int, columns: int) -> Tensor:
    """Return the paper's ``I_k``: an identity, truncated or padded with zeros.

    >>> padded_identity(1, 2).tolist()
    [[1.0, 0.0]]
    """
    return torch.eye(rows, columns, dtype=torch.float64)


def confirm(what: str, ours: float, measured: float, relative: float = RELATIVE) -> None:
    """Raise unless the corrected statement agrees with what was measured.

    >>> confirm("one", 1.0, 1.0)
    """
    if not close(ours, measured, relative):
        raise CorrectionError(f"{what}: we state {ours!r}, measured is {measured!r}")


def confirm_bound(what: str, ours: float, measured: float, relative: float = RELATIVE) -> None:
    """Raise unless the corrected bound is above what was measured.

    >>> confirm_bound("two", 2.0, 1.0)
    """
    if not measured <= ours * (1 + relative) + relative**2:
        raise CorrectionError(f"{what}: we state at most {ours!r}, measured is {measured!r}")


def equality(printed: float, true: float) -> Verdict:
    """Return the verdict on ``constant = printed``.

    >>> equality(1.0, 1.0).name, equality(2.0, 1.0).name
    ('HOLDS', 'FALSE')
    """
    return Verdict.HOLDS if close(printed, true) else Verdict.FALSE


def bound(printed: float, true: float) -> Verdict:
    """Return the verdict on ``constant <= printed``: false if below, loose if above, and holds if attained.

    >>> bound(1.0, 1.0).name, bound(2.0, 1.0).name, bound(0.5, 1.0).name
    ('HOLDS', 'LOOSE', 'FALSE')
    """
    if close(printed, true):
        return Verdict.HOLDS
    return Verdict.LOOSE if printed > true else Verdict.FALSE


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on a claim from those on several instances: false once is false, loose once is loose.

    >>> worst([Verdict.HOLDS, Verdict.LOOSE]).name
    'LOOSE'
    """
    found = set(verdicts)
    return next((v for v in (Verdict.FALSE, Verdict.LOOSE) if v in found), Verdict.HOLDS)


def holds(condition: bool, measured: Mapping[str, Number], because: str) -> Outcome:
    """Return that a claim holds if the numbers show it, and that it is false if not.

    >>> holds(1 < 2, {}, "one is less than two").verdict.name
    'HOLDS'
    """
    return Outcome(Verdict.HOLDS if condition else Verdict.FALSE, measured, because)


def refuted(condition: bool, measured: Mapping[str, Number], because: str) -> Outcome:
    """Return that a claim is false if the numbers show it, and that it holds if not.

    >>> refuted(1 < 2, {}, "one is not two").verdict.name
    'FALSE'
    """
    return Outcome(Verdict.FALSE if condition else Verdict.HOLDS, measured, because)


def given(condition: bool, measured: Mapping[str, Number], because: str, otherwise: Verdict = Verdict.HOLDS) -> Outcome:
    """Return that a claim needs an assumption if the numbers show it, and another verdict if not.

    >>> given(True, {}, "it needs one").verdict.name
    'ASSUMPTION'
    """
    return Outcome(Verdict.ASSUMPTION if condition else otherwise, measured, because)
