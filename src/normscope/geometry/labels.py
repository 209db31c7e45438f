r"""Unknown scales of channels and what ties them: the linear system whose solutions are the diagonal symmetries.

Every channel of every tensor has a label. A symmetry multiplies the channel with label ``l`` by ``exp(t x_l)``; each
operation of the network gives linear equations between the ``x_l``. Labels of one channel seen in several tensors are
*kin*: a permutation of units must move them together.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

#: A parameter, flat positions in it, labels whose scale is part of the scale there, and its sign.
Term = tuple[str, Tensor, Tensor, float]
#: The label of what no symmetry changes: inputs and constants.
FIXED = 0
#: The label of an entry that is always zero, which every scale leaves as it is.
NOTHING = -1


class Classes:
    """Disjoint sets of labels.

    >>> classes = Classes(4)
    >>> classes.join(1, 3)
    >>> classes.find(3) == classes.find(1)
    True
    """

    def __init__(self, size: int = 1) -> None:
        self.parent = list(range(size))

    def grow(self, size: int) -> None:
        """Add labels up to a size, each in a set of its own."""
        self.parent.extend(range(len(self.parent), size))

    def find(self, label: int) -> int:
        """Return the representative of a label's set."""
        while self.parent[label] != label:
            self.parent[label] = self.parent[self.parent[label]]
            label = self.parent[label]
        return label

    def join(self, a: int, b: int) -> None:
        """Make two sets one; the smaller representative stays."""
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[max(a, b)] = min(a, b)

    def roots(self) -> np.ndarray:
        """Return the representative of every label."""
        return np.array([self.find(i) for i in range(len(self.parent))])


@dataclass(frozen=True, eq=False)
class Entry:
    """A parameter used entry by entry, so that the scale of an entry is that of its label: biases, gains, tables."""

    parameter: str  #: its name
    labels: Tensor  #: one label per entry

    @property
    def line(self) -> Tensor:
        """Return the labels of the first row of a table, of all entries of a vector."""
        return self.labels.reshape(-1, self.labels.shape[-1])[0] if self.labels.ndim else self.labels[None]


@dataclass(frozen=True, eq=False)
class Product:
    """A parameter that multiplies channels: entry ``[o, i, ...]`` takes channel ``x_i`` into channel ``y_o``."""

    parameter: str  #: its name
    index: Tensor  #: flat positions in the parameter, outputs first, inputs second
    outputs: Tensor  #: labels of the outputs
    inputs: Tensor  #: labels of the inputs, for each output (one row if all outputs read the same)
    node: str = ""  #: the graph node that uses it
    full: bool = True  #: whether every output reads every input

    def terms(self) -> Iterator[Term]:
        """Yield the scales of its entries: those of the outputs, less those of the inputs."""
        tail = (1,) * (self.index.ndim - 2)
        yield self.parameter, self.index, self.outputs.reshape(-1, 1, *tail).expand(self.index.shape), 1.0
        yield self.parameter, self.index, self.inputs.reshape(*self.inputs.shape, *tail).expand(self.index.shape), -1.0


@dataclass(frozen=True, eq=False)
class Frozen:
    """A BatchNorm with fixed statistics: ``y = gamma (x - mean)/s + beta`` channel by channel."""

    gamma: str  #: the name of its scale
    beta: str  #: the name of its shift
    offset: Tensor  #: ``mean/s``
    inverse: Tensor  #: ``1/s``
    inputs: Tensor  #: labels before it
    outputs: Tensor  #: labels after it


@dataclass(frozen=True, eq=False)
class Gain:
    """A parameter that multiplies a tensor channel by channel: ``y = gamma x``."""

    parameter: str  #: its name
    index: Tensor  #: flat positions in the parameter
    inputs: Tensor  #: labels before
    outputs: Tensor  #: labels after


