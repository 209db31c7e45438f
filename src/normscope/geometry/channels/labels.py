r"""Channel labels and the linear equations between their unknown scales; the solutions are the diagonal symmetries."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

#: A parameter, flat positions in it, the label whose scale enters the scale of each of these entries, and its sign.
ScaleTerm = tuple[str, Tensor, Tensor, float]
#: The label of values that no symmetry changes: inputs and constants.
FIXED = 0
#: The label of entries that are always zero, which every scale leaves unchanged.
NOTHING = -1


class DisjointSets:
    """Disjoint sets of labels (union-find).

    >>> classes = DisjointSets(4)
    >>> classes.join(1, 3)
    >>> classes.find(3) == classes.find(1)
    True
    """

    def __init__(self, size: int = 1) -> None:
        self.parent = list(range(size))

    def grow(self, size: int) -> None:
        """Add labels up to a size, each in its own set."""
        self.parent.extend(range(len(self.parent), size))

    def find(self, label: int) -> int:
        """Return the representative of a label's set."""
        while self.parent[label] != label:
            self.parent[label] = self.parent[self.parent[label]]
            label = self.parent[label]
        return label

    def join(self, a: int, b: int) -> None:
        """Merge the sets of two labels; the smaller representative stays."""
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[max(a, b)] = min(a, b)

    def roots(self) -> np.ndarray:
        """Return the representative of every label."""
        return np.array([self.find(i) for i in range(len(self.parent))])


@dataclass(frozen=True, eq=False)
class EntrywiseParameter:
    """A parameter with one label per entry, by which the entry is scaled: biases, gains, tables."""

    parameter: str  #: its name
    labels: Tensor  #: one label per entry

    @property
    def line(self) -> Tensor:
        """Return the labels of the first row of a table, or of all entries of a vector."""
        return self.labels.reshape(-1, self.labels.shape[-1])[0] if self.labels.ndim else self.labels[None]


@dataclass(frozen=True, eq=False)
class ChannelWeight:
    """The weight of a linear layer or convolution: entry ``[o, i, ...]`` maps channel ``x_i`` to channel ``y_o``."""

    parameter: str  #: its name
    index: Tensor  #: flat positions in the parameter, outputs first, inputs second
    outputs: Tensor  #: labels of the outputs
    inputs: Tensor  #: labels of the inputs, for each output (one row if all outputs read the same)
    node: str = ""  #: the graph node that uses it
    full: bool = True  #: whether every output reads every input

    def matrix(self, point: Mapping[str, Tensor]) -> Tensor:
        """Return its entries at some parameters, outputs first, inputs second."""
        return point[self.parameter].reshape(-1)[self.index]

    def terms(self) -> Iterator[ScaleTerm]:
        """Yield the scales of its entries: those of the outputs minus those of the inputs."""
        tail = (1,) * (self.index.ndim - 2)
        yield self.parameter, self.index, self.outputs.reshape(-1, 1, *tail).expand(self.index.shape), 1.0
        yield self.parameter, self.index, self.inputs.reshape(*self.inputs.shape, *tail).expand(self.index.shape), -1.0


@dataclass(frozen=True, eq=False)
class FixedBatchNorm:
    """A BatchNorm with fixed statistics: ``y = gamma (x - mean)/s + beta`` channel by channel."""

    gamma: str  #: the name of its scale
    beta: str  #: the name of its shift
    offset: Tensor  #: ``mean/s``
    inverse: Tensor  #: ``1/s``
    inputs: Tensor  #: labels before it
    outputs: Tensor  #: labels after it


@dataclass(frozen=True, eq=False)
class ChannelGain:
    """A parameter that multiplies a tensor channel by channel: ``y = gamma x``."""

    parameter: str  #: its name
    index: Tensor  #: flat positions in the parameter
    inputs: Tensor  #: labels before
    outputs: Tensor  #: labels after


