"""Directions along which the loss is known to be constant: symmetry groups, scalings of weights, given generators."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import InputError, NormscopeError, OutOfTimeError
from normscope.curvature.problem import Problem
from normscope.geometry.discover import symmetry

#: Combinations of unit generators shorter than this count as linearly dependent.
INDEPENDENT = 1e-6
#: Largest number of entries of all generators together; beyond it only scale groups are kept.
MOST = 2 * 10**7
#: Number of generators that must fit for the search to be worthwhile.
WORTHWHILE = 100


class Directions:
    r"""Symmetry directions of a point: the span of scalings :math:`w_g` of groups of weights and of other generators.

    Groups have no parameter in common, so the projection along all of them costs as much as one inner product.

    Args:
        point: the parameters as one vector.
        groups: the number of the group of every parameter, -1 for none.
        generators: further directions, one per row.

    Attributes:
        count: dimension of the span.
        scales: number of groups.

    >>> found = Directions(torch.tensor([3.0, 4.0, 1.0]), torch.tensor([0, 0, -1]))
    >>> found.count, found.project(torch.ones(3, dtype=torch.float64)).round(decimals=6).tolist()
    (1, [0.16, -0.12, 1.0])
    """

    def __init__(self, point: Tensor, groups: Tensor | None = None, generators: Tensor | None = None) -> None:
        places = None if groups is None or not bool((groups >= 0).any()) else groups.to(point.device)
        if places is None:  # nothing to store per parameter
            one = torch.zeros(1, dtype=torch.float64, device=point.device)
            self.groups, self.inside = (one.to(dtype).expand(point.numel()) for dtype in (torch.int64, torch.bool))
            self.unit, self.lengths = one.expand(point.numel()), (one + 1).expand(point.numel())
            self.scales = 0
        else:
            self._fill(point, places)
        self.rest = self._independent(generators, point)
        self.count = self.scales + len(self.rest)

    def _fill(self, point: Tensor, places: Tensor) -> None:
        """Number the groups from 0, with the parameters outside all groups as one more, and compute their lengths."""
        present = torch.bincount(places + 1) > 0
        self.groups = (present.cumsum(0) - 1)[places + 1]
        inside = places >= 0
        lengths = self.sums(torch.where(inside, point.double().square(), 0.0)).sqrt()
        #: Whether each parameter is in a group that is not zero.
        self.inside = inside & (lengths > 0)
        self.unit = torch.where(self.inside, point.double() / lengths, 0.0)
        #: Length of the group that each parameter is in, 1 for those in none: sphere coordinates.
        self.lengths = torch.where(self.inside, lengths, 1.0)
        self.scales = len(torch.unique(self.groups[self.inside]))

    def sums(self, values: Tensor) -> Tensor:
        """Return for each parameter the sum of values over its group, in float64."""
        total = torch.zeros(int(self.groups.max()) + 1, dtype=torch.float64, device=values.device)
        return total.index_add_(0, self.groups, values.double())[self.groups]

    def _independent(self, generators: Tensor | None, point: Tensor) -> Tensor:
        """Return an orthonormal basis of what generators add to the scalings."""
        if generators is None:
            return torch.zeros(0, point.numel(), dtype=torch.float64, device=point.device)
        if generators.shape[1:] != point.shape:
            raise InputError(f"Expected generators of {point.numel()} entries, got {generators[0].numel()}.")
        rows = torch.nn.functional.normalize(generators.to(point.device, torch.float64))
        rows = torch.stack([self._without_scales(row) for row in rows])
        for _ in range(2):  # the second time removes what rounding left of the first
            values, vectors = torch.linalg.eigh(rows @ rows.mT)
            kept = values > INDEPENDENT**2
            rows = (vectors[:, kept] / values[kept].sqrt()).mT @ rows
        return rows

    def _without_scales(self, vector: Tensor) -> Tensor:
        """Return a vector without its components along the scalings, in float64."""
        wide = vector.double()
        return wide - self.unit * self.sums(self.unit * wide)

    def project(self, vector: Tensor) -> Tensor:
        """Return a vector without its components along the directions."""
        if not self.count:
            return vector
        left = self._without_scales(vector)
        if len(self.rest):
            left = left - (self.rest @ left) @ self.rest
        return left.to(vector.dtype)

    def on_sphere(self, vector: Tensor) -> Tensor:
        r"""Return :math:`D_w v`: coordinates in which every group lies on the unit sphere."""
        return (self.lengths * vector.double()).to(vector.dtype)

    def random(self, seed: int = 0) -> Tensor:
        """Return a random vector of the span, whose coordinates on an orthonormal basis are standard normal."""
        generator = torch.Generator().manual_seed(seed)
        vector = torch.randn(len(self.unit), generator=generator, dtype=torch.float64).to(self.unit.device)
        return vector - self.project(vector)

    def vectors(self) -> Iterator[Tensor]:
        """Yield an orthonormal basis of the span, in float64."""
        for number in torch.unique(self.groups[self.inside]).tolist():
            yield torch.where(self.groups == number, self.unit, 0.0)
        yield from self.rest

    def basis(self) -> Tensor:
        """Return an orthonormal basis of the span, one vector per row, in float64; meant for small problems."""
        return torch.stack(list(self.vectors())) if self.count else self.rest


def row_groups(problem: Problem, names: Sequence[str]) -> Tensor:
    """Return group numbers for parameters of which every output (row, filter, neuron) is a group of its own.

    Args:
        problem: the loss.
        names: the names of these parameters.

    Raises:
        InputError: if a name is not a chosen parameter.
    """
    places = torch.full((problem.dimension,), -1, device=problem.device)
    known = {block.name: block for block in problem.blocks}
    count = 0
    for name in dict.fromkeys(names):
        if name not in known:
            raise InputError(f"Unknown parameter {name!r} for a scale group.")
        shape = known[name].shape
        each = torch.arange(count, count + shape[0], device=problem.device)
        places[known[name].place] = each.repeat_interleave(shape.numel() // shape[0])
        count += shape[0]
    return places


def find_groups(
    model: nn.Module,
    data: Any,
    mode: str,
    loss: str,
    seconds: float,
    say: Callable[[str], None],
    messages: list[str],
    *,
    seed: int = 0,
) -> tuple[Any, ...] | None:
    """Return the continuous symmetries of a model, or None if the search failed or took too long.

    In networks so large that few directions fit into memory, only scalings of weights are searched for, unless time is
    unlimited.

    Args:
        model: the network.
        data: batches, with labels.
        mode: ``batch`` or ``running``.
        loss: as for :func:`normscope.geometry.discover.symmetry`.
        seconds: time for the search; 0 for none, ``math.inf`` for as long as it takes.
        say: called with a line of text at each step.
        messages: a list to which notes on skipped searches are added.
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
        messages.append(
            f"Symmetries were not found within {seconds:g} s: numbers modulo symmetries are left out. Allow more time "
            "with --symmetry-seconds (symmetry_seconds=)."
        )
        return None
    except NormscopeError as error:
        messages.append(f"Symmetries were not searched: {str(error).splitlines()[0]}")
        return None
    if large:
        messages.append(
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
        generators: further flat directions, one per row.
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
    """Return the number, from 1, of the family member that scales each weight, or 0 where there is no such member.

    >>> _members(torch.tensor([2.0, 0.0, float("nan"), 1.5])).tolist()
    [2, 0, 0, 0]
    """
    number = ratios.nan_to_num(0.0, 0.0, 0.0).round()
    inside = torch.isfinite(ratios) & (number > 0) & ((ratios - number).abs() < 1e-6)
    return torch.where(inside, number, 0.0).long()
