"""Partitions of the data space that Theorem 20 of than2025 may use: chosen before the data, cells of known diameter."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.errors import InputError


@dataclass(frozen=True)
class Partition:
    """A partition of inputs into cells, separate for each label."""

    name: str  #: what it is
    cells: int  #: how many cells of inputs there are
    diameters: Tensor  #: the diameter of each cell, or one for all
    assign: Callable[[Tensor], Tensor]  #: the cell of each input, one row each; it must not depend on the data
    from_data: bool = False  #: whether it was built from the data the bound is about
    centres: Tensor | None = None  #: points that define the cells, if some do: none of them may be a sample
    middles: Tensor | None = None  #: of a ball that holds each cell, one row each, or one row for all
    radii: Tensor | None = None  #: of these balls

    def counts(self, inputs: Tensor, labels: Tensor | None, classes: int) -> Tensor:
        """Return the number of samples in each cell of inputs and labels, ``cells * classes`` of them.

        Raises:
            InputError: if the partition depends on these inputs, or a label is out of range.
        """
        self.require_independent(inputs)
        index = self.assign(inputs)
        if labels is not None:
            if labels.shape != index.shape or int(labels.min()) < 0 or int(labels.max()) >= classes:
                raise InputError(f"Expected one label from 0 to {classes - 1} for each sample.")
            index = index * classes + labels
        return torch.bincount(index, minlength=self.cells * classes)

    def require_independent(self, inputs: Tensor) -> None:
        """Raise unless the partition was chosen before the data, as far as can be seen."""
        seen = self.from_data
        if self.centres is not None and not seen:
            flat = inputs.reshape(len(inputs), -1).to(self.centres.dtype)
            seen = bool((torch.cdist(flat, self.centres) == 0).any())
        if seen:
            raise InputError(
                f"Expected a partition chosen before seeing the data, but {self.name} was built from it, "
                "so the bound does not hold. Use a grid, or centres from data that the bound does not use."
            )


def _inside(inputs: Tensor, low: Tensor, high: Tensor, what: str) -> Tensor:
    """Return inputs as rows, after checking that they lie in a box."""
    flat = inputs.reshape(len(inputs), -1).double()
    if flat.shape[1] != len(low) or not bool(((flat >= low) & (flat <= high)).all()):
        raise InputError(f"Expected inputs inside the box of the {what}, with one number per axis. Some are not.")
    return flat


def grid(low: Sequence[float], high: Sequence[float], counts: Sequence[int]) -> Partition:
    """Return the partition of a box into equal boxes; inputs outside the box raise an error when assigned.

    Args:
        low: least corner of the box.
        high: largest corner.
        counts: boxes along each axis.

    Raises:
        InputError: if the box is empty or a count not positive.

    >>> halves = grid([0.0], [1.0], [2])
    >>> halves.assign(torch.tensor([[0.1], [0.9]])).tolist(), round(halves.diameters.item(), 9)
    ([0, 1], 0.5)
    """
    first, last = (torch.tensor(list(v), dtype=torch.float64) for v in (low, high))
    number = torch.tensor(list(counts))
    if not len(first) == len(last) == len(number) or not bool((last > first).all()) or int(number.min()) < 1:
        raise InputError(
            f"Expected a grid with low < high in every axis and positive counts, got {low}, {high}, {counts}."
        )
    sides = (last - first) / number
    strides = torch.tensor([math.prod(counts[j + 1 :]) for j in range(len(counts))])

    def assign(inputs: Tensor) -> Tensor:
        flat = _inside(inputs, first, last, "grid")
        place = torch.minimum(((flat - first) / sides).floor().long(), number - 1)
        return (place * strides).sum(1)

    diameter = _length(sides)
    axes = [
        low + side * (torch.arange(n, dtype=torch.float64) + 0.5)
        for low, side, n in zip(first, sides, number.tolist(), strict=True)
    ]
    middles = torch.cartesian_prod(*axes).reshape(-1, len(first))
    radius = diameter / 2 * (1 + 1e-12)
    name = f"a grid of {math.prod(counts)} boxes"
    return Partition(name, math.prod(counts), diameter, assign, middles=middles, radii=radius)


def _length(sides: Tensor) -> Tensor:
    """Return the length of a diagonal, rounded up."""
    return (torch.linalg.vector_norm(sides) * (1 + 1e-13))[None]


def voronoi(centres: Tensor, low: Sequence[float], high: Sequence[float], *, from_data: bool = False) -> Partition:
    """Return the cells of nearest centres inside a box; their diameters are at most that of the box.

    Inputs outside the box raise an error when assigned.

    Args:
        centres: one row each, drawn before the data.
        low: least corner of the box.
        high: largest corner.
        from_data: whether the centres come from the data; bounds then raise an error.

    >>> round(float(voronoi(torch.zeros(1, 2), [0.0, 0.0], [3.0, 4.0]).diameters), 9)
    5.0
    """
    if centres.dim() != 2 or len(centres) == 0:
        raise InputError(f"Expected centres as a matrix with at least one row, got shape {tuple(centres.shape)}.")
    points = centres.detach().double()
    first, last = (torch.tensor(list(v), dtype=torch.float64) for v in (low, high))

    def assign(inputs: Tensor) -> Tensor:
        return torch.cdist(_inside(inputs, first, last, "cells"), points).argmin(1)

    name, diameter = f"cells of {len(points)} nearest centres", _length(last - first)
    middle, radius = (first + last)[None] / 2, diameter / 2 * (1 + 1e-12)
    return Partition(name, len(points), diameter, assign, from_data, points, middle, radius)
