"""Flat directions from the symmetry groups that :mod:`normscope.geometry` discovers."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import NormscopeError, OutOfTimeError
from normscope.curvature.directions import Directions
from normscope.curvature.problem import Problem
from normscope.geometry.discover import symmetry

#: Numbers that generators may hold together; otherwise only scale groups are kept.
MOST = 2 * 10**7
#: Generators that must fit, or they are not looked for.
WORTHWHILE = 100


def find_groups(
    model: nn.Module,
    data: Any,
    mode: str,
    loss: str,
    seconds: float,
    say: Callable[[str], None],
    told: list[str],
    *,
    seed: int = 0,
) -> tuple[Any, ...] | None:
    """Return the continuous symmetries of a model, or nothing where the search failed or took too long.

    In networks so large that few directions fit into memory only scalings of weights are looked for, unless time is
    unlimited.

    Args:
        model: the network.
        data: batches, with labels.
        mode: ``batch`` or ``running``.
        loss: as for :func:`normscope.geometry.discover.symmetry`.
        seconds: time for the search; 0 for none, ``math.inf`` for as long as it takes.
        say: called with a line of text at each step.
        told: messages, to which what was not looked for is added.
        seed: of the random coefficients.
    """
    if not seconds:
        return None
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    large = size * WORTHWHILE > MOST and seconds < math.inf
    within = "" if seconds == math.inf else f", at most {seconds:g} s"
    try:
        found = symmetry(
            model, data, mode=mode, loss=loss, seed=seed, seconds=seconds, search="scales" if large else "directions",
            progress=lambda text: say(f"symmetries{within}: {text}"),
        )  # fmt: skip
    except OutOfTimeError:
        told.append(
            f"Symmetries were not found within {seconds:g} s: numbers modulo symmetries are left out. Allow more time "
            "with --symmetry-seconds (symmetry_seconds=)."
        )
        return None
    except NormscopeError as error:
        told.append(f"Symmetries were not searched: {str(error).splitlines()[0]}")
        return None
    if large:
        told.append(
            f"Of the symmetries of {size:,} parameters, only scalings of weights were searched: few "
            "other directions fit into memory. `normscope symmetry` counts all of them."
        )
    return found.groups


def directions_of(problem: Problem, groups: Iterable[Any], generators: Tensor | None = None) -> tuple[Directions, int]:
    """Return the flat directions of symmetry groups at the point of a problem, and how many were left out.

    A group of kind ``scale`` whose parts do not overlap with others becomes a scale group, which costs nothing to
    project along; all other directions are stored as vectors, or left out if they do not all fit.

    Args:
        problem: the loss.
        groups: with ``kind``, ``dimension`` and a ``family`` that has ``size`` and ``field(point, coefficients)``.
        generators: further flat directions, one a row.
    """
    point = {name: value.double() for name, value in problem.split(problem.point()).items()}
    places = torch.full((problem.dimension,), -1, device=problem.device)
    rows: list[Tensor] = [] if generators is None else list(generators.double())
    where = {block.name: places[block.place] for block in problem.blocks}  # views
    count, families = 0, []

    for group in groups:
        family = group.family
        if family is None or not set(group.parameters) <= set(point):
            continue
        numbers = torch.arange(1, family.size + 1, dtype=torch.float64)
        if group.kind == "scale":
            field = family.field(point, numbers)
            ratios = {name: (value / point[name]).reshape(-1) for name, value in field.items() if name in point}
            members = {name: _members(ratio).to(places.device) for name, ratio in ratios.items()}
            if all(bool((where[name][member > 0] < 0).all()) for name, member in members.items()):
                for name, member in members.items():
                    where[name][member > 0] = member[member > 0] - 1 + count
                count += family.size
                continue
        families.append(family)
    total = sum(family.size for family in families)
    fits = (len(rows) + total) * problem.dimension <= MOST
    for family in families if fits else ():
        rows += [problem.flat(family.field(point, unit)).double() for unit in torch.eye(family.size).double()]
    return Directions(problem.point(), places, torch.stack(rows) if rows else None), 0 if fits else total


def _members(ratios: Tensor) -> Tensor:
    """Return the number of the member of a family that scales each weight, from 1, where a whole one does; else 0.

    >>> _members(torch.tensor([2.0, 0.0, float("nan"), 1.5])).tolist()
    [2, 0, 0, 0]
    """
    number = ratios.nan_to_num(0.0, 0.0, 0.0).round()
    inside = torch.isfinite(ratios) & (number > 0) & ((ratios - number).abs() < 1e-6)
    return torch.where(inside, number, 0.0).long()
