"""Verify a candidate: its derivative and a finite orbit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from normscope.geometry.function import Function
from normscope.geometry.groups import Certificate, Family, Group, Point, length, random_like

#: The largest change of outputs along an orbit that is taken for rounding, in float64.
TOLERANCE = 1e-7
#: The same of a relative derivative, which loses fewer digits: branches that are scaled by 1e-6 must not hide a change.
FLAT = 1e-11


def coefficients_of(family: Family, seed: int = 0) -> Tensor:
    """Return random coefficients of size about one, none of them small."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(family.size, generator=generator, dtype=torch.float64) / 2 + 0.5
    return drawn * (torch.randint(0, 2, (family.size,), generator=generator) * 2 - 1)


def relative_derivative(function: Function, direction: Point, seed: int = 0) -> float:
    """Return ``||J X||`` over ``||J R||`` for a random direction R as long on the same parameters."""
    along = float(function.derivative(direction).norm())
    across = float(function.derivative(random_like(direction, seed)).norm())
    if along == 0.0:
        return 0.0
    return along / across if across else float("inf")


def orbit_change(function: Function, family: Family, coefficients: Tensor, times: Sequence[float]) -> float:
    """Return the largest change of the outputs along an orbit, relative to the largest output."""
    point = function.point
    with torch.no_grad():
        before = function.flat(point)
        size = float(before.abs().max()) or 1.0
        worst = 0.0
        for time in times:
            moved = function.flat({**point, **family.move(point, coefficients, time)})
            change = float((moved - before).abs().max()) / size
            worst = max(worst, change if change == change else float("inf"))
    return worst


def verify_all(exact: Function, groups: Sequence[Group], seed: int = 0) -> list[Group]:
    """Return the candidates that are symmetries, with their certificates.

    All are tested at once, with random coefficients: one derivative and one orbit. Where that fails they are halved, so
    that a few wrong ones cost a few more tests. Those that passed together share their certificate.

    Args:
        exact: the function with eps = 0, or with eps where that cannot be evaluated.
        groups: the candidates.
        seed: of the coefficients.
    """
    if len(groups) < 2:
        return [kept for group in groups for kept in verify(exact, group, seed)]
    found = _together(exact, groups, seed)
    if found is not None:
        return [replace(group, certificate=found) for group in groups]
    half = len(groups) // 2
    return verify_all(exact, groups[:half], seed) + verify_all(exact, groups[half:], seed)


def _together(exact: Function, groups: Sequence[Group], seed: int) -> Certificate | None:
    """Return the certificate of several groups at once, or ``None`` if they fail."""
    direction: dict[str, Tensor] = {}
    chosen = []
    for i, group in enumerate(groups):
        if group.family is None or not group.family.size:
            return None
        coefficients = coefficients_of(group.family, seed + i)
        chosen.append((group.family, coefficients))
        for name, value in group.family.field(exact.point, coefficients).items():
            direction[name] = direction[name] + value if name in direction else value
    derivative = relative_derivative(exact, direction, seed)
    if not derivative <= FLAT:
        return None
    point = exact.point
    with torch.no_grad():
        before = exact.flat(point)
        for family, coefficients in chosen:
            point |= family.move(point, coefficients, 0.3 * _reach(family))
        change = float((exact.flat(point) - before).abs().max() / before.abs().max().clamp_min(1e-300))
    return Certificate(derivative, change) if change <= TOLERANCE else None


def verify(exact: Function, group: Group, seed: int = 0) -> list[Group]:
    """Return the part of a candidate that is a symmetry, with its certificate; nothing if none is.

    A joint test with random coefficients comes first; where it fails the family is halved, down to single directions.

    Args:
        exact: the function with eps = 0, or with eps where that cannot be evaluated.
        group: the candidate.
        seed: of the coefficients.
    """
    family = group.family
    if family is None or family.size == 0:
        return []
    found = _certified(exact, family, seed)
    if found is not None:
        return [replace(group, certificate=found)]
    if family.size == 1 or family.subset(torch.arange(1)) is None:
        return []
    kept = _passing(exact, family, torch.arange(family.size), seed)
    part = family.subset(kept)
    if not len(kept) or part is None:
        return []
    found = _certified(exact, part, seed)
    if found is None:
        return []
    words = f"{group.statement} ({len(kept)} of {family.size})"
    return [replace(group, family=part, dimension=part.size, certificate=found, statement=words)]


def _reach(family: Family) -> float:
    """Return how far to go along an orbit: the exponential of a large random matrix must not lose digits."""
    return float(getattr(family, "width", 1)) ** -0.5


def _certified(exact: Function, family: Family, seed: int) -> Certificate | None:
    """Return the certificate of a family, or ``None`` if it fails."""
    coefficients = coefficients_of(family, seed)
    direction = family.field(exact.point, coefficients)
    if not length(direction):
        return None
    derivative = relative_derivative(exact, direction, seed)
    if not derivative <= FLAT:
        return None
    orbit = orbit_change(exact, family, coefficients, (0.5 * _reach(family), -0.3 * _reach(family)))
    return Certificate(derivative, orbit) if orbit <= TOLERANCE else None


def _passing(exact: Function, family: Family, indices: Tensor, seed: int) -> Tensor:
    """Return the coefficients along which the function does not change, by halving."""
    part = family.subset(indices)
    assert part is not None
    direction = part.field(exact.point, coefficients_of(part, seed))
    if length(direction) and relative_derivative(exact, direction, seed) <= FLAT:
        return indices
    if len(indices) == 1:
        return indices[:0]
    half = len(indices) // 2
    return torch.cat([_passing(exact, family, indices[:half], seed), _passing(exact, family, indices[half:], seed)])
