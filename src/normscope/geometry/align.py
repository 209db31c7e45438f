r"""Bring one set of weights as near to another as symmetries allow: is this the same network?

Scales and rescalings are removed by one least-squares problem in logarithms, permutations of units and heads by linear
assignment, space by space. Rotations of residual streams by Procrustes and matrices of heads by a linear system are
tried instead, as are shifts, rows and columns alone, and the nearest result is kept: what was both rotated and
rescaled, or rescaled and shifted where one bias takes up another, is not taken apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.geometry.candidates.matrices import Mixing, centred_basis
from normscope.geometry.candidates.permutations import Places, Space, permutation, places_of, spaces_of
from normscope.geometry.candidates.rows import Rows
from normscope.geometry.candidates.scales import Scales
from normscope.geometry.candidates.shifts import Opposite, Shift
from normscope.geometry.discover import Symmetries
from normscope.geometry.labelling import Labelling
from normscope.geometry.labels import Labels

Point = Mapping[str, Tensor]
SWEEPS = 10


@dataclass(frozen=True, eq=False)
class Alignment:
    """Two sets of weights of one architecture, the second moved along its symmetries.

    Attributes:
        before: distance of the parameters as they were, relative to the length of the first.
        after: distance once the second was moved.
        moved: how many units and heads changed places.
        state: the moved parameters and statistics, float64, by name.
    """

    before: float
    after: float
    moved: int
    state: dict[str, Tensor] = field(repr=False)

    @property
    def same(self) -> bool:
        """Tell whether both are one network up to symmetries, to 1e-6."""
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
        raise InputError(f"The other weights lack {missing[0]}: both must be of one architecture.")
    point = {**target, **point}
    before = distance(function.point, point)
    one, moved = _by_units(found, target, point)
    states = (one, _by_matrices(found, target, point), _shifted(found, target, point))
    after = [distance(function.point, state) for state in states]
    best = after.index(min(after))
    return Alignment(before, after[best], moved if best == 0 else 0, states[best])


def _by_units(found: Symmetries, target: Point, point: Point) -> tuple[dict[str, Tensor], int]:
    """Return parameters after scales and permutations, and how many units moved."""
    function, labels, scales = found.function, _labels(found), _joined(found)
    own = torch.zeros(0)
    if scales is not None:
        own, theirs = representative(scales, target), representative(scales, point)
        target, point = _scaled(scales, labels, target, own), _scaled(scales, labels, point, theirs)
    places = places_of(function, labels)
    spaces = spaces_of(function, labels, places)
    moved = 0
    for sweep in range(SWEEPS):
        point, count = _assigned(target, point, spaces, places, first=sweep == 0)
        moved = max(moved, count)
        if not count:
            break
    if scales is not None:
        point = _scaled(scales, labels, point, -own)
    return _shifted(found, function.tensors, point), moved


def _by_matrices(found: Symmetries, target: Point, point: Point) -> dict[str, Tensor]:
    """Return parameters after rotations of streams and matrices of heads, streams first."""
    families = [group.family for group in found.groups if isinstance(group.family, Mixing)]
    for family in sorted(families, key=lambda f: f.algebra == "full"):
        point = {**point, **_turned(family, target, point)}
    return _shifted(found, target, point)


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
        raise InputError(f"{name} has the shapes {shapes}: both must be of one architecture.")
    found = other[name].detach()
    return found.double() if found.is_floating_point() else found


def _labels(found: Symmetries) -> Labels:
    """Return the labelled channels of a model, those its scales were found with if there are some."""
    for group in found.groups:
        if isinstance(group.family, Scales):
            return group.family.labels
    return Labelling(found.function).run()


def _joined(found: Symmetries) -> Scales | None:
    """Return all verified scales as one family."""
    families = [group.family for group in found.groups if isinstance(group.family, Scales)]
    if not families:
        return None
    names = tuple(dict.fromkeys(name for family in families for name in family.parameters))
    basis = tuple(solution for family in families for solution in family.basis)
    return replace(families[0], basis=basis, parameters=names)


def representative(scales: Scales, point: Point) -> Tensor:
    r"""Return the coefficients that bring parameters to their representative: the least sum of squared logarithms.

    ``min_c sum (log |theta| + E c)^2`` over the entries that are not zero. An orbit has one such point, wherever on it
    one starts.
    """
    from scipy.sparse import coo_matrix, diags
    from scipy.sparse.linalg import lsqr

    offsets: dict[str, int] = {}
    count = 0
    for name in scales.parameters:
        offsets[name] = count
        count += point[name].numel()
    parts = _selected(scales, offsets)
    rows, labels, signs = (np.concatenate([part[k] for part in parts]) for k in range(3))
    solution = scales.solution
    shape = (count, len(solution.classes))
    chosen = coo_matrix((signs * solution.factors[labels], (rows, solution.classes[labels])), shape=shape).tocsr()
    entries = [(label, i, value) for i, one in enumerate(scales.basis) for label, value in one.items()]
    at, columns, values = (np.array(column) for column in zip(*entries, strict=True))
    basis = coo_matrix((values, (at, columns)), shape=(shape[1], scales.size)).tocsr()
    flat = torch.cat([point[name].reshape(-1) + scales.offset(name) for name in scales.parameters])
    used = (flat != 0).double().numpy()
    logs = flat.abs().clamp_min(1e-300).log().numpy() * used
    matrix = diags(used) @ (chosen @ basis)
    found = lsqr(matrix, -logs, atol=1e-15, btol=1e-15, iter_lim=20 * scales.size + 200)[0]
    return torch.from_numpy(found)


def _selected(scales: Scales, offsets: Mapping[str, int]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return which labels the exponent of each entry of the parameters has: places, labels and signs."""
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    done: set[str] = set()

    def note(name: str, index: Tensor, labels: Tensor, sign: float) -> None:
        places, names = index.reshape(-1), labels.expand(index.shape).reshape(-1)
        kept = names > 0
        where = (places[kept] + offsets[name]).numpy()
        found.append((where, names[kept].numpy(), np.full(len(where), sign)))

    for entry in scales.labels.entries:
        if entry.parameter in offsets:
            done.add(entry.parameter)
            note(entry.parameter, torch.arange(entry.labels.numel()).reshape(entry.labels.shape), entry.labels, 1.0)
    seen: set[tuple[str, int]] = set()
    for product in scales.labels.products:
        name, first = product.parameter, int(product.index.reshape(-1)[0])
        if name not in offsets or name in done or (name, first) in seen:
            continue
        seen.add((name, first))
        tail = (1,) * (product.index.ndim - 2)
        note(name, product.index, product.outputs.reshape(-1, 1, *tail), 1.0)
        note(name, product.index, product.inputs.reshape(*product.inputs.shape, *tail), -1.0)
    return found


