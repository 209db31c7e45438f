r"""A part of a network made of linear maps and slope-restricted functions, as matrices.

Every entry of a *unit* is :math:`h_i = g_i(z_i)` with :math:`z = \sum_j W_j h_j` over earlier units and the *sources*,
and slopes of :math:`g_i` in [a, b]. For two inputs of the network the differences of h and z then satisfy

.. math:: (h_i - a z_i) (b z_i - h_i) \ge 0,

whatever else is true of them. All matrices may carry a leading axis: one block per frequency of a torus.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from normscope.core.errors import InputError


@dataclass(frozen=True, eq=False)
class MatrixWithError:
    """A matrix with a bound on the rounding error of its entries."""

    value: Tensor  #: the matrices ``(blocks, rows, columns)``, float64 or complex128
    #: a bound of the error of every entry ``(rows, columns)``, the same for all blocks; ``None`` is none
    error: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ActivationUnit:
    """The slope-restricted functions of one operation."""

    inputs: Mapping[int, MatrixWithError]  #: the matrices of z over what is read, by the number of the source or unit
    low: float = 0.0  #: the least slope a
    high: float = 1.0  #: the largest slope b

    @property
    def size(self) -> int:
        """Return the number of entries."""
        return next(iter(self.inputs.values())).value.shape[-2]


@dataclass(frozen=True, eq=False)
class ChainForm:
    """Sources, units in order of evaluation, and the target: a linear map of them.

    The sources have the numbers 0, 1, ..., the units those that follow.
    """

    sources: tuple[int, ...]  #: how many entries each source has
    units: tuple[ActivationUnit, ...]  #: the units; each reads only what has a smaller number
    target: Mapping[int, MatrixWithError]  #: the matrices of the target, by the number of what is read
    #: how much one unit of each source counts: the constant of the source itself
    weights: tuple[float, ...] = field(default=(1.0,))

    def __post_init__(self) -> None:
        """Check the number of weights and the order of the units."""
        if len(self.weights) != len(self.sources):
            raise InputError(f"Expected one weight per source, got {len(self.weights)} for {len(self.sources)}.")
        for number, unit in enumerate(self.units, len(self.sources)):
            if any(j >= number for j in unit.inputs):
                raise InputError("A unit reads only sources and earlier units.")

    @property
    def first(self) -> int:
        """Return the number of the first unit."""
        return len(self.sources)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return how many entries every source and unit has."""
        return (*self.sources, *(unit.size for unit in self.units))

    @property
    def blocks(self) -> int:
        """Return how many blocks (frequencies) there are."""
        return next(iter(self.target.values())).value.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the matrices."""
        return next(iter(self.target.values())).value.dtype

    def mapped(self, function: Callable[[Tensor], Tensor]) -> ChainForm:
        """Return the form with a function of every matrix, without errors: for a search."""

        def turned(blocks: Mapping[int, MatrixWithError]) -> dict[int, MatrixWithError]:
            return {j: MatrixWithError(function(block.value)) for j, block in blocks.items()}

        units = tuple(ActivationUnit(turned(u.inputs), u.low, u.high) for u in self.units)
        return ChainForm(self.sources, units, turned(self.target), self.weights)

    def converted(self, dtype: torch.dtype) -> ChainForm:
        """Return the form in another precision, without errors: for a search."""
        return self.mapped(lambda matrices: matrices.to(dtype))


def chain(
    weights: Sequence[Tensor],
    slopes: tuple[float, float] | Sequence[tuple[float, float]] = (0.0, 1.0),
) -> ChainForm:
    """Return the form of a plain chain ``W_n g(... g(W_1 x))``, its matrices taken as exact.

    Args:
        weights: the matrices, first layer first.
        slopes: the least and largest slope of every activation, or one pair for each.

    >>> chain([torch.ones(3, 2), torch.ones(1, 3)]).sizes
    (2, 3)
    """
    count = len(weights) - 1
    pairs = [slopes] * count if isinstance(slopes[0], float | int) else list(slopes)
    blocks = [MatrixWithError(w.detach().to(torch.float64).unsqueeze(0)) for w in weights]
    units = tuple(ActivationUnit({k: blocks[k]}, *pairs[k]) for k in range(count))  # type: ignore[misc]
    return ChainForm((weights[0].shape[1],), units, {count: blocks[-1]})
