r"""Conservation laws of symmetries: predicted and measured values, with the sources of their difference.

``<w, grad L> = 0`` makes the squared length ``||w||^2`` of a scale-invariant weight a constant of gradient flow, and
lets gradient descent change it by ``eta^2 ||grad L||^2`` a step exactly. With ``eps > 0`` in the normalizer a small
radial gradient is left.

In the same way every group that moves the parameters by :math:`X(\theta) = A \theta` with a symmetric ``A`` (scales,
rescalings between layers) conserves the charge :math:`\theta^T A \theta` under gradient flow: :math:`\|W\|^2 + \|b\|^2`
before LayerNorm, :math:`\gamma^2 + \beta^2 - \|v\|^2` across a ReLU. A constant direction ``s`` conserves
:math:`\langle s, \theta \rangle`: the column sums ``1'W`` and ``1'b`` before LayerNorm. A step of gradient descent
changes the first by :math:`\eta^2 g^T A g`, the second not.
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
from normscope.geometry.function import ModelFunction
from normscope.geometry.groups import SymmetryFamily, SymmetryGroup
from normscope.geometry.norm_growth import square_after_flow
from normscope.geometry.optim import spheres_of
from normscope.geometry.symmetry import KINDS, Kind, undone_by

Gradient = Callable[[Point], dict[str, Tensor]]
#: Most directions of one group that are followed.
MOST = 64
#: Relative tolerance of the tests whether a direction is linear, symmetric or constant.
SAME = 1e-9


@dataclass(frozen=True)
class LengthLaw:
    """The squared length of one weight vector after a run, as predicted and as measured."""

    parameter: str  #: the weight
    block: int  #: which of its vectors
    start: float  #: squared length before
    predicted: float  #: squared length by the law
    measured: float  #: squared length found
    eps: float  #: the part of the difference due to the radial gradient that the stabilizer leaves
    discretization: float  #: the part due to the integrator of the flow; 0 for steps, whose law is exact
    rounding: float  #: what is left

    @property
    def difference(self) -> float:
        """Return predicted minus measured."""
        return self.predicted - self.measured


@dataclass(frozen=True)
class ConservedCharge:
    """A conserved number after a run, as predicted and as measured."""

    kind: str  #: of the group
    parameters: tuple[str, ...]  #: what it moves
    index: int  #: which direction of the group
    form: str  #: ``quadratic`` for ``theta' A theta``, ``linear`` for ``<s, theta>``
    start: float  #: its value before
    predicted: float  #: by the law: unchanged by a flow, and by steps if it is linear
    measured: float  #: its value after
    size: float  #: of the terms it is a sum of, for comparison with rounding

    @property
    def difference(self) -> float:
        """Return predicted minus measured, relative to the size of the terms."""
        return (self.predicted - self.measured) / self.size if self.size else 0.0


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
) -> list[LengthLaw]:
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
    function, gradient = _problem(found, law, targets, exact)
    spheres = spheres_of(found)
    if not spheres:
        return []
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
        laws.append(LengthLaw(name, block, start, said, square, by_eps, left - rounding, rounding))
    return laws


def _problem(
    found: Symmetries, law: str, targets: Sequence[Tensor] | None, exact: bool
) -> tuple[ModelFunction, Gradient]:
    """Return the function and the gradient of its loss."""
    if law not in ("steps", "flow"):
        raise InputError(f"Expected law 'steps' or 'flow', got {law!r}.")
    function = found.function.exact() if exact else found.function
    goal = function.targets() if targets is None else targets
    return function, lambda point: gradient_of(lambda p: function.value(p, goal), point)


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


def charges(
    found: Symmetries,
    *,
    law: str = "steps",
    rate: float = 0.1,
    steps: int = 10,
    time: float = 1.0,
    targets: Sequence[Tensor] | None = None,
    exact: bool = False,
) -> list[ConservedCharge]:
    """Run gradient descent or gradient flow in float64 and compare every conserved number with its law.

    The arguments are those of :func:`conservation`.

    Returns:
        One row for each direction; groups that are neither linear and symmetric nor constant (rotations) have none.

    Raises:
        InputError: if the law is unknown.
    """
    function, gradient = _problem(found, law, targets, exact)
    start: dict[str, Tensor] = dict(function.point)
    laws: list[tuple[SymmetryFamily, str, SymmetryGroup, int, Tensor]] = []
    for group in found.groups:
        family = group.family
        if family is None or group.kind not in ("scale", "rescaling", "shift", "row"):
            continue
        form = _form(family, start)
        units = torch.eye(family.size, dtype=torch.float64)[: MOST if form else 0]
        laws += [(family, form, group, i, c) for i, c in enumerate(units)]
    values = [_charge(family, start, c) for family, *_, c in laws]
    predicted = list(values)
    point = start
    for _ in range(steps if law == "steps" else 0):
        slope = gradient(point)
        for k, (family, form, *_, c) in enumerate(laws):
            predicted[k] += rate**2 * _charge(family, slope, c) if form == "quadratic" else 0.0
        point = {name: value - rate * slope[name] for name, value in point.items()}
    if law == "flow":
        end = integrated(lambda flat: -packed(gradient(unpacked(flat, start))), packed(start), time)
        point = unpacked(end, start)
    return [
        ConservedCharge(
            group.kind, group.parameters, i, form, before, said, _charge(family, point, c), _size(family, point, c)
        )
        for (family, form, group, i, c), before, said in zip(laws, values, predicted, strict=True)
    ]


def _product(one: Point, other: Point) -> float:
    """Return the inner product on the parameters of the second."""
    return sum(float((one[name] * value).sum()) for name, value in other.items())


def _charge(family: SymmetryFamily, point: Point, coefficients: Tensor) -> float:
    """Return ``<theta, X(theta)>``."""
    return _product(point, family.field(point, coefficients))


def _size(family: SymmetryFamily, point: Point, coefficients: Tensor) -> float:
    """Return the sum of the sizes of its terms."""
    return float(sum((point[n] * v).abs().sum() for n, v in family.field(point, coefficients).items()))


def _form(family: SymmetryFamily, point: Point) -> str:
    """Return the form of the conserved number, ``linear`` or ``quadratic``, or an empty string."""
    generator = torch.Generator().manual_seed(0)
    c = torch.randn(family.size, generator=generator, dtype=torch.float64)
    other = {n: torch.randn(v.shape, generator=generator, dtype=torch.float64) for n, v in point.items()}
    here, there = family.field(point, c), family.field(other, c)
    if here.keys() == there.keys() and all(_near(here[n], there[n]) for n in here):
        return "linear"
    both = family.field({n: point[n] + other[n] for n in point}, c)
    if not all(_near(both[n], here[n] + there[n]) for n in both):
        return ""
    one, two = _product(other, here), _product(point, there)
    scale = max(abs(one), abs(two), float(sum(v.abs().sum() for v in here.values())))
    return "quadratic" if abs(one - two) <= SAME * scale else ""


def _near(a: Tensor, b: Tensor) -> bool:
    return float((a - b).abs().max()) <= SAME * float(a.abs().max() + b.abs().max())


@statement("akbar2025", "Lemma 5.1", holds="corrected for layer norm with a bias and for common rows; flow, eps = 0")
def conserved(kind: Kind, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    r"""Return what gradient flow conserves because a normalizer follows ``W x + b``.

    BatchNorm: every ``||w_i||^2`` and ``b_i``; LayerNorm: ``||W||_F^2 + ||b||^2``, ``1^T W`` and ``1^T b``; RMSNorm:
    ``||W||_F^2 + ||b||^2`` only. GroupNorm: LayerNorm's, on the rows of each group.

    Args:
        kind: the normalizer; ``none`` conserves nothing, and for ``group`` this is to be called group by group.
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