def _scaled(scales: Scales, labels: Labels, point: Point, coefficients: Tensor) -> dict[str, Tensor]:
    """Return parameters moved along their scales, stored means and variances with them."""
    found = {**point, **scales.move(point, coefficients, 1.0)}
    rates = scales.of_labels(coefficients)
    for mean, variance, inputs in labels.statistics:
        factor = rates[inputs.clamp_min(0)].exp()
        found[mean], found[variance] = found[mean] * factor, found[variance] * factor.square()
    return found


def _assigned(
    target: Point, point: Point, spaces: Sequence[Space], places: Places, *, first: bool
) -> tuple[dict[str, Tensor], int]:
    """Return the parameters with every space's units in the order that fits the target best, and how many moved."""
    from scipy.optimize import linear_sum_assignment

    found, moved = dict(point), 0
    open_classes = {c for space in spaces for unit in space.units for c in unit}
    for space in spaces:
        mine = {c for unit in space.units for c in unit}
        gain = torch.zeros(len(space.units), len(space.units), dtype=torch.float64)
        usable = [True, False] if first else [False]
        for strict in usable:
            for name, axes in places.axes.items():
                if name not in found or name not in target:
                    continue
                for axis, classes in axes:
                    others = {c for a, cs in axes if a != axis for c in cs.tolist()}
                    if strict and others & open_classes:
                        continue
                    one, two = (_slices(p[name], axis, classes, space) for p in (target, found))
                    if one is not None and two is not None:
                        gain += one @ two.mT
            if bool((gain != 0).any()):
                break
        order = linear_sum_assignment(gain.numpy(), maximize=True)[1].tolist()
        open_classes -= mine
        if order != list(range(len(order))):
            found.update(places.permuted(found, permutation(space, order)))
            moved += sum(i != j for i, j in enumerate(order))
    return found, moved


def _slices(value: Tensor, axis: int, classes: Tensor, space: Space) -> Tensor | None:
    """Return what a parameter holds of each unit, one row per unit; ``None`` if it holds nothing of them."""
    where: dict[int, list[int]] = {}
    for i, c in enumerate(classes.tolist()):
        where.setdefault(c, []).append(i)
    positions = [[i for c in unit for i in where.get(c, [])] for unit in space.units]
    if not positions[0] or len({len(p) for p in positions}) > 1:
        return None
    flat = value.movedim(axis, 0).flatten(1) if value.ndim > 1 else value[:, None]
    return torch.stack([flat[p].reshape(-1) for p in positions])


def _turned(family: Mixing, target: Point, point: Point) -> dict[str, Tensor]:
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


def _shifted(found: Symmetries, target: Point, point: Point) -> dict[str, Tensor]:
    """Return the parameters with what shifts and rows may freely add brought to the target's."""
    moved = dict(point)
    families = [g.family for g in found.groups if isinstance(g.family, Rows | Shift | Opposite)]
    for _ in range(SWEEPS if families else 0):
        before = distance({name: target[name] for name in found.function.names}, moved)
        for family in families:
            name = family.parameter if isinstance(family, Rows) else family.source
            moved |= family.move(moved, family.nearest(moved, target[name] - moved[name]), 1.0)
        if not distance({name: target[name] for name in found.function.names}, moved) < 0.9 * before:
            break
    return moved


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
