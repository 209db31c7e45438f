r"""Tangents of deep networks from a random sketch: Gaussian combinations of the input directions instead of all.

Forward, tangents along every entry of the input only serve to find the few entries whose slope may change: an upper
bound of the norm of each row is enough. k Gaussian combinations of the tangents, scaled by :math:`f / \sqrt k`, are
such a bound: with :math:`t = 1/f^2`

.. math:: P[\,\tfrac{f^2}{k} |G^T z|^2 \le |z|^2\,] \le (t\, e^{1 - t})^{k/2}

for a row z, and for the Frobenius norm of many rows (Chernoff, as for LOCAL-7). The rows are those of the Jacobian at
the point, which does not depend on the combinations, so the probabilities of all of them add up. The rows of entries
whose slope may change, and of the outputs, are computed backwards, as in :mod:`.bounded_rounding`.
"""

import math
from typing import Any

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.lipschitz.local.bounded_rounding import BoundedRoundingPropagation
from normscope.lipschitz.local.first_layer import is_large
from normscope.lipschitz.local.tangent_propagation import column_squares

#: Number of Gaussian combinations, and the factor by which their norms are raised.
COUNT, RAISED = 400, 1.4


@statement("normscope", "LOCAL-15", holds="piecewise linear networks; Gaussian combinations of the tangents")
def sketch_failure(rows: int, count: int = COUNT, raised: float = RAISED) -> float:
    """Return a bound on the probability that the norm of some of so many rows is above what combinations say.

    >>> sketch_failure(200_000) < 1e-9
    True
    """
    t = raised**-2
    return min(1.0, rows * (t * math.exp(1 - t)) ** (count / 2))


class SketchedPropagation(BoundedRoundingPropagation):
    """Propagate sketched tangents through a piecewise linear network, with a bound on the rounding error."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.along = min(COUNT, self.inputs)
        self._sketch: Tensor | None = None
        if self.along < self.inputs:
            generator = torch.Generator().manual_seed(20_251)
            drawn = torch.randn(COUNT, self.inputs, generator=generator, dtype=torch.float64)
            self._sketch = drawn.mul_(RAISED * (1 + 1e-9) / math.sqrt(COUNT))

    @property
    def delta(self) -> float:
        """Return a bound on the probability that the norm of some row is underestimated."""
        if self._sketch is None:
            return 0.0
        order = self.order()
        read = {i.id: i.numel for e in order if e.op is None for i in e.atom.inputs}
        return sketch_failure(sum(read.values()) + len(order), COUNT, RAISED)

    def _directions(self, first: int, count: int) -> Tensor:
        if self._sketch is None:
            return super()._directions(first, count)
        part = self._sketch[:, first : first + count]
        return torch.cat([part.new_zeros(1, count), part])

    def _quick_ranges(self, flat: Tensor, entries: Tensor, error: float) -> Tensor | None:
        """Return bounds from the ellipsoid of all units, which needs only the norms of the rows along the input."""
        if not self.radius or not len(self.units) or self.ellipsoid.first is not None or not len(entries):
            return None
        if self._waiting is not None and is_large(len(self._waiting[0]), self.inputs):
            return None
        self._grow()
        self.spend(2.5 * len(entries) * len(self.ellipsoid) ** 2)
        n, slack = 1 + self.along, 1e-12 * len(flat)
        along = column_squares(flat[1:n, entries]).sqrt() * (1 + slack) + 1.01 * self._pad(error)
        return self.radius * (along + self.ellipsoid.reached(flat[n:, entries].T.contiguous())) * (1 + 1e-12)

    def _is_precise(self, error: float, rows: Tensor) -> bool:
        return self._sketch is None and super()._is_precise(error, rows)
