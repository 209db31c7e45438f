r"""Align one set of weights with another along the symmetries of a network: are both the same function?

Both are brought to the representative of their orbits of shifts and scales, in which they differ by rotations of
residual streams, found by Procrustes, permutations of units and heads, found by linear assignment, and matrices of
heads, found by linear systems. Then the moves of the first are undone on the second. The same is tried again
without matrices, and the nearest result is kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.geometry.candidates.matrices import MatrixFamily, RotaryTurn, centred_basis
from normscope.geometry.candidates.permutations import (
    ExchangeableUnits,
    Places,
    permutation,
    permuted,
    places_of,
    spaces_of,
)
from normscope.geometry.candidates.scales import ChannelScales
from normscope.geometry.channels.labelling import label_channels
from normscope.geometry.discover import Symmetries
from normscope.geometry.flow import Point
from normscope.geometry.representative import balanced, without_constants

SWEEPS = 10


@dataclass(frozen=True, eq=False)
class Alignment:
    """Two sets of weights of one architecture, the second moved along its symmetries."""

    before: float  #: distance of the parameters as they were, relative to the length of the first
    after: float  #: distance once the second was moved
    moved: int  #: how many units and heads changed places
    state: dict[str, Tensor] = field(repr=False)  #: the moved parameters and statistics, float64, by name

    @property
    def same(self) -> bool:
        """Return whether both are one network up to symmetries, to 1e-6."""
        return self.after < 1e-6


def align(found: Symmetries, other: Mapping[str, Tensor]) -> Alignment:
    """Move other weights of the same architecture as near to a model's own as its symmetries allow.

    Args:
        found: the symmetries of the model, in batch mode.
        other: the other weights: a state dict, or its parameters.

    Raises:
        InputError: if the other weights are not of this architecture.
    """
    function = found.function
    target: dict[str, Tensor] = dict(function.tensors)
    point = {name: _double(other, name, value) for name, value in target.items() if name in other}
    missing = sorted(set(function.names) - set(point))
    if missing:
        raise InputError(f"The other weights lack {missing[0]}. Both must have the same architecture.")
    point = {**target, **point}
    before = distance(function.point, point)
    states = [(point, 0), *(_matched(found, target, point, matrices=matrices) for matrices in (True, False))]
    after = [distance(function.point, state) for state, _ in states]
    best = after.index(min(after))
    return Alignment(before, after[best], states[best][1], states[best][0])


def _matched(
    found: Symmetries, target: dict[str, Tensor], point: dict[str, Tensor], *, matrices: bool
) -> tuple[dict[str, Tensor], int]:
    """Match parameters with the target at the canonical points of both orbits, then undo the target's own moves."""
    function, scales = found.function, _joined(found)
    labels = label_channels(function).labels if scales is None else scales.labels
    groups = [g for g in found.groups if matrices or not isinstance(g.family, MatrixFamily | RotaryTurn)]
    (target, moves), (point, _) = without_constants(groups, target), without_constants(groups, point)
    own = torch.zeros(0)
    if scales is not None:
        own, theirs = (balanced(scales, p, groups) for p in (target, point))
        target, point = _scaled(scales, target, own), _scaled(scales, point, theirs)
    families = [group.family for group in groups if isinstance(group.family, MatrixFamily)]
    rotated = [family for family in families if family.algebra != "full"]
    for family in rotated:
        point |= _turned(family, target, point)
    places = places_of(function, labels)
    inside = {labels.kin.find(label) for family in rotated for frame in family.frames for label in frame.labels}
    spaces = [s for s in spaces_of(labels, places) if not inside & {c for unit in s.units for c in unit}]
    heads = {labels.kin.find(f.frames[0].labels[0]): f for f in families if f.algebra == "full" and len(f.frames) == 1}
    point, moved = _assigned(target, point, spaces, places, heads)
    for family in families:
        point |= _turned(family, target, point) if family.algebra == "full" else {}
    for group in groups:
        point |= _angle(group.family, target, point) if isinstance(group.family, RotaryTurn) else {}
    if scales is not None:
        point = _scaled(scales, point, -own)
    for constant, coefficients in reversed(moves):
        point |= constant.move(point, -coefficients, 1.0)
    return point, moved


def distance(one: Point, other: Point) -> float:
    """Return the distance of the parameters of one from those of another, relative to its length.

    >>> distance({"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([3.0, 3.0])})
    0.2
    """
    gap = sum(float((value - other[name]).square().sum()) for name, value in one.items())
    return (gap / (sum(float(value.square().sum()) for value in one.values()) or 1.0)) ** 0.5


def _double(other: Mapping[str, Tensor], name: str, value: Tensor) -> Tensor:
    """Return one of the other weights in float64."""
    if other[name].shape != value.shape:
        shapes = f"{tuple(other[name].shape)} and {tuple(value.shape)}"
        raise InputError(f"{name} has the shapes {shapes}. Both must have the same architecture.")
    found = other[name].detach()
    return found.double() if found.is_floating_point() else found


def _joined(found: Symmetries) -> ChannelScales | None:
    """Return all verified scales as one family."""
    families = [group.family for group in found.groups if isinstance(group.family, ChannelScales)]
    if not families:
        return None
    names = tuple(dict.fromkeys(name for family in families for name in family.parameters))
    basis = tuple(solution for family in families for solution in family.basis)
    return replace(families[0], basis=basis, parameters=names)


