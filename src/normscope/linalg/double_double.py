r"""Double-double arithmetic on tensors: sums and linear maps in twice the precision of float64.

A number is the unevaluated sum ``high + low``. For a product of a matrix and a tensor both are split into slices of few
bits below a common power of two, so that every product of slices, all of its sums included, is exact in float64; the
products are then added in double-double arithmetic. Negligible products of slices are omitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

#: Bits of a slice of a weight, and of float64.
WEIGHT_BITS, SIGNIFICANT = 24, 53
#: Products of slices this many bits below the largest are omitted.
DEPTH = 96
#: The least number of slices taken; slices of fewer than 8 bits need more to reach the depth.
SLICES = 12
#: For more terms than this even slices of one bit have no exact sums of products.
MOST_TERMS = 2**28


@dataclass(frozen=True)
class DoubleDouble:
    """A tensor as the unevaluated sum ``high + low`` of two float64 tensors."""

    high: Tensor
    low: Tensor

    @classmethod
    def of(cls, value: Tensor) -> DoubleDouble:
        """Return a float64 tensor in this form, exactly."""
        return cls(value, torch.zeros_like(value))

    def plus(self, other: DoubleDouble) -> DoubleDouble:
        """Return the sum, up to ``2^-100`` of the sum of magnitudes."""
        high, error = two_sum(self.high, other.high)
        return DoubleDouble(*two_sum(high, error + (self.low + other.low)))

    def times(self, factor: Tensor) -> DoubleDouble:
        """Return the product with a float64 tensor entry by entry, up to ``2^-100`` of it.

        >>> near = DoubleDouble.of(torch.tensor([1 + 2.0**-40], dtype=torch.float64))
        >>> float(near.times(near.high).low) == 2.0**-80  # (1 + e)^2 = 1 + 2 e + e^2
        True
        """
        high, error = two_product(self.high, factor.to(self.high))
        return DoubleDouble(*two_sum(high, error + self.low * factor.to(self.low)))

    def mapped(self, copy: Callable[[Tensor], Tensor]) -> DoubleDouble:
        """Apply an operation that only copies entries, to both parts."""
        return DoubleDouble(copy(self.high), copy(self.low))


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded sum and its error: together exactly ``a + b``.

    >>> [float(t) for t in two_sum(torch.tensor(1.0).double(), torch.tensor(2.0**-60).double())]
    [1.0, 8.673617379884035e-19]
    """
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded product and its error, by Dekker's splitting: together exactly ``a b``."""
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    product = a * b
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Split a number into two of at most 26 bits."""
    wide = 134217729.0 * x
    high = wide - (wide - x)
    return high, x - high


def slices(value: DoubleDouble, bits: int) -> Iterator[Tensor]:
    """Yield tensors of at most ``bits + 1`` bits below a common power of two whose sum is the given one.

    >>> x = DoubleDouble.of(torch.tensor([1.0, 2.0**-40 + 2.0**-70]).double())
    >>> [part.tolist() for part in slices(x, 24)][0]
    [1.0, 0.0]
    """
    high, low = value.high, value.low
    top = float(high.abs().max()) if high.numel() else 0.0
    if not (0.0 < top < math.inf):
        return
    unit = 2.0 ** (math.frexp(top)[1] - bits)
    for _ in range(max(SLICES, math.ceil(DEPTH / bits))):
        anchor = 1.5 * 2.0 ** (SIGNIFICANT - 1) * unit
        part = (high + anchor) - anchor
        yield part
        high, low = two_sum(high - part, low)
        unit = unit * 2.0**-bits
        if not bool(high.any()):
            return


def weight_slices(weight: Tensor) -> list[Tensor]:
    """Return the slices of a weight for the ``cut`` argument of :func:`product`."""
    return list(slices(DoubleDouble.of(weight), WEIGHT_BITS))


def product(
    weight: Tensor,
    x: DoubleDouble,
    apply: Callable[[Tensor, Tensor], Tensor],
    terms: int,
    cut: Iterable[Tensor] | None = None,
) -> tuple[DoubleDouble, float]:
    r"""Apply a map that is bilinear in a weight and a tensor; return the result and a bound on the error of an entry.

    Args:
        weight: in float64.
        x: the tensor.
        apply: the map: of a weight and a tensor, both float64, by sums of products.
        terms: the most products summed for one entry of the result; beyond ``2^28`` no error bound is known.
        cut: the slices of the weight (:func:`weight_slices`), if already computed.

    >>> w, v = torch.tensor([[1.0, 2.0**-30]]).double(), DoubleDouble.of(torch.tensor([[1.0], [2.0**-40]]).double())
    >>> result, error = product(w, v, torch.matmul, 2)
    >>> float(result.high), float(result.low) == 2.0**-70, error < 1e-20
    (1.0, True, True)
    """
    bits = max(1, min(WEIGHT_BITS, SIGNIFICANT - 2 - WEIGHT_BITS - math.ceil(math.log2(max(terms, 2)))))
    tops = [float(t.abs().max()) if t.numel() else 0.0 for t in (weight, x.high)]
    parts = list(slices(x, bits))
    found: list[tuple[int, Tensor]] = []
    for i, w in enumerate(slices(DoubleDouble.of(weight), WEIGHT_BITS) if cut is None else cut):
        for k, v in enumerate(parts):
            if WEIGHT_BITS * i + bits * k < DEPTH:
                found.append((WEIGHT_BITS * i + bits * k, apply(w, v)))
    if not found:
        nothing = apply(weight, x.high)
        return DoubleDouble.of(nothing * 0.0), 0.0
    total = DoubleDouble.of(torch.zeros_like(found[0][1]))
    for _, part in sorted(found, key=lambda entry: -entry[0]):
        total = total.plus(DoubleDouble.of(part))
    return total, 64.0 * terms * 2.0**-DEPTH * tops[0] * tops[1] if terms <= MOST_TERMS else math.inf
