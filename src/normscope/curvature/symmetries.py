"""Flat directions from the symmetry groups that :mod:`normscope.geometry` discovers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from normscope.curvature.directions import Directions
from normscope.curvature.problem import Problem

#: Numbers that generators may hold together; larger networks keep only their scale groups.
MOST = 5 * 10**7


def directions_of(problem: Problem, groups: Iterable[Any], generators: Tensor | None = None) -> tuple[Directions, int]:
    """Return the flat directions of symmetry groups at the point of a problem, and how many were left out.

    A group of kind ``scale`` whose parts do not overlap with others becomes a scale group, which costs nothing to
    project along; all other directions are stored as vectors, as far as they fit.

    Args:
        problem: the loss.
        groups: with ``kind``, ``dimension`` and a ``family`` that has ``size`` and ``field(point, coefficients)``.
        generators: further flat directions, one a row.
    """
    point = {name: value.double() for name, value in problem.split(problem.point()).items()}
    places = torch.full((problem.dimension,), -1, device=problem.device)
    rows: list[Tensor] = [] if generators is None else list(generators.double())
    count, left_out = 0, 0
    for group in groups:
        family = group.family
        if family is None or not set(group.parameters) <= set(point):
            continue
        numbers = torch.arange(1, family.size + 1, dtype=torch.float64)
        if group.kind == "scale":
            found = problem.flat(family.field(point, numbers)).double() / problem.point().double()
            inside = torch.isfinite(found) & (found.round() > 0) & ((found - found.round()).abs() < 1e-6)
            if bool((places[inside] < 0).all()):
                places[inside] = found[inside].round().long() - 1 + count
                count += family.size
                continue
        if (len(rows) + family.size) * problem.dimension > MOST:
            left_out += group.dimension
            continue
        rows += [problem.flat(family.field(point, unit)).double() for unit in torch.eye(family.size).double()]
    return Directions(problem.point(), places, torch.stack(rows) if rows else None), left_out
