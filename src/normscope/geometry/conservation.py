r"""Conservation laws of scale-invariant weights: what is predicted, what is measured, and where the difference is from.

``<w, grad L> = 0`` makes ``||w||^2`` a constant of gradient flow, and lets gradient descent change it by
``eta^2 ||grad L||^2`` a step exactly. With ``eps > 0`` in the normalizer a small radial gradient is left.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.rounding import as_float64
from normscope.core.statement import statement
from normscope.geometry.discover import Symmetries
from normscope.geometry.flow import Point, gradient_of, integrated, packed, unpacked
from normscope.geometry.norm_growth import square_after_flow
from normscope.geometry.optim.spheres import spheres_of
from normscope.geometry.symmetry import KINDS, Kind, undone_by

Gradient = Callable[[Point], dict[str, Tensor]]


@dataclass(frozen=True)
class Law:
    """The squared length of one weight vector after a run, as predicted and as measured."""

    parameter: str  #: the weight
    block: int  #: which of its vectors
    start: float  #: squared length before
    predicted: float  #: squared length by the law
    measured: float  #: squared length found
    eps: float  #: the part of the difference that the radial gradient of the stabilizer makes
    discretization: float  #: the part that the integrator of the flow makes; 0 for steps, whose law is exact
    rounding: float  #: what is left

    @property
    def difference(self) -> float:
        """Return predicted minus measured."""
        return self.predicted - self.measured


def conservation(
    found: Symmetries,
    *,
    law: str = "steps",
    rate: float = 0.1,
    decay: float = 0.0,
    steps: int = 10,
    time: float = 1.0,
    targets: Sequence[Tensor] | None = None,
    exact: bool = False,
) -> list[Law]:
    """Run gradient descent or gradient flow in float64 and compare the lengths of scale-invariant weights with the law.

    Args:
        found: the symmetries of the model; its batch is the data.
        law: ``steps`` for gradient descent with decoupled weight decay, ``flow`` for gradient flow.
        rate: the learning rate of the steps.
        decay: the weight decay.
        steps: how many steps.
        time: how long the flow runs.
        targets: what the outputs are compared with; random by default.
        exact: set the eps of every normalizer to zero.

    Returns:
        One law for each weight vector.

    Raises:
        InputError: if the law is unknown.
    """
    if law not in ("steps", "flow"):
        raise InputError(f"Expected law 'steps' or 'flow', got {law!r}.")
    function = found.function.exact() if exact else found.function
    spheres = spheres_of(found)
    if not spheres:
        return []
    goal = function.targets() if targets is None else targets

    def gradient(point: Point) -> dict[str, Tensor]:
        return gradient_of(lambda p: function.value(p, goal), point)

    before = _inner(function.point, function.point, spheres)
    if law == "steps":
        measured, predicted, eps = _steps(gradient, function.point, spheres, rate, decay, steps)
    else:
        measured, eps = _flow(gradient, function.point, spheres, decay, time)
        predicted = before * square_after_flow(1.0, decay, time)
    laws = []
    vectors = [(name, block) for name, blocks in spheres.items() for block in range(blocks)]
    columns = (values.tolist() for values in (before, predicted, measured, eps))
    for (name, block), start, said, square, by_eps in zip(vectors, *columns, strict=True):
        left = said - square - by_eps
        ulp = 8 * torch.finfo(torch.float64).eps * square
        rounding = left if law == "steps" else max(-ulp, min(ulp, left))  # the rest is the integrator's
        laws.append(Law(name, block, start, said, square, by_eps, left - rounding, rounding))
    return laws


def _inner(one: Point, other: Point, spheres: Mapping[str, int]) -> Tensor:
    """Return inner products vector by vector, of all spheres in one row."""
    return torch.cat([(one[name] * other[name]).reshape(blocks, -1).sum(1) for name, blocks in spheres.items()])


def _steps(
    gradient: Gradient, point: Point, spheres: Mapping[str, int], rate: float, decay: float, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the squared lengths after gradient descent as measured, as predicted, and what eps changes of them."""
    predicted = _inner(point, point, spheres)
    eps = torch.zeros_like(predicted)
    keep = 1 - rate * decay
    for _ in range(steps):
        slope = gradient(point)
        predicted = keep**2 * predicted + rate**2 * _inner(slope, slope, spheres)  # growth.square_after_step
        eps = keep**2 * eps + 2 * rate * keep * _inner(point, slope, spheres)
        point = {name: keep * value - rate * slope[name] for name, value in point.items()}
    return _inner(point, point, spheres), predicted, eps


def _flow(
    gradient: Gradient, start: Point, spheres: Mapping[str, int], decay: float, time: float
) -> tuple[Tensor, Tensor]:
    """Return the squared lengths after gradient flow, and what eps changes of them: the radial work."""
    count = packed(start).numel()

    def speed(state: Tensor) -> Tensor:
        point = unpacked(state[:count], start)
        slope = gradient(point)
        work = -2 * _inner(point, slope, spheres) - 2 * decay * state[count:]
        return torch.cat([-packed(slope) - decay * state[:count], work])

    end = integrated(speed, torch.cat([packed(start), torch.zeros(sum(spheres.values()), dtype=torch.float64)]), time)
    point = unpacked(end[:count], start)
    return _inner(point, point, spheres), -end[count:]


@statement("akbar2025", "Lemma 5.1", holds="corrected for layer norm with a bias and for common rows; flow, eps = 0")
def conserved(kind: Kind, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    r"""Return what gradient flow conserves because a normalizer follows ``W x + b``.

    BatchNorm: every ``||w_i||^2`` and ``b_i``; LayerNorm: ``||W||_F^2 + ||b||^2``, ``1^T W`` and ``1^T b``; RMSNorm:
    ``||W||_F^2 + ||b||^2`` only. GroupNorm: LayerNorm's, on the rows of each group.

    Args:
        kind: the normalizer; ``none`` conserves nothing by itself, and ``group`` is asked group by group.
        weight: ``W``, one row per neuron.
        bias: ``b``.

    Raises:
        InputError: if the kind is unknown.

    >>> import torch
    >>> {name: value.tolist() for name, value in conserved("batch", torch.eye(2), torch.ones(2)).items()}
    {'row norms': [1.0, 1.0], 'bias': [1.0, 1.0]}
    """
    if kind not in KINDS:
        raise InputError(f"Expected the normalizer to be one of {', '.join(KINDS)}, got {kind!r}.")
    w, b = as_float64(weight, "weight"), as_float64(bias, "bias")
    if kind == "none":
        return {}
    undone = undone_by(kind)
    if undone.per == "neuron":
        return {"row norms": w.square().sum(1), "bias": b}
    total = {"norm": w.square().sum() + b.square().sum()}
    return total | {"sum of rows": w.sum(0), "sum of biases": b.sum()} if undone.row else total
