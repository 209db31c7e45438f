r"""What a symmetry conserves: one number for every direction of a group that is linear in the parameters, or constant.

A group that moves the parameters by :math:`X(\theta) = A \theta` with a symmetric ``A`` (scales, rescalings between
layers) conserves :math:`\theta^T A \theta` under gradient flow, since :math:`\langle \nabla L, X \rangle = 0`: the
squared length of a row before BatchNorm, :math:`\|W\|^2 + \|b\|^2` before LayerNorm, :math:`\gamma^2 + \beta^2 -
\|v\|^2` across a ReLU. A constant direction ``s`` conserves :math:`\langle s, \theta \rangle`: the column sums ``1'W``
and ``1'b`` before LayerNorm. A step of gradient descent changes the first by :math:`\eta^2 g^T A g`, the second not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.geometry.discover import Symmetries
from normscope.geometry.flow import gradient_of, integrated, packed, unpacked
from normscope.geometry.groups import Family, Group, Point

#: The largest number of directions of one group that are followed.
MOST = 64
#: The relative gap up to which a direction is taken for linear, symmetric or constant.
SAME = 1e-9


@dataclass(frozen=True)
class Charge:
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


def charges(
    found: Symmetries,
    *,
    law: str = "steps",
    rate: float = 0.1,
    steps: int = 10,
    time: float = 1.0,
    targets: Sequence[Tensor] | None = None,
    exact: bool = False,
) -> list[Charge]:
    """Run gradient descent or gradient flow in float64 and compare every conserved number with its law.

    The arguments are those of :func:`normscope.geometry.conservation.conservation`.

    Returns:
        One row for each direction; groups that are neither linear and symmetric nor constant (rotations) have none.

    Raises:
        InputError: if the law is unknown.
    """
    if law not in ("steps", "flow"):
        raise InputError(f"Expected law 'steps' or 'flow', got {law!r}.")
    function = found.function.exact() if exact else found.function
    goal = function.targets() if targets is None else targets
    start: dict[str, Tensor] = dict(function.point)
    laws: list[tuple[Family, str, Group, int, Tensor]] = []
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

    def gradient(at: Point) -> dict[str, Tensor]:
        return gradient_of(lambda p: function.value(p, goal), at)

    for _ in range(steps if law == "steps" else 0):
        slope = gradient(point)
        for k, (family, form, *_, c) in enumerate(laws):
            predicted[k] += rate**2 * _charge(family, slope, c) if form == "quadratic" else 0.0
        point = {name: value - rate * slope[name] for name, value in point.items()}
    if law == "flow":
        end = integrated(lambda flat: -packed(gradient(unpacked(flat, start))), packed(start), time)
        point = unpacked(end, start)
    return [
        Charge(group.kind, group.parameters, i, form, before, said, _charge(family, point, c), _size(family, point, c))
        for (family, form, group, i, c), before, said in zip(laws, values, predicted, strict=True)
    ]


def _inner(one: Point, other: Point) -> float:
    """Return the inner product on the parameters both have."""
    return float(torch.stack([(one[n] * other[n]).sum() for n in other if n in one]).sum()) if other else 0.0


def _charge(family: Family, point: Point, coefficients: Tensor) -> float:
    """Return ``<theta, X(theta)>``."""
    return _inner(point, family.field(point, coefficients))


def _size(family: Family, point: Point, coefficients: Tensor) -> float:
    """Return the sum of the sizes of its terms."""
    return float(sum((point[n] * v).abs().sum() for n, v in family.field(point, coefficients).items()))


def _form(family: Family, point: Point) -> str:
    """Return what kind of number a family conserves, or nothing."""
    generator = torch.Generator().manual_seed(0)
    c = torch.randn(family.size, generator=generator, dtype=torch.float64)
    other = {n: torch.randn(v.shape, generator=generator, dtype=torch.float64) for n, v in point.items()}
    here, there = family.field(point, c), family.field(other, c)
    if here.keys() == there.keys() and all(_near(here[n], there[n]) for n in here):
        return "linear"
    both = family.field({n: point[n] + other[n] for n in point}, c)
    if not all(_near(both[n], here[n] + there[n]) for n in both):
        return ""
    one, two = _inner(other, here), _inner(point, there)
    scale = max(abs(one), abs(two), float(sum(v.abs().sum() for v in here.values())))
    return "quadratic" if abs(one - two) <= SAME * scale else ""


def _near(a: Tensor, b: Tensor) -> bool:
    return float((a - b).abs().max()) <= SAME * float(a.abs().max() + b.abs().max())
