"""Verify candidates for symmetries: the derivative of the outputs must vanish, and a finite orbit leave them alone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from normscope.geometry.flow import Point
from normscope.geometry.function import ModelFunction
from normscope.geometry.groups import (
    Certificate,
    SplitFamily,
    SymmetryFamily,
    SymmetryGroup,
    length,
    random_like,
    total,
)

#: Largest change of the outputs along an orbit that counts as rounding, in float64.
TOLERANCE = 1e-7
#: The same for a relative derivative, which loses fewer digits: branches scaled by 1e-6 must not hide a change.
FLAT = 1e-11
#: Factors by which inputs are stretched, and how far parameters are moved relative to their length, to test elsewhere.
STRETCHES, MOVED = (1.0, -1.0, 100.0, -100.0), 0.05
#: How much larger rounding may be there: normalizers may divide by very little.
SLACK = 1e3
#: The same for one random combination of the outputs, in a first test before the verification.
SEEMS = 1e-6
#: Rounding of that test, relative to the norm of the whole gradient.
ROUNDING = 1e-12


def coefficients_of(family: SymmetryFamily, seed: int = 0) -> Tensor:
    """Return random coefficients of size about one, none of them small."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(family.size, generator=generator, dtype=torch.float64) / 2 + 0.5
    return drawn * (torch.randint(0, 2, (family.size,), generator=generator) * 2 - 1)


def across(function: ModelFunction, direction: Point) -> float:
    r"""Estimate how far the outputs move along a random direction of the same length on each parameter.

    The mean of ``||J R||^2`` is ``sum ||J_p||_F^2 ||X_p||^2/n_p``, and for random weights r of the outputs that of
    ``||J_p^T r||^2`` is ``||J_p||_F^2``: one gradient serves all directions.
    """
    norms = function.backwards.norms
    found = math.sqrt(sum((norms[n] * float(x.detach().norm())) ** 2 / max(x.numel(), 1) for n, x in direction.items()))
    return found if math.isfinite(found) else float(function.derivative(random_like(direction)).norm())


def relative_derivative(function: ModelFunction, direction: Point) -> float:
    """Return ``||J X||`` over about ``||J R||`` for a random direction R as long on the same parameters."""
    along = float(function.derivative(direction).norm())
    if along == 0.0:
        return 0.0
    size = across(function, direction)
    return along / size if size else float("inf")


def seems_flat(function: ModelFunction, direction: Point) -> bool:
    r"""Return whether a direction may be a symmetry: ``<J^T r, X> = <r, J X>`` vanishes for the one gradient at hand.

    A direction that fails needs no derivative of its own; one that passes is still verified.
    """
    back = function.backwards
    along = abs(sum(float((back.parameters[n] * x.detach()).sum()) for n, x in direction.items()))
    whole = math.sqrt(sum(norm**2 for norm in back.norms.values()))
    return not along > max(SEEMS * across(function, direction), ROUNDING * whole * length(direction))


def verify(exact: ModelFunction, groups: Sequence[SymmetryGroup], seed: int = 0) -> list[SymmetryGroup]:
    """Return the candidates that are symmetries, with their certificates.

    First, parts that move one random combination of the outputs are dropped, without further derivatives. Then all are
    tested at once with random coefficients: one derivative and one orbit. Where that fails they are halved, so that a
    few wrong ones cost a few more tests. Groups that passed together share their certificate.
    """
    return _verified(exact, [kept for i, group in enumerate(groups) for kept in _likely(exact, group, seed + i)], seed)