@dataclass(eq=False)
class ChannelLabels:
    """The labels of a network, the equations between their scales, and the parameters that read or write them.

    Labels of one channel in several tensors are *kin*: a permutation of units must move them together.
    """

    scale: DisjointSets = field(default_factory=DisjointSets)  #: sets of labels with one scale
    kin: DisjointSets = field(
        default_factory=DisjointSets
    )  #: sets of labels of one channel, also behind gains and normalizers
    #: sets of labels that are one channel of one tensor, or of tensors that are added
    same: DisjointSets = field(default_factory=DisjointSets)
    unscalable: set[int] = field(default_factory=lambda: {FIXED})  #: labels that no symmetry may scale
    rows: list[dict[int, float]] = field(default_factory=list)  #: further equations ``sum coefficient * x = 0``
    #: labels that an operation treats differently from their neighbours, or not linearly: no matrix may mix them
    unmixable: set[int] = field(default_factory=lambda: {FIXED})
    #: labels that enter a sum of squares, which rotations leave unchanged
    squared: set[int] = field(default_factory=set)
    summed: set[int] = field(default_factory=set)  #: labels whose mean over channels is taken
    entries: list[EntrywiseParameter] = field(default_factory=list)  #: parameters used entry by entry
    products: list[ChannelWeight] = field(default_factory=list)  #: parameters that multiply channels
    fixed_batch_norms: list[FixedBatchNorm] = field(default_factory=list)  #: BatchNorms with fixed statistics
    #: weights ``g v/||v||``: v as a weight, and the name of the gain g, which changes with the length of v
    weight_normalized: list[tuple[ChannelWeight, str]] = field(default_factory=list)
    gains: list[ChannelGain] = field(default_factory=list)  #: parameters that scale channel by channel
    #: labels of queries and of keys that are multiplied in attention, one row per head
    attention: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    #: labels of values that attention averages over positions, one row per head
    averaged: list[Tensor] = field(default_factory=list)
    #: labels before and after a division by one number for all channels
    links: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    #: labels of the outputs of LayerNorms before the affine part, which sum to zero, and the name of their bias
    centred: list[tuple[Tensor, str]] = field(default_factory=list)
    outputs: set[int] = field(default_factory=set)  #: labels of the network's outputs
    #: mean and variance of a BatchNorm by name, and the labels before it
    statistics: list[tuple[str, str, Tensor]] = field(default_factory=list)
    size: int = 1  #: how many labels there are
    #: the constant that the model adds to a parameter before using it, as in ``1 + gamma``
    offsets: dict[str, float] = field(default_factory=dict)
    #: parameters by the channels they read or write, filled by :meth:`holding`
    holders: dict[int, list[ChannelWeight | EntrywiseParameter]] = field(default_factory=dict)

    def holding(self, channel: int) -> list[ChannelWeight | EntrywiseParameter]:
        """Return the parameters that read or write a channel, given by its representative; products first.

        Call it only when the whole network is labelled.
        """
        if not self.holders:
            sites: list[ChannelWeight | EntrywiseParameter] = [*self.products, *self.entries]
            for site in sites:
                line = site.line if isinstance(site, EntrywiseParameter) else torch.cat([site.outputs, site.inputs[0]])
                for root in {self.same.find(label) for label in line.tolist() if label > 0}:
                    self.holders.setdefault(root, []).append(site)
        return self.holders.get(channel, [])

    def channels(self, labels: Tensor) -> tuple[int, ...]:
        """Return the channel of each label, given by its representative; zero entries count as fixed."""
        return tuple(self.same.find(max(label, 0)) for label in labels.tolist())

    def terms(self, names: Container[str]) -> Iterator[ScaleTerm]:
        """Yield the terms whose sum is the scale of every entry of some parameters, except fixed BatchNorms."""
        for entry in self.entries:
            if entry.parameter in names:
                positions = torch.arange(entry.labels.numel()).reshape(entry.labels.shape)
                yield entry.parameter, positions, entry.labels, 1.0
        done = {entry.parameter for entry in self.entries}
        seen: set[tuple[str, int]] = set()  # all uses of one weight have the same scales
        for product in [
            *(p for p in self.products if p.parameter not in done),
            *(p for p, _ in self.weight_normalized),
        ]:
            key = product.parameter, int(product.index.reshape(-1)[0])
            if product.parameter in names and key not in seen:
                seen.add(key)
                yield from product.terms()

    def new(self, *shape: int) -> Tensor:
        """Return new labels in a tensor of this shape."""
        count = int(np.prod(shape, dtype=np.int64))
        found = torch.arange(self.size, self.size + count).reshape(shape)
        self.size += count
        self.scale.grow(self.size)
        self.kin.grow(self.size)
        self.same.grow(self.size)
        return found

    def pairs(self, a: Tensor, b: Tensor) -> list[list[int]]:
        """Return the distinct pairs of labels at the same entries of two broadcast tensors, without zero entries."""
        a, b = _together(a, b)
        a, b = a.reshape(-1), b.reshape(-1)
        seen = (a >= 0) & (b >= 0)
        keys = torch.unique(a[seen] * self.size + b[seen])
        return torch.stack([keys // self.size, keys % self.size], 1).tolist()

    def tie(self, a: Tensor, b: Tensor) -> None:
        """Make labels at the same entries one channel: same scale, kin."""
        for i, j in self.pairs(a, b):
            self.scale.join(i, j)
            self.kin.join(i, j)
            self.same.join(i, j)

    def make_kin(self, a: Tensor, b: Tensor, *, fixed: bool = True) -> None:
        """Make labels at the same entries kin; pairs with a fixed label are skipped if ``fixed`` is false."""
        for i, j in self.pairs(a, b):
            if fixed or FIXED not in (i, j):
                self.kin.join(i, j)

    def merge(self, labels: Tensor, dims: tuple[int, ...]) -> None:
        """Give all labels along some axes the same scale, without making them kin."""
        for i, j in self.pairs(labels, self.first(labels, dims)):
            self.scale.join(i, j)

    @staticmethod
    def first(labels: Tensor, dims: tuple[int, ...]) -> Tensor:
        """Return the first labels along some axes, which are kept with length one."""
        for dim in dims:
            labels = labels.narrow(dim, 0, 1)
        return labels

    def collapsed(self, labels: Tensor, dims: tuple[int, ...]) -> Tensor:
        """Make all labels along some axes one channel, and return them with these axes of length one."""
        best = largest(labels, dims)
        self.tie(labels, best)
        return best

    def forbid_scaling(self, labels: Tensor) -> None:
        """Note that no symmetry may scale these labels."""
        self.unscalable.update(unique(labels))

    def fix(self, labels: Tensor) -> None:
        """Note that no symmetry may scale, mix or permute these labels."""
        self.forbid_scaling(labels)
        self.forbid_mixing(labels)
        for label in unique(labels):
            if label > 0:
                self.kin.join(FIXED, label)

    def forbid_mixing(self, *labels: Tensor) -> None:
        """Note that no matrix may mix these labels with others."""
        for tensor in labels:
            self.unmixable.update(unique(tensor))

    def equation(self, terms: list[tuple[int, float]]) -> None:
        """Add the equation ``sum coefficient * x_label = 0``."""
        row: dict[int, float] = {}
        for label, coefficient in terms:
            if label != FIXED:
                row[label] = row.get(label, 0.0) + coefficient
        self.rows.append(row)

    def _combination(self, *terms: tuple[int, float]) -> int:
        """Return a new label whose scale is a linear combination of others."""
        label = int(self.new(1))
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
        """Return labels of a power: their scales are multiplied by the exponent."""
        keys, where = torch.unique(_together(labels, labels)[0], return_inverse=True)
        made = [i if i <= FIXED else self._combination((i, exponent)) for i in keys.tolist()]
        return torch.tensor(made)[where].expand(labels.shape)

    def solve(self) -> tuple[np.ndarray, list[dict[int, float]]]:
        """Return the class of every label, and a basis of the solutions of all equations.

        A solution maps classes to their scales; zeros are left out.

        >>> labels = ChannelLabels()
        >>> q, k = labels.new(2).tolist()
        >>> labels.equation([(q, 1.0), (k, 1.0)])
        >>> labels.solve()[1]
        [{1: 1.0, 2: -1.0}]
        """
        roots = self.scale.roots()
        rows = [{int(roots[label]): 1.0} for label in self.unscalable if label >= 0]
        for row in sorted(self.rows, key=len):
            joined: dict[int, float] = {}
            for label, coefficient in row.items():
                _add(joined, coefficient, {int(roots[label]): 1.0})
            rows.append(joined)
        return roots, _null_space(np.unique(roots).tolist(), rows)


def largest(labels: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the largest label along some axes, kept with length one; so zero entries give way to others."""
    for dim in dims:
        repeats = labels.stride(dim) == 0 or labels.shape[dim] == 1
        labels = labels.narrow(dim, 0, 1) if repeats else labels.amax(dim, keepdim=True)
    return labels


def unique(labels: Tensor) -> list[int]:
    """Return the distinct labels in a tensor."""
    return torch.unique(_together(labels, labels)[0]).tolist()


def _together(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Broadcast two label tensors, and cut axes along which both are expanded to length one."""
    a, b = torch.broadcast_tensors(a, b)
    for dim in range(a.ndim):
        if a.stride(dim) == 0 == b.stride(dim) and a.shape[dim] > 1:
            a, b = a.narrow(dim, 0, 1), b.narrow(dim, 0, 1)
    return a, b


def _null_space(members: list[int], rows: list[dict[int, float]]) -> list[dict[int, float]]:
    """Return a basis of the null space of a sparse system, by elimination of the last label of each equation.

    The first labels, those of the weights, so stay free.
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
    """Add a multiple of another row in place, dropping entries that cancel up to rounding."""
    for label, c in other.items():
        total = row.get(label, 0.0) + factor * c
        if abs(total) > 1e-9:
            row[label] = total
        else:
            row.pop(label, None)
