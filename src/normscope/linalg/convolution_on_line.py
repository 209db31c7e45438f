r"""Zero-padded convolutions on a line, with matrices as taps: their Gram matrices are block banded.

Any convolution has this form along each of its axes, with matrices over the channels and the other axes as taps;
closed to a torus in the other axes, it is one for every frequency. A successful Cholesky factorisation of
:math:`\tau I - G` bounds the norm.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.linalg.cholesky import cholesky_factor, cholesky_margin
from normscope.linalg.convolution_geometry import Axis
from normscope.linalg.sparse import axis_reads, convolution_matrix

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LineSide:
    """The positions of the inputs or of the outputs of a convolution on a line, and how they are coupled."""

    line: Axis  #: the geometry
    of_outputs: bool  #: whether these are the outputs

    @property
    def places(self) -> int:
        """Return the number of positions."""
        return self.line.output_size if self.of_outputs else self.line.size

    @property
    def reach(self) -> int:
        """Return how far apart two positions may be that one position of the other side connects."""
        reach = self.line.reach // self.line.stride if self.of_outputs else self.line.reach
        return min(reach, self.places - 1)

    @cached_property
    def pairs(self) -> Mapping[tuple[int, int], Pairs]:
        r"""Return for two positions ``i >= j`` the pairs of taps that connect them via a position of the other side.

        On the outputs, :math:`(A A^H)_{ij} = \sum W_k W_h^H` over taps with :math:`s i + d k = s j + d h` at an input
        that exists; on the inputs :math:`(A^H A)_{ij} = \sum W_k^H W_h` over the outputs that read both.

        >>> LineSide(Axis(2, 2, 3, 1, 1, 1), of_outputs=True).pairs
        {(0, 0): ((1, 1), (2, 2)), (1, 0): ((0, 1), (1, 2)), (1, 1): ((0, 0), (1, 1))}
        """
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        joined: dict[int, list[tuple[int, int]]] = {}
        for output, source, tap in zip(*(part.tolist() for part in axis_reads(self.line, "zeros")), strict=True):
            place, middle = (output, source) if self.of_outputs else (source, output)
            joined.setdefault(middle, []).append((place, tap))
        for reads in joined.values():
            for (i, k), (j, h) in itertools.product(reads, reads):
                if i >= j:
                    found.setdefault((i, j), []).append((k, h))
        return {place: tuple(sorted(pairs)) for place, pairs in sorted(found.items())}

    @cached_property
    def inner_pairs(self) -> list[Pairs]:
        """Return the pairs of taps that connect positions 0, 1, ... apart, far from both ends."""
        line, found = self.line, []
        for distance in range(line.reach // line.stride + 1 if self.of_outputs else line.reach + 1):
            step = line.stride * distance if self.of_outputs else -distance
            taps = itertools.product(range(line.kernel), repeat=2)
            found.append(tuple((k, h) for k, h in taps if line.dilation * (h - k) == step))
        return found


@dataclass(frozen=True, eq=False)
class LineGram:
    """The Gram matrix of a convolution on a line, with one block for every two positions."""

    positions: LineSide  #: the side it is on
    blocks: Mapping[Pairs, Tensor]  #: its distinct blocks, by the pairs of taps they sum over

    @classmethod
    def of(cls, taps: Tensor, positions: LineSide) -> LineGram:
        """Return the Gram matrix of the taps ``(taps, rows, columns)``."""
        left = taps if positions.of_outputs else taps.mH
        products: dict[tuple[int, int], Tensor] = {}

        def product(k: int, h: int) -> Tensor:
            if (h, k) in products:
                return products[h, k].mH
            if (k, h) not in products:
                products[k, h] = left[k] @ left[h].mH
            return products[k, h]

        blocks: dict[Pairs, Tensor] = {}
        for pairs in {*positions.pairs.values(), *positions.inner_pairs}:
            blocks[pairs] = left.new_zeros(left.shape[1], left.shape[1])
            for k, h in pairs:
                blocks[pairs] += product(k, h)
        return cls(positions, blocks)

    @property
    def side(self) -> int:
        """Return the side of one block."""
        return len(next(iter(self.blocks.values())))

    @property
    def inner(self) -> list[Tensor]:
        """Return the blocks of positions 0, 1, ... apart, far from both ends."""
        return [self.blocks[pairs] for pairs in self.positions.inner_pairs]

    @property
    def trace(self) -> float:
        """Return the trace."""
        pairs = self.positions.pairs.items()
        return sum(float(self.blocks[p].diagonal().real.sum()) for (i, j), p in pairs if i == j)

    def is_definite(self, tau: float) -> bool:
        r"""Return whether the block Cholesky factorisation of :math:`\tau I - G` succeeds in floating point.

        Block column after block column, with :math:`Y_{ij} = L_{ij}^H`:
        :math:`L_{jj} L_{jj}^H = \tau I - G_{jj} - \sum_k Y_{jk}^H Y_{jk}`, and
        :math:`L_{jj} Y_{ij} = (-G_{ij} - \sum_k Y_{ik}^H Y_{jk})^H`.
        """
        side = self.side
        done = deque[Tensor](maxlen=self.positions.reach)  # of each column k the Y_ik, side by side
        for j in range(self.positions.places):
            column = self._column(j, tau)
            for later, solved in enumerate(reversed(done)):  # the first ones are of positions before this one
                rest = solved[:, later * side :]
                column[: rest.shape[1]].addmm_(rest.mH, rest[:, :side], alpha=-1)
            factor = cholesky_factor(column[:side])
            if factor is None:
                return False
            done.append(torch.linalg.solve_triangular(factor, column[side:].mH, upper=False))
        return True

    def _column(self, j: int, tau: float) -> Tensor:
        r"""Return the blocks of one column of :math:`\tau I - G`, those on and below the diagonal."""
        pairs, last = self.positions.pairs, min(self.positions.places, j + self.positions.reach + 1)
        column = next(iter(self.blocks.values())).new_zeros(last - j, self.side, self.side)
        for i in range(j, last):
            if (i, j) in pairs:
                column[i - j] -= self.blocks[pairs[i, j]]
        column[0].diagonal().add_(tau)
        return column.flatten(0, 1)


def slow_axis(axes: Sequence[Axis], *, of_outputs: bool) -> int:
    """Return the axis along which a block of as many positions as the bandwidth is smallest.

    >>> slow_axis([Axis(4, 4, 3, 1, 1, 1), Axis(16, 16, 3, 1, 1, 1)], of_outputs=True)
    1
    """
    sides = [LineSide(axis, of_outputs) for axis in axes]
    return min(range(len(axes)), key=lambda a: max(1, sides[a].reach) / sides[a].places)


def factorisation_cost(axes: Sequence[Axis], channels: int, *, of_outputs: bool) -> float:
    """Estimate the multiplications of the factorisation: ``7/6 B^3`` for every ``b`` positions.

    The bandwidth is ``b``, and ``B`` the number of entries of ``b`` positions.
    """
    sides = [LineSide(axis, of_outputs) for axis in axes]
    slow = sides[slow_axis(axes, of_outputs=of_outputs)]
    thickness = max(1, slow.reach)
    entries = thickness * channels * math.prod(s.places for s in sides) // slow.places
    return -(-slow.places // thickness) * float(entries) ** 3 * 7.0 / 6.0


def gram_along(weight: Tensor, axes: Sequence[Axis], along: int, *, of_outputs: bool) -> LineGram:
    """Return the Gram matrix of a zero-padded convolution along one of its axes."""
    others = [a for i, a in enumerate(axes) if i != along]
    taps = [torch.as_tensor(convolution_matrix(tap, others).toarray()) for tap in weight.unbind(2 + along)]
    return LineGram.of(torch.stack(taps), LineSide(axes[along], of_outputs))


@statement("normscope", "Block banded Gram matrices", holds="zero padding, IEEE arithmetic, no underflow")
def banded_certificate(
    weight: Tensor, axes: Sequence[Axis], lower: float, *, of_outputs: bool, gram_error: float, widest: float
) -> float:
    r"""Return a certified upper bound on the norm of a zero-padded convolution, or infinity.

    A successful factorisation of :math:`\tau I - A^T A` proves :math:`\|A\|^2 \le \tau + c + e` with the margin c of
    the factorisation and the error e of the Gram matrix; every entry of the factor is an inner product over as many
    positions as the bandwidth, and one more.

    Args:
        weight: the kernel ``(Cout, Cin, *k)`` in float64.
        axes: the geometry.
        lower: an attained value; the closer it is to the norm, the tighter the bound.
        of_outputs: the side whose Gram matrix is formed.
        gram_error: a bound on the error of the Gram matrix, in the spectral norm.
        widest: the largest relative distance above ``lower`` to try.

    >>> box, axes = torch.ones(1, 1, 3, dtype=torch.float64), [Axis(5, 5, 3, 1, 1, 1)]
    >>> exact = 1 + 2 * math.cos(math.pi / 6)
    >>> bound = banded_certificate(box, axes, exact, of_outputs=False, gram_error=1e-14, widest=1e-3)
    >>> exact <= bound < exact + 2e-6
    True
    """
    gram = gram_along(weight, axes, slow_axis(axes, of_outputs=of_outputs), of_outputs=of_outputs)
    places, reach, trace_of_gram = gram.positions.places, gram.positions.reach, gram.trace
    margin = 4e-7
    while margin <= widest:
        tau = (lower * (1.0 + margin)) ** 2
        if gram.is_definite(tau):
            trace = max(0.0, tau * places * gram.side - trace_of_gram) * (1.0 + 1e-9)
            slack = cholesky_margin((reach + 1) * gram.side + 2, trace)
            return math.sqrt((tau + slack + gram_error) * (1.0 + 2.0**-48))
        margin *= 8.0
    return math.inf
