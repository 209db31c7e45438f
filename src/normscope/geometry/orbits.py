r"""How far the outputs move along the orbit of a symmetry, and along a random direction of the same length.

With ``theta(t)`` the orbit, the curve is ``max |f(theta(t)) - f(theta)| / max |f(theta)|``. It is rounding along an
orbit without stabilizers, shows what ``eps`` breaks with them, and grows with ``t`` along ``theta + t R`` for a random
direction R of all parameters, as long as the orbit's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from normscope.geometry.certificate import coefficients_of
from normscope.geometry.function import ModelFunction
from normscope.geometry.groups import SymmetryFamily, SymmetryGroup, length

#: Times at which an orbit is evaluated.
TIMES = (0.01, 0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class Orbit:
    """Changes of the outputs as the parameters move, in float64, relative to the largest output."""

    kind: str  #: of the group
    statement: str  #: what the group says
    times: tuple[float, ...]  #: how far the parameters were moved
    along: tuple[float, ...]  #: change along the orbit without stabilizers
    stabilized: tuple[float, ...]  #: the same with the model's own ``eps``
    across: tuple[float, ...]  #: change along a random direction of all parameters, as long


def orbits(
    function: ModelFunction, groups: Iterable[SymmetryGroup], times: Sequence[float] = TIMES, seed: int = 0
) -> list[Orbit]:
    """Return one orbit of every kind: that of the group of the largest dimension.

    >>> from torch import nn
    >>> from normscope.geometry.discover import symmetry
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, eps=1e-2), nn.Tanh())
    >>> found = symmetry(net, torch.randn(16, 3, generator=torch.Generator().manual_seed(0)))
    >>> scale = orbits(found.function, found.groups)[0]
    >>> scale.kind, max(scale.along) < 1e-12, scale.stabilized[-1] > 1e-4, scale.across[-1] > 1e-2
    ('scale', True, True, True)
    """
    largest: dict[str, tuple[SymmetryGroup, SymmetryFamily]] = {}
    for group in groups:
        if group.family is not None and (
            group.kind not in largest or group.dimension > largest[group.kind][0].dimension
        ):
            largest[group.kind] = (group, group.family)
    exact, point, found = function.exact(), function.point, list[Orbit]()
    for group, family in largest.values():
        coefficients = coefficients_of(family, seed)
        generator = torch.Generator().manual_seed(seed)
        drawn = {name: torch.randn(t.shape, generator=generator, dtype=torch.float64) for name, t in point.items()}
        ratio = length(family.field(point, coefficients)) / length(drawn)
        moved = [family.move(point, coefficients, time) for time in times]
        straight = [{name: point[name] + time * (ratio * value) for name, value in drawn.items()} for time in times]
        pairs = ((exact, moved), (function, moved), (function, straight))
        curves = [tuple(at.change(new) for new in points) for at, points in pairs]
        found.append(Orbit(group.kind, group.statement, tuple(times), *curves))
    return found