def holding_elsewhere(function: ModelFunction, groups: Sequence[SymmetryGroup], seed: int = 0) -> list[SymmetryGroup]:
    """Return the groups that are symmetries on other inputs as well, and at other parameters.

    A clipped activation that no sample reaches, a unit that is dead on the data, or a scale of exactly one make
    symmetries of a few inputs, or of one point among the parameters. So parameters are moved a little, and drawn anew
    with inputs stretched; where the outputs are then not finite, nothing is tested.
    """
    like = {name: value if bool(value.any()) else torch.ones_like(value) for name, value in function.point.items()}
    noise = random_like(like, seed)
    moved = {name: value + MOVED * noise[name] for name, value in function.point.items()}
    others = [replace(function, tensors=function.tensors | moved)]
    for i, factor in enumerate(STRETCHES, 1):
        inputs = [t * factor if isinstance(t, Tensor) and t.is_floating_point() else t for t in function.inputs]
        others.append(replace(function, tensors=function.tensors | random_like(like, seed + i), inputs=inputs))
    left = [group for group in groups if group.family is not None]
    for other in others:
        if all(bool(t.isfinite().all()) for t in other.outputs(other.point)):
            left = _verified(other, left, seed, SLACK)
    return [group for group in groups if group.family is None] + left


def _verified(
    exact: ModelFunction, groups: Sequence[SymmetryGroup], seed: int, slack: float = 1.0
) -> list[SymmetryGroup]:
    """Return the candidates that are symmetries: all if they pass together, else those of each half."""
    if not groups:
        return []
    found = _certified(exact, groups, seed, slack)
    if found is not None:
        return [replace(group, certificate=group.certificate or found) for group in groups]
    half = len(groups) // 2
    if half:
        return _verified(exact, groups[:half], seed, slack) + _verified(exact, groups[half:], seed, slack)
    (group,) = groups
    for part in _passing(group, lambda d: relative_derivative(exact, d) <= slack * FLAT, exact.point, seed):
        found = _certified(exact, [part], seed, slack)
        if found is not None:
            return [replace(part, certificate=part.certificate or found)]
    return []


def _certified(
    exact: ModelFunction, groups: Sequence[SymmetryGroup], seed: int, slack: float = 1.0
) -> Certificate | None:
    """Return the certificate of several groups at once, or ``None`` if they fail."""
    families = [group.family for group in groups if group.family is not None]
    chosen = [(family, coefficients_of(family, seed + i)) for i, family in enumerate(families)]
    direction = total(family.field(exact.point, coefficients) for family, coefficients in chosen)
    derivative = relative_derivative(exact, direction) if length(direction) else math.inf
    if not derivative <= slack * FLAT:
        return None
    orbit = 0.0
    for time in (0.5, -0.3) if len(groups) == 1 else (0.3,):
        point = exact.point
        for family, coefficients in chosen:
            reach = float(getattr(family, "width", 1)) ** -0.5  # the exponential of a large random matrix loses digits
            point |= family.move(point, coefficients, time * reach)
        orbit = max(orbit, exact.change(point))
    return Certificate(derivative, orbit) if orbit <= slack * TOLERANCE else None


def _likely(exact: ModelFunction, group: SymmetryGroup, seed: int) -> list[SymmetryGroup]:
    """Return the part of a candidate that seems flat."""
    family = group.family
    if family is None or not family.size:
        return []
    if seems_flat(exact, family.field(exact.point, coefficients_of(family, seed))):
        return [group]
    return _passing(group, lambda direction: seems_flat(exact, direction), exact.point, seed)


def _passing(group: SymmetryGroup, holds: Callable[[Point], bool], point: Point, seed: int) -> list[SymmetryGroup]:
    """Return the part of a group whose random directions pass a test, if there is one; found by halving."""
    family = group.family
    if not isinstance(family, SplitFamily) or family.size == 1:
        return []

    def halved(indices: Tensor) -> Tensor:
        some = family.subset(indices)
        direction = some.field(point, coefficients_of(some, seed))
        if length(direction) and holds(direction):
            return indices
        if len(indices) == 1:
            return indices[:0]
        half = len(indices) // 2
        return torch.cat([halved(indices[:half]), halved(indices[half:])])

    kept = halved(torch.arange(family.size))
    words = f"{group.statement} ({len(kept)} of {family.size})"
    return [replace(group, family=family.subset(kept), dimension=len(kept), statement=words)] if len(kept) else []
