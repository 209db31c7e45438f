"""Verify a candidate: its derivative and a finite orbit."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from normscope.geometry.function import Function
from normscope.geometry.groups import Certificate, Family, Group, Point, length, random_like

#: The largest change of outputs along an orbit that is taken for rounding, in float64.
TOLERANCE = 1e-7
#: The same of a relative derivative, which loses fewer digits: branches that are scaled by 1e-6 must not hide a change.
FLAT = 1e-11
#: The same of the change of one random combination of the outputs, before anything is verified.
SEEMS = 1e-6
#: A change of it that is rounding, of the whole gradient.
ROUNDING = 1e-12


def coefficients_of(family: Family, seed: int = 0) -> Tensor:
    """Return random coefficients of size about one, none of them small."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(family.size, generator=generator, dtype=torch.float64) / 2 + 0.5
    return drawn * (torch.randint(0, 2, (family.size,), generator=generator) * 2 - 1)


def across(function: Function, direction: Point) -> float:
    r"""Return how far the outputs move along a random direction that is as long on each parameter, about.

    The mean of ``||J R||^2`` is ``sum ||J_p||_F^2 ||X_p||^2/n_p``, and for random weights r of the outputs that of
    ``||J_p^T r||^2`` is ``||J_p||_F^2``: one gradient serves all directions.
    """
    norms = function.backwards.norms
    found = math.sqrt(sum((norms[n] * float(x.detach().norm())) ** 2 / max(x.numel(), 1) for n, x in direction.items()))
    return found if math.isfinite(found) else float(function.derivative(random_like(direction)).norm())


def relative_derivative(function: Function, direction: Point) -> float:
    """Return ``||J X||`` over about ``||J R||`` for a random direction R as long on the same parameters."""
    along = float(function.derivative(direction).norm())
    if along == 0.0:
        return 0.0
    size = across(function, direction)
    return along / size if size else float("inf")


def seems_flat(function: Function, direction: Point) -> bool:
    r"""Return whether a direction may be a symmetry: ``<J^T r, X> = <r, J X>`` vanishes for the one gradient at hand.

    What is told apart so needs no derivative of its own. What seems flat is verified.
    """
    back = function.backwards
    along = abs(sum(float((back.parameters[n] * x.detach()).sum()) for n, x in direction.items()))
    whole = math.sqrt(sum(norm**2 for norm in back.norms.values()))
    return not along > max(SEEMS * across(function, direction), ROUNDING * whole * length(direction))


def orbit_change(function: Function, family: Family, coefficients: Tensor, times: Sequence[float]) -> float:
    """Return the largest change of the outputs along an orbit, relative to the largest output."""
    return max(function.change(family.move(function.point, coefficients, time)) for time in times)


def verify_all(exact: Function, groups: Sequence[Group], seed: int = 0) -> list[Group]:
    """Return the candidates that are symmetries, with their certificates.

    What moves one random combination of the outputs is divided into what does not, without further derivatives. Then
    all are tested at once, with random coefficients: one derivative and one orbit. Where that fails they are halved, so
    that a few wrong ones cost a few more tests. Those that passed together share their certificate.
    """
    likely = [kept for i, group in enumerate(groups) for kept in _likely(exact, group, seed + i)]
    return _verify_all(exact, likely, seed)


def _verify_all(exact: Function, groups: Sequence[Group], seed: int) -> list[Group]:
    """Return the candidates that are symmetries, by halving."""
    if len(groups) < 2:
        return [kept for group in groups for kept in verify(exact, group, seed)]
    found = _together(exact, groups, seed)
    if found is not None:
        return [replace(group, certificate=found) for group in groups]
    half = len(groups) // 2
    return _verify_all(exact, groups[:half], seed) + _verify_all(exact, groups[half:], seed)


def _likely(exact: Function, group: Group, seed: int) -> list[Group]:
    """Return the part of a candidate that seems flat."""
    family = group.family
    if family is None or not family.size:
        return []
    if seems_flat(exact, family.field(exact.point, coefficients_of(family, seed))):
        return [group]
    return list(_passing(group, family, lambda direction: seems_flat(exact, direction), exact.point, seed))


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
    derivative = relative_derivative(exact, direction)
    if not derivative <= FLAT:
        return None
    point = exact.point
    for family, coefficients in chosen:
        point |= family.move(point, coefficients, 0.3 * _reach(family))
    change = exact.change(point)
    return Certificate(derivative, change) if change <= TOLERANCE else None


def verify(exact: Function, group: Group, seed: int = 0) -> list[Group]:
    """Return the part of a candidate that is a symmetry, with its certificate; nothing if none is.

    A joint test with random coefficients comes first; where it fails the family is halved, down to single directions.
    """
    family = group.family
    if family is None or family.size == 0:
        return []
    parts = _passing(group, family, lambda d: relative_derivative(exact, d) <= FLAT, exact.point, seed)
    for part in itertools.chain([group], parts):  # parts are looked for only if the whole fails
        assert part.family is not None
        found = _certified(exact, part.family, seed)
        if found is not None:
            return [replace(part, certificate=found)]
    return []


def _reach(family: Family) -> float:
    """Return how far to go along an orbit: the exponential of a large random matrix must not lose digits."""
    return float(getattr(family, "width", 1)) ** -0.5


def _certified(exact: Function, family: Family, seed: int) -> Certificate | None:
    """Return the certificate of a family, or ``None`` if it fails."""
    coefficients = coefficients_of(family, seed)
    direction = family.field(exact.point, coefficients)
    if not length(direction):
        return None
    derivative = relative_derivative(exact, direction)
    if not derivative <= FLAT:
        return None
    orbit = orbit_change(exact, family, coefficients, (0.5 * _reach(family), -0.3 * _reach(family)))
    return Certificate(derivative, orbit) if orbit <= TOLERANCE else None


def _passing(group: Group, family: Family, holds: Callable[[Point], bool], point: Point, seed: int) -> Iterator[Group]:
    """Yield the part of a group whose random directions pass a test, if there is one; found by halving."""

    def halved(indices: Tensor) -> Tensor:
        some = family.subset(indices)
        assert some is not None
        direction = some.field(point, coefficients_of(some, seed))
        if length(direction) and holds(direction):
            return indices
        if len(indices) == 1:
            return indices[:0]
        half = len(indices) // 2
        return torch.cat([halved(indices[:half]), halved(indices[half:])])

    if family.size == 1 or family.subset(torch.arange(1)) is None:
        return
    kept = halved(torch.arange(family.size))
    part = family.subset(kept)
    if len(kept) and part is not None:
        words = f"{group.statement} ({len(kept)} of {family.size})"
        yield replace(group, family=part, dimension=part.size, statement=words)
