"""Permutations of units and attention heads: discrete symmetries that move whole rows, columns and entries."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.errors import listed
from normscope.geometry.channels.labels import ChannelLabels
from normscope.geometry.flow import Point
from normscope.geometry.function import ModelFunction
from normscope.geometry.groups import Certificate, SymmetryGroup

#: For each parameter and axis, the class of labels at each place.
Places = dict[str, list[tuple[int, Tensor]]]
#: Largest relative change of the outputs due to a different order of summation, in float64.
REORDERED = 1e-10


@dataclass(frozen=True, eq=False)
class ExchangeableUnits:
    """Units or heads that a permutation may exchange."""

    #: each unit as the classes of labels that move together: one for a neuron or channel, all of a head's for a head
    units: tuple[tuple[int, ...], ...]
    parameters: tuple[str, ...] = ()  #: the names of what moves
    heads: bool = False  #: whether the units are heads


def permuted(places: Places, point: Point, moved: Mapping[int, int]) -> dict[str, Tensor]:
    """Return the parameters after exchanging classes: what stood at ``moved[c]`` comes to stand at ``c``."""
    found: dict[str, Tensor] = {}
    for name, axes in places.items():
        for axis, classes in axes if name in point else ():
            order = _order(classes, moved)
            if order is not None:
                found[name] = found.get(name, point[name]).index_select(axis, order)
    return found


def _order(classes: Tensor, moved: Mapping[int, int]) -> Tensor | None:
    """Return the permutation of one axis after exchanging classes, or ``None`` if nothing moves."""
    row = classes.tolist()
    if not any(c in moved for c in row):
        return None
    where: dict[int, list[int]] = defaultdict(list)
    for i, c in enumerate(row):
        where[c].append(i)
    sources = {c: iter(where.get(moved.get(c, c), ())) for c in where}
    order = [next(sources[c], -1) for c in row]
    return None if -1 in order else torch.tensor(order)


def places_of(function: ModelFunction, labels: ChannelLabels) -> Places:
    """Return the positions of each class of kin labels in parameters and BatchNorm statistics."""
    kin = torch.tensor([labels.kin.find(i) for i in range(labels.size)])
    axes: Places = {}
    for product in labels.products:
        if product.parameter in axes:
            continue
        shape = function.tensors[product.parameter].shape
        if product.index.shape[0] == shape[0] and product.index.shape[1:2] == shape[1:2]:
            one, two = 0, 1
        elif product.index.ndim == 2 and product.index.mT.shape == shape:
            one, two = 1, 0
        else:
            continue
        found = [(one, kin[product.outputs])]
        if product.inputs.shape[0] == 1:
            found.append((two, kin[product.inputs[0].clamp_min(0)]))
        axes[product.parameter] = found
    for normalized, gain in labels.weight_normalized:
        reads = [(1, kin[normalized.inputs[0].clamp_min(0)])] if normalized.inputs.shape[0] == 1 else []
        axes[normalized.parameter] = [(0, kin[normalized.outputs]), *reads]
        axes[gain] = [(0, kin[normalized.outputs])]
    for entry in labels.entries:
        if entry.parameter not in axes and entry.labels.ndim:
            first = entry.labels.ndim > 2 and entry.labels.shape[0] > 1
            line = entry.labels.flatten(1)[:, 0] if first else entry.line
            axes[entry.parameter] = [(0 if first else entry.labels.ndim - 1, kin[line.clamp_min(0)])]
    for frozen in labels.fixed_batch_norms:
        for name in (frozen.gamma, frozen.beta):
            axes.setdefault(name, [(0, kin[frozen.outputs])])
    for mean, variance, inputs in labels.statistics:
        for name in (mean, variance):
            axes.setdefault(name, [(0, kin[inputs.clamp_min(0)])])
    return axes


def spaces_of(labels: ChannelLabels, places: Places) -> list[ExchangeableUnits]:
    """Return the candidates: classes that occur along the same axes of the same parameters, and heads."""
    heads = _heads(labels)
    inside = {c for unit in heads for c in unit}
    where: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for name, axes in places.items():
        for axis, classes in axes:
            for c in classes.unique().tolist():
                where[c].add((name, axis))
    fixed = labels.kin.find(0)
    single = [(c,) for c in where if c != fixed and c not in inside]
    spaces = []
    for units, are_heads in ((single, False), (heads, True)):
        alike: dict[frozenset[tuple[str, int]], list[tuple[int, ...]]] = defaultdict(list)
        for unit in units:
            alike[frozenset(place for c in unit for place in where[c])].append(unit)
        for key, group in alike.items():
            names = tuple(sorted({name for name, _ in key}))
            spaces.append(ExchangeableUnits(tuple(group if are_heads else sorted(group)), names, are_heads))
    return [space for space in spaces if len(space.units) > 1 and space.parameters]


def _heads(labels: ChannelLabels) -> list[tuple[int, ...]]:
    """Return the classes of each head: queries and keys, and the values that are averaged with them, in order."""
    found: list[tuple[int, ...]] = []
    find = labels.kin.find
    for (queries, _), averaged in zip(labels.attention, labels.averaged, strict=False):
        heads, values = (
            dict.fromkeys(tuple(dict.fromkeys(find(max(label, 0)) for label in row)) for row in rows.tolist())
            for rows in (queries, averaged)
        )
        if len(values) == len(heads):
            found += [(*q, *v) for q, v in zip(heads, values, strict=True)]
    return found


def permutation(space: ExchangeableUnits, order: Sequence[int]) -> dict[int, int]:
    """Return which class comes to stand where, for an order of the units."""
    return {a: b for i, j in enumerate(order) for a, b in zip(space.units[i], space.units[j], strict=True) if a != b}


def permutation_groups(function: ModelFunction, labels: ChannelLabels, seed: int = 0) -> list[SymmetryGroup]:
    """Return the verified permutations."""
    places = places_of(function, labels)
    point: Point = {**function.tensors}
    generator = torch.Generator().manual_seed(seed)
    found: list[SymmetryGroup] = []
    for space in spaces_of(labels, places):
        order = torch.randperm(len(space.units), generator=generator).tolist()
        order = order if order != sorted(order) else order[::-1]
        moved = permuted(places, point, permutation(space, order))
        change = function.change(moved) if moved else math.inf
        if change <= REORDERED:
            found.append(_group(space, change))
    return found


def _group(space: ExchangeableUnits, change: float) -> SymmetryGroup:
    """Return the group of one space."""
    count = len(space.units)
    what = "heads" if space.heads else "units"
    digits = round(math.lgamma(count + 1) / math.log(10), 1)
    words = f"{count} {what} may be exchanged: {listed(space.parameters, 4)}"
    details = {"units": count, "order_log10": digits}
    return SymmetryGroup("permutation", space.parameters, 0, words, None, Certificate(0.0, change), details)
