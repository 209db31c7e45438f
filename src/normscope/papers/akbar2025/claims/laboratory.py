"""What the checks of this paper share: one hidden layer with a normalizer, its loss, and plain training."""

from collections.abc import Callable

import torch
from torch import Tensor

from normscope.geometry.derivatives import standardized
from normscope.geometry.flow import Loss, Point, gradient_of
from normscope.papers.measure import gaussian, numbers

Activation = Callable[[Tensor], Tensor]


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


def hidden_layer(
    seed: int, *, inputs: int = 3, neurons: int = 4, outputs: int = 2, affine: bool = True, bias: bool = True
) -> dict[str, Tensor]:
    """Return random parameters of one hidden layer: W, b, gamma, beta, and the linear layer V, c behind it.

    >>> sorted(hidden_layer(0, affine=False))
    ['V', 'W', 'b', 'c']
    """
    point = {"W": gaussian(seed, neurons, inputs), "b": gaussian(seed + 1, neurons)}
    if affine:  # near one and zero: every unit is on for some samples and off for others
        point |= {"gamma": 1.0 + 0.3 * gaussian(seed + 2, neurons), "beta": 0.3 * gaussian(seed + 3, neurons)}
    point |= {"V": gaussian(seed + 4, outputs, neurons), "c": gaussian(seed + 5, outputs)}
    if not bias:
        del point["b"]
    return point


def output(
    point: Point,
    x: Tensor,
    kind: str,
    activation: Activation = torch.tanh,
    eps: float = 0.0,
    groups: int = 1,
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
    x: Tensor, target: Tensor, kind: str, activation: Activation = torch.tanh, eps: float = 0.0, groups: int = 1
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


def step(point: Point, gradient: Point, size: float) -> dict[str, Tensor]:
    """Return the point after a gradient step.

    >>> step({"w": torch.ones(1)}, {"w": torch.ones(1)}, 0.5)["w"].tolist()
    [0.5]
    """
    return {name: value - size * gradient[name] for name, value in point.items()}


def descended(loss: Loss, point: Point, size: float, steps: int) -> dict[str, Tensor]:
    """Return the point after gradient descent with a fixed step.

    >>> descended(lambda p: (p["w"] ** 2).sum() / 2, {"w": torch.ones(1)}, 0.5, 2)["w"].tolist()
    [0.25]
    """
    at = dict(point)
    for _ in range(steps):
        at = step(at, gradient_of(loss, at), size)
    return at


def largest(values: Tensor) -> float:
    """Return the largest magnitude of a tensor's entries.

    >>> largest(torch.tensor([1.0, -2.0]))
    2.0
    """
    return float(values.abs().max())


def change(point: Point, moved: Point, kind: str, eps: float = 0.0, groups: int = 1) -> float:
    """Return by how much the output moves on a fixed batch.

    >>> change(hidden_layer(0), hidden_layer(0), "batch")
    0.0
    """
    x = gaussian(100, 24, point["W"].shape[1])
    return largest(output(moved, x, kind, eps=eps, groups=groups) - output(point, x, kind, eps=eps, groups=groups))


def neuron(eps: float = 0.0, samples: int = 16) -> tuple[Loss, dict[str, Tensor], Tensor]:
    """Return the square loss of one BatchNorm neuron with a scale, its parameters, and the inputs.

    >>> loss, start, x = neuron()
    >>> sorted(start), x.shape
    (['gamma', 'w'], torch.Size([16, 3]))
    """
    x, target = gaussian(200, samples, 3), gaussian(201, samples)

    def loss(p: Point) -> Tensor:
        return (p["gamma"] * standardized(x @ p["w"], eps)[0] - target).square().mean() / 2

    return loss, {"w": gaussian(202, 3), "gamma": numbers(1.3)}, x


def weight_of_neuron() -> tuple[Loss, dict[str, Tensor]]:
    """Return the loss of the weight of that neuron, its scale fixed, and where it starts.

    >>> sorted(weight_of_neuron()[1])
    ['w']
    """
    loss, start, _ = neuron()
    return (lambda p: loss({**p, "gamma": start["gamma"]})), {"w": start["w"]}
