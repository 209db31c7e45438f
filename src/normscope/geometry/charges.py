r"""What a symmetry conserves: one number for every direction of a group that is linear in the parameters, or constant.

A group that moves the parameters by :math:`X(\theta) = A \theta` with a symmetric ``A`` (scales, rescalings between
layers) conserves :math:`\theta^T A \theta` under gradient flow, since :math:`\langle \nabla L, X \rangle = 0`: the
squared length of a row before BatchNorm, :math:`\|W\|^2 + \|b\|^2` before LayerNorm, :math:`\gamma^2 + \beta^2 -
\|v\|^2` across a ReLU. A constant direction ``s`` conserves :math:`\langle s, \theta \rangle`: the column sums ``1'W``
and ``1'b`` before LayerNorm. A step of gradient descent changes the first by :math:`\eta^2 g^T A g`, the second not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.geometry.discover import Symmetries
from normscope.geometry.flow import gradient_of
from normscope.geometry.groups import Family, Group, Point

#: The largest number of directions of one group that are followed.
MOST = 64
#: The relative gap up to which a direction is taken for linear, symmetric or constant.
SAME = 1e-9


@dataclass(frozen=True)
class Charge:
    """A conserved number after a run, as predicted and as measured.

    Attributes:
        kind: of the group.
        parameters: what it moves.
        index: which direction of the group.
        form: ``quadratic`` for ``theta' A theta``, ``linear`` for ``<s, theta>``.
        start: its value before.
        predicted: by the law: unchanged by a flow, and by steps if it is linear.
        measured: its value after.
        size: of the terms it is a sum of, for comparison with rounding.
    """

    kind: str
    parameters: tuple[str, ...]
    index: int
    form: str
    start: float
    predicted: float
    measured: float
    size: float

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

    Args:
        found: the symmetries of the model; its batch is the data.
        law: ``steps`` for gradient descent, ``flow`` for gradient flow.
        rate: the learning rate of the steps.
        steps: how many steps.
        time: how long the flow runs.
        targets: what the outputs are compared with; random by default.
        exact: set the eps of every normalizer to zero.

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
    kept = [(group, form) for group in found.groups if (form := _form(group, start))]
    if not kept:
        return []
    laws = [(group, form, i, c) for group, form in kept for i, c in enumerate(_units(group))]
    values = [_charge(group.family, start, c) for group, _, _, c in laws]
    predicted = list(values)
    point = start
    for _ in range(steps if law == "steps" else 0):
        gradient = gradient_of(lambda p: function.value(p, goal), point)
        for k, (group, form, _, c) in enumerate(laws):
            predicted[k] += rate**2 * _charge(group.family, gradient, c) if form == "quadratic" else 0.0
        point = {name: value - rate * gradient[name] for name, value in point.items()}
    if law == "flow":
        point = _flowed(lambda p: gradient_of(lambda q: function.value(q, goal), p), start, time)
    return [
        Charge(group.kind, group.parameters, i, form, before, said, _charge(group.family, point, c),
               _size(group.family, point, c))
        for (group, form, i, c), before, said in zip(laws, values, predicted, strict=True)
    ]  # fmt: skip


def _units(group: Group) -> list[Tensor]:
    """Return coefficients of single directions."""
    size = 0 if group.family is None else group.family.size
    return list(torch.eye(size, dtype=torch.float64)[:MOST])


def _inner(one: Point, other: Point) -> float:
    """Return the inner product on the parameters both have."""
    return float(torch.stack([(one[n] * other[n]).sum() for n in other if n in one]).sum()) if other else 0.0


def _charge(family: Family | None, point: Point, coefficients: Tensor) -> float:
    """Return ``<theta, X(theta)>``."""
    return 0.0 if family is None else _inner(point, family.field(point, coefficients))


def _size(family: Family | None, point: Point, coefficients: Tensor) -> float:
    """Return the sum of the sizes of its terms."""
    field = {} if family is None else family.field(point, coefficients)
    return float(sum((point[n] * v).abs().sum() for n, v in field.items()))


def _form(group: Group, point: Mapping[str, Tensor]) -> str:
    """Return what kind of number a group conserves, or nothing."""
    family = group.family
    if family is None or not family.size or group.kind not in ("scale", "rescaling", "shift", "row"):
        return ""
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


def _flowed(
    slope: Callable[[Point], Mapping[str, Tensor]], start: Mapping[str, Tensor], time: float
) -> dict[str, Tensor]:
    """Return the parameters after gradient flow, integrated with error control."""
    from scipy.integrate import solve_ivp

    sizes = [value.numel() for value in start.values()]

    def unpacked(flat: np.ndarray) -> dict[str, Tensor]:
        parts = torch.from_numpy(flat.copy()).split(sizes)
        return {name: p.reshape(start[name].shape) for name, p in zip(start, parts, strict=True)}

    def speed(_: float, flat: np.ndarray) -> np.ndarray:
        gradient = slope(unpacked(flat))
        return -torch.cat([gradient[name].reshape(-1) for name in start]).numpy()

    flat = torch.cat([value.reshape(-1) for value in start.values()]).numpy()
    run = solve_ivp(speed, (0.0, time), flat, method="DOP853", rtol=1e-10, atol=1e-12)
    return unpacked(run.y[:, -1])
