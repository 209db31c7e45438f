"""Views of one memory: how a value written through a view gets back into the tensor it is a view of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """Where the entries of a strided tensor lie in its memory.

    The entry with coordinates ``i`` lies at ``offset + sum_k i_k * stride_k``, counted in entries of ``dtype``.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Geometry:
        """Return the geometry of a tensor.

        >>> Geometry.of(torch.zeros(2, 3).t()).stride
        (1, 3)
        """
        return cls(tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype)

    def positions(self) -> Tensor:
        """Return the position in memory of every entry, in the tensor's own shape."""
        where = torch.full(self.shape, self.offset, dtype=torch.int64)
        for axis, (size, stride) in enumerate(zip(self.shape, self.stride, strict=True)):
            ones = [1] * len(self.shape)
            ones[axis] = size
            where += (torch.arange(size, dtype=torch.int64) * stride).view(ones)
        return where


@dataclass(frozen=True)
class WriteBack:
    """How to write a view's value ``v`` into its parent ``p``.

    Attributes:
        kind: ``none`` (nothing to write), ``reshape`` (``v`` in the parent's shape), ``permute`` (axes of ``v``),
            ``slice`` (axis, start, end, step), ``select`` (axis, index), or ``put`` (the positions in ``index``).
        numbers: the numbers named above.
        index: for ``put``, the place of every entry of ``v`` in the flattened parent.
    """

    kind: str
    numbers: tuple[int, ...] = ()
    index: Tensor | None = None

    def apply(self, parent: Tensor, value: Tensor) -> Tensor:
        """Return the parent with the value written into it."""
        if self.kind == "none":
            return parent
        if self.kind == "reshape":
            return value.reshape(parent.shape)
        if self.kind == "permute":
            return value.permute(self.numbers)
        if self.kind == "slice":
            return torch.slice_scatter(parent, value, *self.numbers)
        if self.kind == "select":
            return torch.select_scatter(parent, value, *self.numbers)
        return parent.clone().put_(self.index if self.index is not None else torch.empty(0).long(), value)


def place(child: Geometry, parent: Geometry) -> Tensor | None:
    """Return for every entry of a view its place in the flattened parent.

    Args:
        child: the geometry of the view.
        parent: the geometry of another tensor on the same memory.

    Returns:
        Places in the shape of the view; ``None`` if they differ in dtype, if the parent's entries overlap, or if an
        entry of the view lies outside the parent.

    >>> x = torch.zeros(2, 3)
    >>> place(Geometry.of(x[:, 1]), Geometry.of(x)).tolist()
    [1, 4]
    """
    if child.dtype != parent.dtype:
        return None
    known, order = parent.positions().reshape(-1).sort()
    if bool((known[1:] == known[:-1]).any()):
        return None
    wanted = child.positions()
    if known.numel() == 0 or wanted.numel() == 0:
        return wanted if wanted.numel() == 0 else None
    found = torch.searchsorted(known, wanted).clamp(max=known.numel() - 1)
    if not torch.equal(known[found], wanted):
        return None
    return order[found]


def write_back(child: Geometry, parent: Geometry) -> WriteBack | None:
    """Return the simplest operation that writes a view's value into the tensor it is a view of.

    Each candidate is read off the places of a few entries and then checked against the places of all.

    Args:
        child: the geometry of the view.
        parent: the geometry of the tensor it is a view of.

    Returns:
        The operation, or ``None`` if :func:`place` does not know.

    >>> x = torch.zeros(4, 3)
    >>> write_back(Geometry.of(x[1:3]), Geometry.of(x))
    WriteBack(kind='slice', numbers=(0, 1, 3, 1), index=None)
    """
    index = place(child, parent)
    if index is None:
        return None
    if index.numel() == 0:
        return WriteBack("none")
    grid = torch.arange(math.prod(parent.shape)).view(parent.shape)
    if torch.equal(index.reshape(-1), grid.reshape(-1)):
        return WriteBack("reshape")
    return _permute(index, grid) or _slice(index, grid) or _select(index, grid) or WriteBack("put", index=index)


def _steps(index: Tensor) -> list[int]:
    """Return by how much the place grows along each axis (0 for an axis of size one)."""
    flat = index.contiguous()
    first = flat.view(-1)[0]
    return [int(flat.select(axis, 1).reshape(-1)[0] - first) if size > 1 else 0 for axis, size in enumerate(flat.shape)]


def _permute(index: Tensor, grid: Tensor) -> WriteBack | None:
    """Recognise a permutation of the axes."""
    if index.ndim != grid.ndim or index.numel() != grid.numel():
        return None
    free = list(range(grid.ndim))
    axes: list[int] = []
    for size, step in zip(index.shape, _steps(index), strict=True):
        fits = [a for a in free if grid.shape[a] == size and (size == 1 or grid.stride(a) == step)]
        if not fits:
            return None
        axes.append(fits[0])
        free.remove(fits[0])
    if not torch.equal(grid.permute(axes), index):
        return None
    return WriteBack("permute", tuple(axes.index(a) for a in range(grid.ndim)))


def _slice(index: Tensor, grid: Tensor) -> WriteBack | None:
    """Recognise every n-th entry of a range along one axis."""
    if index.ndim != grid.ndim:
        return None
    start = _coordinates(int(index.reshape(-1)[0]), grid)
    for axis, (size, step) in enumerate(zip(index.shape, _steps(index), strict=True)):
        stride = max(1, step // max(1, grid.stride(axis)))
        end = start[axis] + (size - 1) * stride + 1
        if torch.equal(grid[(slice(None),) * axis + (slice(start[axis], end, stride),)], index):
            return WriteBack("slice", (axis, start[axis], end, stride))
    return None


def _select(index: Tensor, grid: Tensor) -> WriteBack | None:
    """Recognise one entry along one axis."""
    if index.ndim != grid.ndim - 1:
        return None
    start = _coordinates(int(index.reshape(-1)[0]), grid)
    for axis in range(grid.ndim):
        if torch.equal(grid.select(axis, start[axis]), index):
            return WriteBack("select", (axis, start[axis]))
    return None


def _coordinates(place: int, grid: Tensor) -> tuple[int, ...]:
    """Return the coordinates of a place in a contiguous grid."""
    out: list[int] = []
    for size in reversed(grid.shape):
        out.append(place % size)
        place //= size
    return tuple(reversed(out))
