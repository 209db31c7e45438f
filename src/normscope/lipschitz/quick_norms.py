"""Quick norms: certified, layer by layer, where a check needs the size of a product and not its digits."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.core.value import log_of
from normscope.linalg.bounds import NormBounds
from normscope.lipschitz.composition import Composition
from normscope.lipschitz.ranges import PART
from normscope.lipschitz.segments import Effort, SegmentNorms
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Range
from normscope.operators.normalizers.spectral_norm import convolution_certificate

#: Operations whose norm is at most one.
_AT_MOST_ONE = ("isometry", "embedding", "contraction")


class FiniteNorms(SegmentNorms):
    """Norms that are all one: enough to ask whether a bound is finite, which no norm of a finite matrix changes."""

    def norm(self, source: Expr, target: Expr) -> NormBounds:
        """Return one."""
        return NormBounds.certified(-math.inf, 0.0, "not measured")

    def has_closed_form(self, source: Expr, target: Expr) -> bool:
        """Return true: every norm is easy to measure."""
        return True


class Roughly(Composition):
    """The composition without matrices: ranges row by row are computed only where nothing else bounds a row.

    Bounds are looser, and finite where those of :class:`~normscope.lipschitz.composition.Composition` are.
    """

    def _range(self, expr: Expr, *, row_by_row: bool) -> Range:
        found = super()._range(expr, row_by_row=False)
        if not row_by_row or found.tightened(expr.shape).row < math.inf:
            return found
        return super()._range(expr, row_by_row=True)

    def centered_row(self, expr: Expr) -> float:
        """Return a bound on the rows after removing what all tokens share: that of the rows as they are, if finite."""
        found = self.range(expr).row
        return found if found < math.inf else super().centered_row(expr)


class QuickNorms(SegmentNorms):
    """Norms of segments as products and sums of the norms of their operations.

    Looser than measuring a segment as one operator, and certified: ``||A B|| <= ||A|| ||B||``,
    ``||A + B|| <= ||A|| + ||B||``, and for a convolution ``sqrt(windows) ||reshaped kernel||``. A matrix whose norm
    takes too long is bounded by its Frobenius norm, ``||W|| <= ||W||_F``.

    Args:
        effort: how hard to try.
        most: multiplications that forming ``W W^T`` of one matrix may take.
    """

    def __init__(self, effort: Effort | None = None, most: float = math.inf) -> None:
        super().__init__(effort)
        self.most = most

    def _measure(self, source: Expr, target: Expr) -> NormBounds:
        return self._paths(source, target)

    def has_closed_form(self, source: Expr, target: Expr) -> bool:
        """Return true: every norm is easy to measure."""
        return True

    def _log_of_step(self, expr: Expr) -> float:
        op, source = expr.op, expr.inputs[0]
        if op is None or op.kind in _AT_MOST_ONE:
            return 0.0
        if op.kind == "convolution" and not op.data.get("transposed"):
            return self._convolution(op.data)
        key = (-source.id - 1, expr.id)  # apart from the products
        if key not in self._memo:
            self._memo[key] = super()._measure(source, expr)
        return self._memo[key].log_upper

    def _convolution(self, data: Mapping[str, Any]) -> float:
        """Return the log of ``sqrt(windows) max ||reshaped kernel||`` over the groups."""
        weight, groups = data["weight"].detach(), int(data["groups"])
        one = torch.zeros((1, 1, *weight.shape[2:]), dtype=torch.float64)
        one.view(-1)[0] = 1.0
        windows = log_of(convolution_certificate(one, data["stride"], data["dilation"]))
        if weight.shape[0] == groups:  # one row for each group
            rows = weight.double().flatten(1).norm(dim=1).max()
            return windows + log_of(float(rows) * (1 + 1e-12))
        return windows + max(self._of_weight(part.flatten(1)).log_upper for part in weight.chunk(groups))

    def _of_weight(self, weight: Tensor) -> NormBounds:
        stack = weight.reshape(-1, *weight.shape[-2:])
        if sum(map(gram_cost, stack)) <= self.most:
            return super()._of_weight(weight)
        return NormBounds.certified(-math.inf, max(log_of(frobenius_norm(matrix)) for matrix in stack), "Frobenius")


def gram_cost(weight: Tensor) -> float:
    """Return the multiplications of the smaller of ``W W^T`` and ``W^T W``, ``W`` having a row for each output.

    >>> gram_cost(torch.ones(4, 3))
    36.0
    """
    rows = weight.shape[0] if weight.ndim else 1
    return float(weight.numel()) * min(rows, weight.numel() // max(rows, 1))


def affordable(weights: Iterable[Tensor], work: float) -> float:
    """Return the largest cost of one matrix such that all up to it take no more than some work together.

    >>> affordable([torch.ones(4, 3), torch.ones(2, 2)], 20.0), affordable([torch.ones(2, 2)], 20.0)
    (8.0, inf)
    """
    spent, largest = 0.0, 0.0
    for cost, count in sorted(Counter(map(gram_cost, weights)).items()):
        spent += cost * count
        if spent > work:
            return largest
        largest = cost
    return math.inf


def frobenius_norm(matrix: Tensor) -> float:
    """Return the Frobenius norm of a matrix, rounded up.

    >>> 5.0 < frobenius_norm(torch.tensor([[3.0], [4.0]])) < 5.0001
    True
    """
    plain, scale = matrix.detach(), 1.0
    if plain.dtype == torch.float64 and plain.numel():  # of wider range than its squares
        scale = float(plain.abs().max()) or 1.0
        plain = plain / scale
    return _length(plain) * scale * (1.0 + (plain.numel() + 8) * 2.0**-52)


def _length(tensor: Tensor) -> float:
    """Return the root of the sum of squares in float64, of parts that stay in the cache."""
    squares = [torch.dot(part, part) for part in map(Tensor.double, tensor.reshape(-1).split(PART))]
    return math.sqrt(float(torch.stack(squares).sum()))


class RoughNorms(QuickNorms):
    """Quick norms with ``||W||_F / sqrt(rank) <= ||W||`` in place of each norm of a weight: the least it can be.

    Their products lie below those of :class:`QuickNorms`, and take no time.
    """

    def _matrix(self, matrix: Tensor) -> float:
        return log_of(_length(matrix.detach())) - math.log(min(matrix.shape)) / 2

    def _of_weight(self, weight: Tensor) -> NormBounds:
        stack = weight.reshape(-1, *weight.shape[-2:])
        return NormBounds.certified(-math.inf, max(map(self._matrix, stack)), "Frobenius")
