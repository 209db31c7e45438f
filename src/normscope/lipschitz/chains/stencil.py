r"""Linear maps between images as stencils: :math:`y_o = \sum_d A_d x_{s o + d}`, with a matrix over channels per tap.

Convolutions, factors per channel, subsampling, padding and sums of channels are of this kind, and are recognised by
what they do, entry by entry.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normscope.lipschitz.segments import channel_scale
from normscope.operators.expression import Expr, LinearOp, reached

Offset = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Stencil:
    """A map from one image to another."""

    stride: Offset  #: the step s on both axes
    taps: Mapping[Offset, Tensor]  #: the matrices ``(outputs, inputs)`` by offset, in float64
    roundings: int = 0  #: how often an entry may have been rounded, relative to its own size

    @property
    def is_pointwise(self) -> bool:
        """Return whether every place depends on itself alone."""
        return self.stride == (1, 1) and set(self.taps) == {(0, 0)}

    def after(self, matrix: Tensor, roundings: int) -> Stencil:
        """Return the map followed by a matrix or a diagonal (one axis) over channels."""
        turned = {d: matrix[:, None] * a if matrix.ndim == 1 else matrix @ a for d, a in self.taps.items()}
        return Stencil(self.stride, turned, self.roundings + roundings)

    def plus(self, other: Stencil) -> Stencil | None:
        """Return the sum of two maps, or ``None`` if their strides differ; offsets of both are kept apart."""
        if self.stride != other.stride or set(self.taps) & set(other.taps):
            return None
        return Stencil(self.stride, {**self.taps, **other.taps}, max(self.roundings, other.roundings))


def identity(channels: int) -> Stencil:
    """Return the identity on images.

    >>> identity(3).is_pointwise
    True
    """
    return Stencil((1, 1), {(0, 0): torch.eye(channels, dtype=torch.float64)})


def is_image(expr: Expr) -> bool:
    """Return whether a tensor is one image: a batch of one, channels, two axes."""
    return len(expr.shape) == 4 and expr.shape[0] == 1


def stencils(expr: Expr) -> dict[int, Stencil] | None:
    """Return a tensor as stencils of the atoms it depends on, by their ids, or ``None`` if it is not of this kind."""
    found: dict[int, dict[int, Stencil]] = {}
    for e in reached([expr]):
        below = [found[i.id] for i in e.inputs if i.atoms]
        if e.op is None:
            found[e.id] = {e.id: identity(e.shape[1])} if is_image(e) else {}
        elif not e.atoms:
            continue
        elif not is_image(e):
            return None
        else:
            step = _added(below) if e.op.kind == "sum" else _one(e.op, e, below[0]) if len(below) == 1 else None
            if step is None:
                return None
            found[e.id] = step
    return found.get(expr.id)


def _added(parts: list[dict[int, Stencil]]) -> dict[int, Stencil] | None:
    total: dict[int, Stencil] = {}
    for part in parts:
        for key, stencil in part.items():
            joined = stencil if key not in total else total[key].plus(stencil)
            if joined is None:
                return None
            total[key] = joined
    return total


def _one(op: LinearOp, e: Expr, below: dict[int, Stencil]) -> dict[int, Stencil] | None:
    """Return one operation after maps of atoms."""
    source = e.inputs[0]
    if not is_image(source):
        return None
    if op.kind == "diagonal":
        scale = channel_scale(op.data["scale"], e.shape, 1)
        return None if scale is None else {key: s.after(scale, 10) for key, s in below.items()}
    if op.kind == "convolution":
        return _convolved(op, below)
    if op.kind in ("isometry", "embedding") or (op.kind == "contraction" and op.data.get("coordinate")):
        chosen = _chosen(op, source, e)
        if chosen is None:
            return None
        (down, right), matrix = chosen
        turned = {key: s.after(matrix, 0) for key, s in below.items()}
        return {key: replace(s, stride=(down * s.stride[0], right * s.stride[1])) for key, s in turned.items()}
    return None


def _is_diagonal(matrix: Tensor) -> bool:
    square = matrix.shape[0] == matrix.shape[1]
    return square and not bool((matrix - torch.diag(matrix.diagonal())).any())


def _convolved(op: LinearOp, below: dict[int, Stencil]) -> dict[int, Stencil] | None:
    """Return a convolution with zero padding after maps that act place by place (elsewhere padding would matter)."""
    data = op.data
    weight = data["weight"].to(torch.float64)
    if weight.ndim != 4 or data["transposed"]:
        return None
    weight = _ungrouped(weight, int(data["groups"]))
    if not all(s.is_pointwise and _is_diagonal(s.taps[0, 0]) for s in below.values()):
        return None  # a matrix over channels first: its products with the kernel would be rounded sums
    starts = [pad[0] for pad in data["padding"]]
    found = {}
    for key, s in below.items():
        before = s.taps[0, 0].diagonal()
        taps = {
            (i * data["dilation"][0] - starts[0], j * data["dilation"][1] - starts[1]): weight[:, :, i, j] * before
            for i, j in itertools.product(range(weight.shape[2]), range(weight.shape[3]))
        }
        found[key] = Stencil(tuple(data["stride"]), taps, s.roundings + 1)
    return found


def _ungrouped(weight: Tensor, groups: int) -> Tensor:
    """Return the kernel over all channels of a convolution in groups.

    >>> _ungrouped(torch.ones(2, 1, 1, 1), 2)[:, :, 0, 0].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if groups == 1:
        return weight
    rows, columns = len(weight) // groups, weight.shape[1]
    whole = weight.new_zeros(len(weight), columns * groups, *weight.shape[2:])
    for g in range(groups):
        own = slice(g * rows, (g + 1) * rows)
        whole[own, g * columns : (g + 1) * columns] = weight[own]
    return whole


def _chosen(op: LinearOp, source: Expr, e: Expr) -> tuple[Offset, Tensor] | None:
    """Return the stride and the matrix over channels of an operation that copies entries, or ``None``.

    The first entry of each channel shows where the channel comes from; the others follow from it and are all compared.
    """
    count = source.numel
    numbers = torch.arange(1, count + 1, dtype=torch.float64).reshape(source.shape)
    taken = op.apply(numbers).to(torch.int64)[0]
    height, width = source.shape[2:]
    stride = (max(1, round(height / e.shape[2])), max(1, round(width / e.shape[3])))
    rows, columns = torch.arange(e.shape[2]) * stride[0], torch.arange(e.shape[3]) * stride[1]
    if int(rows.max()) >= height or int(columns.max()) >= width:
        return None
    matrix = torch.zeros(e.shape[1], source.shape[1], dtype=torch.float64)
    for channel in range(e.shape[1]):
        first = int(taken[channel, 0, 0])
        if first == 0:
            meant = torch.zeros_like(taken[channel])
        else:
            origin = (first - 1) // (height * width)
            matrix[channel, origin] = 1.0
            meant = 1 + origin * height * width + rows[:, None] * width + columns
        if not bool((taken[channel] == meant).all()):
            return None
    return stride, matrix
