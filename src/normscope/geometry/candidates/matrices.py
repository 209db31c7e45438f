r"""Matrix symmetries: ``x -> A x`` on a set of channels; weights that write them get ``A``, weights that read ``A^-1``.

``GL(d_h)`` of values and outputs and of queries and keys of each head, ``GL`` between two linear layers, rotations of a
residual stream that only RMSNorms read (of its centred part for LayerNorm), also behind gains, where the readers are
multiplied by ``diag(gamma) A^-1 diag(gamma)^-1``; ``GL`` of a linear bottleneck behind BatchNorms with fixed
statistics, ``y = g W x + t``, whose writers are multiplied by ``diag(g)^-1 A diag(g)`` while ``t = beta - g mean``
becomes ``A t``; and the complex numbers of each pair that rotary positions turn.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from normscope.geometry.candidates.gains import Gains
from normscope.geometry.channels.labels import FIXED, ChannelLabels, ChannelWeight, EntrywiseParameter, FixedBatchNorm
from normscope.geometry.flow import Point
from normscope.geometry.function import ModelFunction
from normscope.geometry.groups import SymmetryFamily, SymmetryGroup, velocity

Algebra = Literal["full", "skew", "centred"]
#: What the matrices of each algebra act on beside heads.
STREAMS: dict[Algebra, str] = {
    "full": "the channels between linear layers",
    "skew": "a residual stream that only RMSNorms read",
    "centred": "the centred residual stream that only LayerNorms read",
}
#: A parameter, where it holds the channels of a frame in its rows, and where in its columns: queries may share values.
Site = tuple[ChannelWeight | EntrywiseParameter, Tensor | None, tuple[Tensor, ...]]


@dataclass(frozen=True, eq=False)
class ChannelFrame:
    """A list of channels on which a matrix acts."""

    labels: tuple[int, ...]  #: the channels, each by the representative of its label, in order
    gains: tuple[tuple[str, Tensor], ...] = ()  #: gains by which they were multiplied (name and flat positions)
    dual: bool = False  #: ``A^-T`` acts instead of ``A``

    @functools.cached_property
    def place(self) -> dict[int, int]:
        """Return the position of each channel."""
        return {label: i for i, label in enumerate(self.labels)}


@dataclass(frozen=True, eq=False)
class MatrixFamily(SymmetryFamily):
    """The matrices of one algebra, acting on all frames of one space of channels."""

    labels: ChannelLabels  #: the labelled network
    frames: tuple[ChannelFrame, ...]  #: where it acts
    algebra: Algebra  #: all matrices, skew-symmetric ones, or skew-symmetric ones that map constant vectors to zero
    parameters: tuple[str, ...] = ()  #: what it moves

    @property
    def width(self) -> int:
        """Return the number of channels."""
        return len(self.frames[0].labels)

    @property
    def size(self) -> int:
        """Return the dimension of the algebra."""
        d = self.width
        return {"full": d * d, "skew": d * (d - 1) // 2, "centred": (d - 1) * (d - 2) // 2}[self.algebra]

    def matrix(self, coefficients: Tensor) -> Tensor:
        """Return the element of the algebra with these coefficients."""
        d = self.width
        if self.algebra == "full":
            return coefficients.reshape(d, d)
        n = d if self.algebra == "skew" else d - 1
        made = torch.zeros(n, n, dtype=torch.float64)
        made[tuple(torch.triu_indices(n, n, 1))] = coefficients
        made = made - made.mT
        if self.algebra == "centred":
            basis = centred_basis(d)
            made = basis @ made @ basis.mT
        return made

    def field(self, point: Point, coefficients: Tensor) -> dict[str, Tensor]:
        """Return the direction, which needs no exponential."""
        a, identity = self.matrix(coefficients), torch.eye(self.width, dtype=torch.float64)
        return velocity(lambda time: self.apply(point, identity + time * a))

    def move(self, point: Point, coefficients: Tensor, time: float | Tensor) -> dict[str, Tensor]:
        """Return the moved parameters."""
        return self.apply(point, torch.linalg.matrix_exp(self.matrix(coefficients) * time))

    def apply(self, point: Point, matrix: Tensor) -> dict[str, Tensor]:
        """Return the parameters after an invertible matrix acted on the space; ``matrix`` must be in the group."""
        found: dict[str, Tensor] = {}
        inverse = torch.linalg.inv(matrix)
        for frame in self.frames:
            left, right = (inverse.mT, matrix.mT) if frame.dual else (matrix, inverse)
            for name, index in frame.gains:
                gain = point[name].reshape(-1)[index] + self.labels.offsets.get(name, 0.0)
                left, right = gain[:, None] * left / gain, gain[:, None] * right / gain
            found |= self._changes(frame, left, right, {**point, **found})
        return found

    def written(self, point: Point) -> Tensor:
        """Return the weights that write the channels, one row per channel: tables and first layers, or else all."""
        parts = []
        first = any(isinstance(s, ChannelWeight) and r is not None and _is_first(s) for s, r, _ in self.sites[0])
        for site, rows, _ in self.sites[0]:
            if isinstance(site, EntrywiseParameter) and rows is not None:
                parts.append(point[site.parameter].reshape(-1, site.labels.shape[-1])[:, rows].mT)
            elif isinstance(site, ChannelWeight) and rows is not None and (_is_first(site) or not first):
                parts.append(site.matrix(point)[rows].flatten(1))
        return torch.cat(parts, 1)

    def through(self, point: Point) -> Tensor:
        """Return the product of the weights that read and write the channels, which no matrix changes."""
        sites = [(s.matrix(point), rows, columns) for s, rows, columns in self.sites[0] if isinstance(s, ChannelWeight)]
        written = [weight[rows].flatten(1) for weight, rows, _ in sites if rows is not None]
        read = [weight[:, places].transpose(0, 1).flatten(1) for weight, _, columns in sites for places in columns]
        return torch.cat(written, 1).mT @ torch.cat(read, 1)

    def _changes(self, frame: ChannelFrame, left: Tensor, right: Tensor, point: Point) -> dict[str, Tensor]:
        """Return the parameters changed by a matrix on a frame, given with its inverse."""
        found: dict[str, Tensor] = {}
        for frozen in self.entering(frame):
            found |= self._behind_statistics(frozen, frame, left, right, {**point, **found})
        for site, rows, columns in self.sites[self.frames.index(frame)]:
            name, value = site.parameter, point[site.parameter]
            if isinstance(site, EntrywiseParameter):
                assert rows is not None
                found[name] = value.index_copy(-1, rows, torch.einsum("ab,...b->...a", left, value[..., rows]))
            elif name not in found:
                weight = site.matrix(point)
                if rows is not None:
                    weight = weight.index_copy(0, rows, torch.einsum("ab,b...->a...", left, weight[rows]))
                for places in columns:
                    part = torch.einsum("oa...,ab->ob...", weight[:, places], right)
                    weight = weight.index_copy(1, places, part)
                flat = value.reshape(-1).index_copy(0, site.index.reshape(-1), weight.reshape(-1))
                found[name] = flat.reshape(value.shape)
        return found

    def entering(self, frame: ChannelFrame) -> list[FixedBatchNorm]:
        """Return the BatchNorms with fixed statistics that write into a frame."""
        return [f for f in self.labels.fixed_batch_norms if self.places(f.outputs, frame.place) is not None]

    def _behind_statistics(
        self, frozen: FixedBatchNorm, frame: ChannelFrame, left: Tensor, right: Tensor, point: Point
    ) -> dict[str, Tensor]:
        """Return the shift and the weights before a BatchNorm after a matrix acted on its outputs."""
        order = self.places(frozen.outputs, frame.place)
        assert order is not None
        gain = (point[frozen.gamma] * frozen.inverse)[order]
        mean = (point[frozen.gamma] * frozen.offset)[order]
        shift = point[frozen.beta]
        moved = shift.index_copy(0, order, left @ (shift[order] - mean) + mean)
        part = self.before(frozen, frame)
        inner, back = (m * gain / gain[:, None] for m in (left, right))
        return {frozen.beta: moved, **part._changes(part.frames[0], inner, back, point)}

    @functools.cached_property
    def sites(self) -> list[list[Site]]:
        """Return for each frame the parameters that hold all of its channels, and where: rows and columns."""
        gains = {name for frame in self.frames for name, _ in frame.gains}
        found: list[list[Site]] = []
        for frame in self.frames:
            here: list[Site] = []
            for site in self.labels.holding(frame.labels[0]):
                if isinstance(site, ChannelWeight):
                    rows, columns = self.places(site.outputs, frame.place), self._repeats(site.inputs[0], frame.place)
                    if rows is not None or columns:
                        here.append((site, rows, columns))
                    continue
                where = None if site.parameter in gains else self.places(site.line, frame.place)
                if where is not None:
                    here.append((site, where, ()))
            found.append(here)
        return found

    def moved(self) -> tuple[str, ...]:
        """Return the names of the parameters it moves."""
        found: list[str] = []
        for frame, sites in zip(self.frames, self.sites, strict=True):
            for frozen in self.entering(frame):
                found += [frozen.beta, *(site.parameter for site, _, _ in self.before(frozen, frame).sites[0])]
            found += [site.parameter for site, _, _ in sites]
        return tuple(dict.fromkeys(found))

    def before(self, frozen: FixedBatchNorm, frame: ChannelFrame) -> MatrixFamily:
        """Return the matrices on what a BatchNorm with fixed statistics reads, channels in the order of a frame."""
        order = self.places(frozen.outputs, frame.place)
        assert order is not None
        writers = ChannelFrame(self.labels.channels(frozen.inputs[order]))
        return replace(self, frames=(writers,), labels=replace(self.labels, fixed_batch_norms=[]))

    def _repeats(self, labels: Tensor, place: dict[int, int]) -> tuple[Tensor, ...]:
        """Return where the channels of a frame are, once for each time that all of them are read."""
        found: list[list[int]] = [[] for _ in place]
        for i, channel in enumerate(self.labels.channels(labels)):
            if channel in place:
                found[place[channel]].append(i)
        counts = {len(positions) for positions in found}
        return tuple(torch.tensor(found).mT) if len(counts) == 1 and counts != {0} else ()

    def places(self, labels: Tensor, place: dict[int, int]) -> Tensor | None:
        """Return where in a list of labels each channel of a frame is, or ``None`` if they are not all there."""
        found = self._repeats(labels, place)
        return found[0] if len(found) == 1 else None


def _is_first(product: ChannelWeight) -> bool:
    """Return whether a weight reads only inputs of the network or constants."""
    return bool((product.inputs == FIXED).all())


def centred_basis(d: int) -> Tensor:
    """Return an orthonormal basis of the vectors that sum to zero, as columns.

    >>> bool((centred_basis(3).sum(0).abs() < 1e-12).all())
    True
    """
    q, _ = torch.linalg.qr(torch.cat([torch.ones(d, 1), torch.eye(d)[:, : d - 1]], 1).double())
    return q[:, 1:]


def matrix_groups(function: ModelFunction, labels: ChannelLabels) -> list[SymmetryGroup]:
    """Return the candidates for matrices, larger algebras of a space before smaller ones."""
    unmixable = {labels.same.find(label) for label in labels.unmixable if label >= 0}
    found: list[SymmetryGroup] = []
    heads: set[int] = set()
    for rows in labels.averaged:
        for frame in map(labels.channels, rows):
            heads.update(frame)
            if _usable(frame, unmixable):
                found += _group(
                    MatrixFamily(labels, (ChannelFrame(frame),), "full"), "the values and outputs of one head"
                )
    for queries, keys in labels.attention:
        heads.update(labels.channels(torch.cat([queries, keys]).reshape(-1)))
        found += _queries_and_keys(labels, queries, keys, unmixable)
    return found + _streams(labels, unmixable, heads)


def _usable(frame: tuple[int, ...], unmixable: set[int]) -> bool:
    """Return whether a matrix may act on channels: distinct, not fixed, none of them unmixable."""
    return len(set(frame)) == len(frame) > 0 and 0 not in frame and not unmixable.intersection(frame)


def _queries_and_keys(labels: ChannelLabels, queries: Tensor, keys: Tensor, unmixable: set[int]) -> list[SymmetryGroup]:
    """Return the candidates for the heads of one attention layer; heads that share keys move together."""
    shared: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for q, k in zip(queries, keys, strict=True):
        shared.setdefault(labels.channels(k), []).append(labels.channels(q))
    found: list[SymmetryGroup] = []
    for key, several in shared.items():
        frames = (ChannelFrame(key, dual=True), *(ChannelFrame(q) for q in dict.fromkeys(several)))
        if all(_usable(frame.labels, unmixable) for frame in frames):
            found += _group(MatrixFamily(labels, frames, "full"), "the queries and keys of one head")
            continue
        found += _turns(labels, [key, *dict.fromkeys(several)])
        still = [i for i in range(len(key)) if not any(frame.labels[i] in unmixable for frame in frames)]
        part = tuple(replace(frame, labels=tuple(frame.labels[i] for i in still)) for frame in frames)
        if len(still) > 1 and all(_usable(frame.labels, unmixable) for frame in part):
            words = "the queries and keys of one head that rotary positions do not affect"
            found += _group(MatrixFamily(labels, part, "full"), words)
    return found


def _turns(labels: ChannelLabels, heads: list[tuple[int, ...]]) -> list[SymmetryGroup]:
    """Return the rotations of pairs of channels that rotary position embeddings mix."""
    rows: dict[int, list[int]] = {}
    for product in labels.products:
        for label in product.outputs.tolist():
            rows.setdefault(labels.same.find(label), []).append(label)
    found: list[SymmetryGroup] = []
    for column in range(len(heads[0])):
        pairs = [rows.get(head[column], []) for head in heads]
        if heads[0].index(heads[0][column]) == column and all(len(pair) == 2 for pair in pairs):
            family = RotaryTurn(labels, tuple((a, b) for a, b in pairs))
            words = "queries and keys of one head turned by one angle in a plane that rotary positions turn"
            found.append(SymmetryGroup("linear", family.parameters, 1, words, family))
    return found


@dataclass(frozen=True, eq=False)
class RotaryTurn(SymmetryFamily):
    """A rotation of pairs of rows by one angle."""

    labels: ChannelLabels  #: the labelled network
    pairs: tuple[tuple[int, int], ...]  #: the two labels of each pair

    @property
    def size(self) -> int:
        """Return the number of angles."""
        return 1

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the weights and biases of the pairs."""
        return tuple(dict.fromkeys(name for name, _ in self.rows()))

    def rows(self) -> list[tuple[str, Tensor]]:
        """Return the flat positions of both rows of every pair, by parameter."""
        found = []
        for a, b in self.pairs:
            for product in self.labels.products:
                outputs = product.outputs.tolist()
                if a in outputs and b in outputs:
                    rows = product.index[[outputs.index(a), outputs.index(b)]]
                    found.append((product.parameter, rows.reshape(2, -1)))
            for entry in self.labels.entries:
                line = entry.labels.reshape(-1).tolist()
                mine = [i for i, label in enumerate(line) if self.labels.same.find(label) == self.labels.same.find(a)]
                if len(mine) == 2:
                    found.append((entry.parameter, torch.tensor(mine)[:, None]))
        return found

    def move(self, point: Point, coefficients: Tensor, time: float | Tensor) -> dict[str, Tensor]:
        """Return the turned parameters."""
        angle = coefficients[0] * time
        c, s = angle.cos(), angle.sin()
        found: dict[str, Tensor] = {}
        for name, rows in self.rows():
            one, two = point[name].reshape(-1)[rows]
            flat = found.get(name, point[name]).reshape(-1)
            turned = torch.cat([c * one - s * two, s * one + c * two])
            found[name] = flat.index_copy(0, rows.reshape(-1), turned).reshape(point[name].shape)
        return found


