r"""Linear maps of tensors in twice the precision of float64, by splitting: what rounds is far below everything else.

A number is the unevaluated sum ``high + low``. For a product of a matrix with a tensor both are cut into slices of few
bits below a common power of two, so that every product of slices, all of its sums included, is exact in float64; the
products are then added in twofold precision. Slices that cannot matter are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

#: Bits of a slice of a weight, and of float64.
WEIGHT_BITS, SIGNIFICANT = 24, 53
#: Products of slices this many bits below the largest are left out.
DEPTH = 96
#: More slices than this are not needed by any float64 number within the depth.
SLICES = 12


@dataclass(frozen=True)
class Pair:
    """Tensors ``high + low``."""

    high: Tensor
    low: Tensor

    @classmethod
    def of(cls, value: Tensor) -> Pair:
        """Return a float64 tensor as a pair, exactly."""
        return cls(value, torch.zeros_like(value))

    def plus(self, other: Pair) -> Pair:
        """Return the sum, up to ``2^-100`` of the sum of magnitudes."""
        high, error = two_sum(self.high, other.high)
        return Pair(*two_sum(high, error + (self.low + other.low)))

    def times(self, factor: Tensor) -> Pair:
        """Return the product with a float64 tensor entry by entry, up to ``2^-100`` of it.

        >>> near = Pair.of(torch.tensor([1 + 2.0**-40], dtype=torch.float64))
        >>> float(near.times(near.high).low) == 2.0**-80  # (1 + e)^2 = 1 + 2 e + e^2
        True
        """
        high, error = two_product(self.high, factor.to(self.high))
        return Pair(*two_sum(high, error + self.low * factor.to(self.low)))

    def mapped(self, copy: Callable[[Tensor], Tensor]) -> Pair:
        """Return what an operation does that only copies entries."""
        return Pair(copy(self.high), copy(self.low))


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
    """Return a number as two of at most 26 bits."""
    wide = 134217729.0 * x
    high = wide - (wide - x)
    return high, x - high


def slices(value: Pair, bits: int) -> Iterator[Tensor]:
    """Yield tensors of at most ``bits + 1`` bits below a common power of two which add up to the pair.

    >>> x = Pair.of(torch.tensor([1.0, 2.0**-40 + 2.0**-70]).double())
    >>> [part.tolist() for part in slices(x, 24)][0]
    [1.0, 0.0]
    """
    high, low = value.high, value.low
    top = float(high.abs().max()) if high.numel() else 0.0
    if not (0.0 < top < math.inf):
        return
    unit = 2.0 ** (math.frexp(top)[1] - bits)
    for _ in range(SLICES):
        anchor = 1.5 * 2.0 ** (SIGNIFICANT - 1) * unit
        part = (high + anchor) - anchor
        yield part
        high, low = two_sum(high - part, low)
        unit = unit * 2.0**-bits
        if not bool(high.any()):
            return


def weight_slices(weight: Tensor) -> list[Tensor]:
    """Return the slices of a weight as :func:`product` takes them."""
    return list(slices(Pair.of(weight), WEIGHT_BITS))


def product(
    weight: Tensor,
    x: Pair,
    apply: Callable[[Tensor, Tensor], Tensor],
    terms: int,
    cut: Iterable[Tensor] | None = None,
) -> tuple[Pair, float]:
    r"""Return a linear map that is bilinear in its weight and the tensor, and a bound on the error of an entry.

    Args:
        weight: in float64.
        x: the tensor.
        apply: the map: of a weight and a tensor, both float64, by sums of products.
        terms: most products that are added for one entry of the result.
        cut: what :func:`weight_slices` returns for the weight, if that is known.

    >>> w, v = torch.tensor([[1.0, 2.0**-30]]).double(), Pair.of(torch.tensor([[1.0], [2.0**-40]]).double())
    >>> result, error = product(w, v, torch.matmul, 2)
    >>> float(result.high), float(result.low) == 2.0**-70, error < 1e-20
    (1.0, True, True)
    """
    bits = min(WEIGHT_BITS, SIGNIFICANT - 2 - WEIGHT_BITS - math.ceil(math.log2(max(terms, 2))))
    tops = [float(t.abs().max()) if t.numel() else 0.0 for t in (weight, x.high)]
    parts = list(slices(x, bits))
    found: list[tuple[int, Tensor]] = []
    for i, w in enumerate(slices(Pair.of(weight), WEIGHT_BITS) if cut is None else cut):
        for k, v in enumerate(parts):
            if WEIGHT_BITS * i + bits * k < DEPTH:
                found.append((WEIGHT_BITS * i + bits * k, apply(w, v)))
    if not found:
        nothing = apply(weight, x.high)
        return Pair.of(nothing * 0.0), 0.0
    total = Pair.of(torch.zeros_like(found[0][1]))
    for _, part in sorted(found, key=lambda entry: -entry[0]):
        total = total.plus(Pair.of(part))
    return total, 64.0 * terms * 2.0**-DEPTH * tops[0] * tops[1]