def _scaled(scales: ChannelScales, point: Point, coefficients: Tensor) -> dict[str, Tensor]:
    """Return parameters moved along their scales, stored means and variances with them."""
    found = {**point, **scales.move(point, coefficients, 1.0)}
    rates = scales.of_labels(coefficients)
    for mean, variance, inputs in scales.labels.statistics:
        factor = rates[inputs.clamp_min(0)].exp()
        found[mean], found[variance] = found[mean] * factor, found[variance] * factor.square()
    return found


def _assigned(
    target: Point, point: Point, spaces: Sequence[ExchangeableUnits], places: Places, heads: Mapping[int, MatrixFamily]
) -> tuple[dict[str, Tensor], int]:
    """Return the parameters with every space's units in the order that fits the target best, and how many moved.

    The first sweep begins with spaces next to channels whose order is known.
    """
    from scipy.optimize import linear_sum_assignment

    found, moved = dict(point), 0
    waiting = {c for space in spaces for unit in space.units for c in unit}
    for sweep in range(SWEEPS):
        count, left = 0, list(spaces)
        while left:
            gains = ((space, _gain(target, found, space, places, heads, waiting)) for space in left)
            chosen = next(((s, g) for s, g in gains if bool((g != 0).any())), None)
            space, gain = chosen or (left[0], _gain(target, found, left[0], places, heads, set()))
            left.remove(space)
            waiting -= {c for unit in space.units for c in unit}
            order = linear_sum_assignment(gain.numpy(), maximize=True)[1].tolist()
            if order != list(range(len(order))):
                found |= permuted(places, found, permutation(space, order))
                count += sum(i != j for i, j in enumerate(order))
        moved += count if sweep == 0 else 0
        if not count:
            break
    return found, moved


def _gain(
    target: Point,
    point: Point,
    space: ExchangeableUnits,
    places: Places,
    heads: Mapping[int, MatrixFamily],
    waiting: set[int],
) -> Tensor:
    """Return the similarity of each unit to each one of the target, by parameters whose other axes are matched."""
    gain = torch.zeros(len(space.units), len(space.units), dtype=torch.float64)
    mixed = [next((heads[c] for c in unit if c in heads), None) for unit in space.units]
    if space.heads and all(mixed):  # what a head does as a whole: no matrix of values and outputs changes it
        whole = [torch.stack([f.through(p).reshape(-1) for f in mixed if f is not None]) for p in (target, point)]
        return whole[0] @ whole[1].mT
    mine = {c for unit in space.units for c in unit}
    for name, axes in places.items():
        if name not in point or name not in target:
            continue
        for axis, classes in axes:
            if (waiting - mine) & {c for a, cs in axes if a != axis for c in cs.tolist()}:
                continue
            one, two = (_slices(p[name], axis, classes, space) for p in (target, point))
            if one is not None and two is not None:
                gain += one @ two.mT
    return gain


def _slices(value: Tensor, axis: int, classes: Tensor, space: ExchangeableUnits) -> Tensor | None:
    """Return the entries of a parameter that belong to each unit, one row per unit; ``None`` if there are none."""
    where: dict[int, list[int]] = {}
    for i, c in enumerate(classes.tolist()):
        where.setdefault(c, []).append(i)
    positions = [[i for c in unit for i in where.get(c, [])] for unit in space.units]
    if not positions[0] or len({len(p) for p in positions}) > 1:
        return None
    flat = value.movedim(axis, 0).flatten(1) if value.ndim > 1 else value[:, None]
    return torch.stack([flat[p].reshape(-1) for p in positions])


def _turned(family: MatrixFamily, target: Point, point: Point) -> dict[str, Tensor]:
    """Return the parameters after the matrix of a family that brings what is written nearest to the target."""
    one, two = family.written(target), family.written(point)
    if family.algebra == "full":
        matrix = one @ torch.linalg.pinv(two)
        if not float(torch.linalg.cond(matrix)) < 1e8:
            return {}
        return family.apply(point, torch.linalg.inv(matrix).mT if family.frames[0].dual else matrix)
    basis = centred_basis(family.width) if family.algebra == "centred" else torch.eye(family.width).double()
    left, _, right = torch.linalg.svd(basis.mT @ one @ two.mT @ basis)
    matrix = basis @ (left @ right) @ basis.mT
    if family.algebra == "centred":
        matrix = matrix + 1.0 / family.width
    return family.apply(point, matrix)


def _angle(family: RotaryTurn, target: Point, point: Point) -> dict[str, Tensor]:
    """Return the parameters after the turn that brings both rows of every pair nearest to the target's."""
    one, two = (torch.cat([p[name].reshape(-1)[rows] for name, rows in family.rows()], 1) for p in (target, point))
    across, along = (one[1] * two[0] - one[0] * two[1]).sum(), (one * two).sum()
    return family.move(point, torch.atan2(across, along)[None], 1.0)


def interpolation(found: Symmetries, other: Point, targets: Sequence[Tensor], points: int = 11) -> list[float]:
    """Return the loss along the straight line from a model's parameters to other ones.

    Args:
        found: the symmetries of the model, whose batch is the data.
        other: the parameters at the other end.
        targets: what the outputs are compared with.
        points: how many points, both ends included.
    """
    function = found.function
    losses = []
    with torch.no_grad():
        for t in torch.linspace(0, 1, points).tolist():
            at = {name: (1 - t) * value + t * other[name].double() for name, value in function.point.items()}
            losses.append(float(function.value(at, targets)))
    return losses