def _streams(labels: ChannelLabels, unmixable: set[int], heads: set[int]) -> list[SymmetryGroup]:
    """Return the candidates for all channels between dense layers, such as residual streams."""
    find, gains = labels.same.find, Gains(labels, links=True)
    squared = {find(label) for label in labels.squared if label >= 0}
    summed = {find(label) for label in labels.summed if label >= 0}
    found: list[SymmetryGroup] = []
    seen: set[frozenset[int]] = set()
    sparse = {find(label) for p in labels.products if not p.full for label in p.outputs.tolist()}
    written = [p.outputs for p in labels.products if p.full]
    written += [
        f.outputs for f in labels.fixed_batch_norms if sparse.isdisjoint(find(label) for label in f.inputs.tolist())
    ]
    for outputs in written:
        start = labels.channels(outputs)
        key = frozenset(start)
        if key in seen or key & heads or not _usable(start, unmixable):
            continue
        seen.add(key)
        frames = tuple(ChannelFrame(path.channels, path.gains) for path in gains.paths(outputs))
        if any(not _usable(frame.labels, unmixable) for frame in frames):
            continue
        reached = {label for frame in frames for label in frame.labels}
        algebra: Algebra = "centred" if reached & summed else "skew" if reached & squared else "full"
        found += _group(MatrixFamily(labels, frames, algebra), STREAMS[algebra])
    return found


def _group(family: MatrixFamily, words: str) -> list[SymmetryGroup]:
    """Return one candidate, or nothing if it moves no parameter."""
    moved = family.moved()
    if family.size <= 0 or not moved:
        return []
    family = replace(family, parameters=moved)
    name = {"full": f"GL({family.width})", "skew": f"SO({family.width})", "centred": f"SO({family.width - 1})"}
    kind = "linear" if family.algebra == "full" else "rotation"
    return [SymmetryGroup(kind, family.parameters, family.size, f"{name[family.algebra]} on {words}", family)]
