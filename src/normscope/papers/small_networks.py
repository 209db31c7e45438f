"""Small networks for the checks: chains of layers, one hidden layer with a normalizer, one neuron; gradient descent."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.core.value import Kind, Value
from normscope.geometry.derivatives import standardized
from normscope.geometry.flow import Loss, Point, gradient_of
from normscope.papers.measure import Function, jacobian_norm
from normscope.papers.tensors import EPS, gaussian, identity, largest, numbers, zeros


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


def layer_norm(x: Tensor, _: int = 0, *, eps: float = EPS) -> Tensor:
    """Apply LayerNorm over the last axis; the signature is the one :func:`chain` expects.

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


def layer_norm_at_zero(width: int, depth: int) -> float:
    """Return the norm of the Jacobian at zero of LayerNorm after weights ``I``, without activations.

    >>> round(layer_norm_at_zero(4, 2))
    100000
    """
    return jacobian_norm(chain([identity(width)] * depth, layer_norm, lambda y: y), zeros(width))


def certified(values: Iterable[float]) -> list[Value]:
    """Wrap numbers as certified values, the type that printed formulas take.

    >>> certified([2.0])[0].kind.name
    'CERTIFIED'
    """
    return [Value.of(x, Kind.CERTIFIED) for x in values]


def normalized(kind: str, z: Tensor, eps: float = 0.0, groups: int = 1) -> Tensor:
    """Return pre-activations (samples, neurons) normalized over the batch, the layer, its groups or by their RMS.

    Written out, so that double backward and ``eps = 0`` are exact.

    >>> normalized("batch", torch.tensor([[1.0], [3.0]])).tolist()
    [[-1.0], [1.0]]
    """
    if kind == "none":
        return z
    if kind == "batch":
        return standardized(z, eps)[0]
    if kind == "rms":
        return z / (z.square().mean(1, keepdim=True) + eps).sqrt()
    parts = z.reshape(len(z), groups, -1)
    return standardized(parts, eps, -1)[0].reshape(z.shape)


def hidden_layer(seed: int, *, inputs: int = 3, neurons: int = 4, affine: bool = True) -> dict[str, Tensor]:
    """Return random parameters of one hidden layer: W, b, gamma, beta, and the linear layer V, c after it.

    >>> sorted(hidden_layer(0, affine=False))
    ['V', 'W', 'b', 'c']
    """
    point = {"W": gaussian(seed, neurons, inputs), "b": gaussian(seed + 1, neurons)}
    if affine:  # near one and zero: every unit is on for some samples and off for others
        point |= {"gamma": 1.0 + 0.3 * gaussian(seed + 2, neurons), "beta": 0.3 * gaussian(seed + 3, neurons)}
    return point | {"V": gaussian(seed + 4, 2, neurons), "c": gaussian(seed + 5, 2)}


def output(
    point: Point, x: Tensor, kind: str, activation: Function = torch.tanh, eps: float = 0.0, groups: int = 1
) -> Tensor:
    """Return ``V g(gamma NO(W x + b) + beta) + c`` for every sample.

    >>> output(hidden_layer(0), gaussian(1, 5, 3), "layer").shape
    torch.Size([5, 2])
    """
    z = x @ point["W"].mT
    if "b" in point:
        z = z + point["b"]
    hidden = normalized(kind, z, eps, groups)
    if "gamma" in point:
        hidden = hidden * point["gamma"] + point["beta"]
    return activation(hidden) @ point["V"].mT + point["c"]


def square_loss(
    x: Tensor, target: Tensor, kind: str, activation: Function = torch.tanh, eps: float = 0.0, groups: int = 1
) -> Loss:
    """Return the loss ``mean ||f(x) - y||^2/2`` of the parameters.

    >>> p, x = hidden_layer(0), gaussian(1, 5, 3)
    >>> float(square_loss(x, output(p, x, "batch"), "batch")(p))
    0.0
    """

    def loss(point: Point) -> Tensor:
        return (output(point, x, kind, activation, eps, groups) - target).square().sum(1).mean() / 2

    return loss


def inner(a: Point, b: Point, *names: str) -> float:
    """Return the inner product of two points over some parameters.

    >>> inner({"W": torch.ones(2)}, {"W": torch.ones(2)}, "W")
    2.0
    """
    return float(sum((a[name] * b[name]).sum() for name in names))


def gradient_descent(
    loss: Loss,
    point: Point,
    size: float | Mapping[str, float],
    steps: int,
    watch: Callable[[Point, Point], None] = lambda point, slopes: None,
) -> dict[str, Tensor]:
    """Return the point after gradient descent with a fixed step size, or one for each parameter.

    The loss may be a vector, the losses of several seeds. ``watch`` gets each point that a step starts from, and the
    gradient there.

    >>> gradient_descent(lambda p: (p["w"] ** 2).sum() / 2, {"w": torch.ones(1)}, 0.5, 2)["w"].tolist()
    [0.25]
    """
    at, sizes = dict(point), size if isinstance(size, Mapping) else dict.fromkeys(point, size)
    for _ in range(steps):
        slopes = gradient_of(lambda p: loss(p).sum(), at)
        watch(at, slopes)
        at = {name: value - sizes[name] * slopes[name] for name, value in at.items()}
    return at


def change(point: Point, moved: Point, kind: str, x: Tensor | None = None, **options: Any) -> float:
    """Return the largest change of the output on a batch, by default a fixed one; options are those of :func:`output`.

    >>> change(hidden_layer(0), hidden_layer(0), "batch")
    0.0
    """
    x = gaussian(100, 24, point["W"].shape[1]) if x is None else x
    return largest(output(moved, x, kind, **options) - output(point, x, kind, **options))


def neuron(eps: float = 0.0) -> tuple[Loss, dict[str, Tensor], Tensor]:
    """Return the square loss of one BatchNorm neuron with a scale, its parameters, and the inputs.

    >>> loss, start, x = neuron()
    >>> sorted(start), x.shape
    (['gamma', 'w'], torch.Size([16, 3]))
    """
    x, target = gaussian(200, 16, 3), gaussian(201, 16)

    def loss(p: Point) -> Tensor:
        return (p["gamma"] * standardized(x @ p["w"], eps)[0] - target).square().mean() / 2

    return loss, {"w": gaussian(202, 3), "gamma": numbers(1.3)}, x


def weight_of_neuron() -> tuple[Loss, dict[str, Tensor]]:
    """Return the loss of that neuron as a function of its weight, with the scale fixed, and the initial weight.

    >>> sorted(weight_of_neuron()[1])
    ['w']
    """
    loss, start, _ = neuron()
    return (lambda p: loss({**p, "gamma": start["gamma"]})), {"w": start["w"]}