@dataclass(eq=False)
class Labels:
    """Labels, their equations, and where parameters meet them."""

    scale: Classes = field(default_factory=Classes)  #: sets of labels with one scale
    kin: Classes = field(default_factory=Classes)  #: sets of labels of one channel, also behind gains and normalizers
    #: sets of labels that are one channel of one tensor, or of tensors that are added
    same: Classes = field(default_factory=Classes)
    zero: set[int] = field(default_factory=lambda: {FIXED})  #: labels whose scale is zero
    rows: list[dict[int, float]] = field(default_factory=list)  #: further equations ``sum coefficient * x = 0``
    #: labels that something treats otherwise than its neighbours, or not linearly
    bent: set[int] = field(default_factory=lambda: {FIXED})
    #: labels that meet in a sum of squares, which rotations leave as it is
    squared: set[int] = field(default_factory=set)
    summed: set[int] = field(default_factory=set)  #: labels whose mean over channels is taken
    entries: list[Entry] = field(default_factory=list)  #: parameters used entry by entry
    products: list[Product] = field(default_factory=list)  #: parameters that multiply channels
    frozen: list[Frozen] = field(default_factory=list)  #: BatchNorms with fixed statistics
    #: weights ``g v/||v||`` as if v were the weight, and the name of g, which follows so that they are
    lifted: list[tuple[Product, str]] = field(default_factory=list)
    gains: list[Gain] = field(default_factory=list)  #: parameters that scale channel by channel
    #: queries and keys that meet in inner products, one row per head
    attention: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    #: labels that are averaged over positions together, one row per head
    averaged: list[Tensor] = field(default_factory=list)
    #: labels before and after a division by one number for all channels
    links: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    #: what LayerNorms give before their scale, values that sum to zero, and the name of their shift
    centred: list[tuple[Tensor, str]] = field(default_factory=list)
    outputs: set[int] = field(default_factory=set)  #: labels of the network's outputs
    #: mean and variance of a BatchNorm by name, and the labels before it
    statistics: list[tuple[str, str, Tensor]] = field(default_factory=list)
    size: int = 1  #: how many labels there are
    #: a number that is added to a parameter wherever its entries are used
    offsets: dict[str, float] = field(default_factory=dict)
    #: parameters by the channels they read or write, once :meth:`holding` was asked
    holders: dict[int, list[Product | Entry]] = field(default_factory=dict)

    def holding(self, channel: int) -> list[Product | Entry]:
        """Return the parameters that read or write a channel, given by its representative; products first.

        Ask when all labels are made.
        """
        if not self.holders:
            sites: list[Product | Entry] = [*self.products, *self.entries]
            for site in sites:
                line = site.line if isinstance(site, Entry) else torch.cat([site.outputs, site.inputs[0]])
                for root in {self.same.find(label) for label in line.tolist() if label > 0}:
                    self.holders.setdefault(root, []).append(site)
        return self.holders.get(channel, [])

    def channels(self, labels: Tensor) -> tuple[int, ...]:
        """Return the channel that each label of a row stands for, by its representative; empty entries are fixed."""
        return tuple(self.same.find(max(label, 0)) for label in labels.tolist())

    def terms(self, names: Container[str]) -> Iterator[Term]:
        """Yield what the scale of every entry of some parameters is a sum of, fixed statistics aside."""
        for entry in self.entries:
            if entry.parameter in names:
                positions = torch.arange(entry.labels.numel()).reshape(entry.labels.shape)
                yield entry.parameter, positions, entry.labels, 1.0
        done = {entry.parameter for entry in self.entries}
        seen: set[tuple[str, int]] = set()  # several uses of one weight have the same scales
        for product in [*(p for p in self.products if p.parameter not in done), *(p for p, _ in self.lifted)]:
            key = product.parameter, int(product.index.reshape(-1)[0])
            if product.parameter in names and key not in seen:
                seen.add(key)
                yield from product.terms()

    def fresh(self, *shape: int) -> Tensor:
        """Return new labels."""
        count = int(np.prod(shape, dtype=np.int64))
        found = torch.arange(self.size, self.size + count).reshape(shape)
        self.size += count
        self.scale.grow(self.size)
        self.kin.grow(self.size)
        self.same.grow(self.size)
        return found

    def pairs(self, a: Tensor, b: Tensor) -> list[list[int]]:
        """Return the pairs of labels that meet in two tensors that broadcast, each once, without empty entries."""
        a, b = _together(a, b)
        a, b = a.reshape(-1), b.reshape(-1)
        seen = (a >= 0) & (b >= 0)
        keys = torch.unique(a[seen] * self.size + b[seen])
        return torch.stack([keys // self.size, keys % self.size], 1).tolist()

    def tie(self, a: Tensor, b: Tensor) -> None:
        """Give labels that meet one scale, and make them kin."""
        for i, j in self.pairs(a, b):
            self.scale.join(i, j)
            self.kin.join(i, j)
            self.same.join(i, j)

    def relate(self, a: Tensor, b: Tensor, *, fixed: bool = True) -> None:
        """Make labels that meet kin, unless one is fixed and ``fixed`` says that this is to be ignored."""
        for i, j in self.pairs(a, b):
            if fixed or FIXED not in (i, j):
                self.kin.join(i, j)

    def merge(self, labels: Tensor, dims: tuple[int, ...]) -> None:
        """Give all labels along some axes one scale, without making them kin."""
        for i, j in self.pairs(labels, self.first(labels, dims)):
            self.scale.join(i, j)

    @staticmethod
    def first(labels: Tensor, dims: tuple[int, ...]) -> Tensor:
        """Return the labels at the beginning of some axes, which keep the length one."""
        for dim in dims:
            labels = labels.narrow(dim, 0, 1)
        return labels

    def along(self, labels: Tensor, dims: tuple[int, ...]) -> Tensor:
        """Return the labels with some axes, along which they are made one, of length one."""
        best = largest(labels, dims)
        self.tie(labels, best)
        return best

    def stop(self, labels: Tensor) -> None:
        """Say that no scale of these labels is a symmetry."""
        self.zero.update(unique(labels))

    def fix(self, labels: Tensor) -> None:
        """Say that nothing may be done to these labels."""
        self.stop(labels)
        self.bend(labels)
        for label in unique(labels):
            if label > 0:
                self.kin.join(FIXED, label)

    def bend(self, labels: Tensor) -> None:
        """Say that no mixing of these labels is a symmetry."""
        self.bent.update(unique(labels))

    def equation(self, terms: list[tuple[int, float]]) -> None:
        """Add an equation."""
        row: dict[int, float] = {}
        for label, coefficient in terms:
            if label != FIXED:
                row[label] = row.get(label, 0.0) + coefficient
        self.rows.append(row)

    def _combination(self, *terms: tuple[int, float]) -> int:
        """Return a new label whose scale is a combination of those of others."""
        label = int(self.fresh(1))
        self.equation([*terms, (label, -1.0)])
        return label

    def combine(self, a: Tensor, b: Tensor, sign: float = 1.0) -> Tensor:
        """Return labels of a product (``sign`` 1) or quotient (-1): their scales are sums or differences."""
        shape = torch.broadcast_shapes(a.shape, b.shape)
        a, b = _together(a, b)
        size = self.size + 1
        keys, where = torch.unique((a - NOTHING) * size + (b - NOTHING), return_inverse=True)
        made = []
        for i, j in zip((keys // size + NOTHING).tolist(), (keys % size + NOTHING).tolist(), strict=True):
            if i == NOTHING or j == NOTHING:
                made.append(NOTHING)
            elif j == FIXED:
                made.append(i)
            elif i == FIXED and sign > 0:
                made.append(j)
            else:
                made.append(self._combination((i, 1.0), (j, sign)))
        return torch.tensor(made)[where].expand(shape)

    def power(self, labels: Tensor, exponent: float) -> Tensor:
        """Return labels whose scale is a multiple of that of others."""
        keys, where = torch.unique(_together(labels, labels)[0], return_inverse=True)
        made = [i if i <= FIXED else self._combination((i, exponent)) for i in keys.tolist()]
        return torch.tensor(made)[where].expand(labels.shape)

    def solve(self) -> tuple[np.ndarray, list[dict[int, float]]]:
        """Return the class of every label, and a basis of all scales that satisfy the equations.

        A solution is the scale of each class that is not zero.

        >>> labels = Labels()
        >>> q, k = labels.fresh(2).tolist()
        >>> labels.equation([(q, 1.0), (k, 1.0)])
        >>> labels.solve()[1]
        [{1: 1.0, 2: -1.0}]
        """
        roots = self.scale.roots()
        rows = [{int(roots[label]): 1.0} for label in self.zero if label >= 0]
        for row in sorted(self.rows, key=len):
            joined: dict[int, float] = {}
            for label, coefficient in row.items():
                _add(joined, coefficient, {int(roots[label]): 1.0})
            rows.append(joined)
        return roots, _null_space(np.unique(roots).tolist(), rows)


def largest(labels: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the largest label along some axes, which keep the length one; so empty entries give way."""
    for dim in dims:
        repeats = labels.stride(dim) == 0 or labels.shape[dim] == 1
        labels = labels.narrow(dim, 0, 1) if repeats else labels.amax(dim, keepdim=True)
    return labels


def unique(labels: Tensor) -> list[int]:
    """Return the labels in a tensor, each once."""
    return torch.unique(_together(labels, labels)[0]).tolist()


def _together(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return two label tensors broadcast, axes along which both repeat themselves cut to the length one."""
    a, b = torch.broadcast_tensors(a, b)
    for dim in range(a.ndim):
        if a.stride(dim) == 0 == b.stride(dim) and a.shape[dim] > 1:
            a, b = a.narrow(dim, 0, 1), b.narrow(dim, 0, 1)
    return a, b


def _null_space(members: list[int], rows: list[dict[int, float]]) -> list[dict[int, float]]:
    """Return a basis of the solutions of a system, by elimination of the last label of each equation.

    So the first labels, which are the weights', stay free.
    """
    pivots: dict[int, dict[int, float]] = {}  # a label, and what it is in terms of earlier ones
    for row in rows:
        left = dict(row)
        while left:
            last = max(left)
            factor = left.pop(last)
            if last not in pivots:
                pivots[last] = {label: -c / factor for label, c in left.items()}
                break
            _add(left, factor, pivots[last])
    for last in sorted(pivots):  # those before it are free labels alone already
        found: dict[int, float] = {}
        for label, c in pivots[last].items():
            _add(found, c, pivots.get(label, {label: 1.0}))
        pivots[last] = found
    basis = {label: {label: 1.0} for label in members if label not in pivots}
    for last in sorted(pivots):
        for label, c in pivots[last].items():
            basis[label][last] = c
    return list(basis.values())


def _add(row: dict[int, float], factor: float, other: dict[int, float]) -> None:
    """Add a multiple of another row, without what becomes zero but for rounding."""
    for label, c in other.items():
        total = row.get(label, 0.0) + factor * c
        if abs(total) > 1e-9:
            row[label] = total
        else:
            row.pop(label, None)
