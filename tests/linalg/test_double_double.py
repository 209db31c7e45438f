"""Twofold precision: against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from normscope.linalg.double_double import DoubleDouble, product, slices, two_product, two_sum


def _numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = 10 ** (8 * torch.rand(shape, generator=generator, dtype=torch.float64) - 4)
    return spread * torch.randn(shape, generator=generator, dtype=torch.float64)


def _exact(pair: DoubleDouble, index: tuple[int, ...]) -> Fraction:
    return Fraction(float(pair.high[index])) + Fraction(float(pair.low[index]))


def test_sums_and_products_are_exact() -> None:
    a, b = _numbers(40), _numbers(40, seed=1)
    for i in range(40):
        x, y = Fraction(float(a[i])), Fraction(float(b[i]))
        for function, truth in ((two_sum, x + y), (two_product, x * y)):
            high, low = function(a, b)
            assert Fraction(float(high[i])) + Fraction(float(low[i])) == truth


@pytest.mark.parametrize("bits", [10, 24])
def test_slices_add_up_and_have_few_bits(bits: int) -> None:
    value = DoubleDouble(_numbers(20), 1e-20 * _numbers(20, seed=2))
    parts = list(slices(value, bits))
    for i in range(20):
        told = sum((Fraction(float(p[i])) for p in parts), Fraction(0))
        assert abs(told - _exact(value, (i,))) <= Fraction(2) ** -100 * Fraction(float(value.high.abs().max()))
    top = math.frexp(float(value.high.abs().max()))[1]
    for place, part in enumerate(parts, start=1):
        counts = part * 2.0 ** (place * bits - top)  # of the smallest unit of this part
        assert torch.equal(counts, counts.round())
        assert float(counts.abs().max()) <= 2**bits


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_product_of_matrices_is_as_exact_as_it_says(dtype: torch.dtype) -> None:
    w = _numbers(3, 30).to(dtype).double()
    x = DoubleDouble(_numbers(30, 2, seed=3), 1e-18 * _numbers(30, 2, seed=4))
    found, error = product(w, x, torch.matmul, 30)
    for i in range(3):
        for j in range(2):
            truth = sum((Fraction(float(w[i, k])) * _exact(x, (k, j)) for k in range(30)), Fraction(0))
            assert abs(_exact(found, (i, j)) - truth) <= Fraction(error)
    assert error < 1e-20 * float(w.abs().max() * x.high.abs().max())


def test_a_product_of_very_many_terms_is_as_exact_as_it_says() -> None:
    """Slices are short then: as many are taken as the depth needs."""
    terms = 2**19 + 1
    x = torch.full((terms, 1), 2.0**-86, dtype=torch.float64)
    x[0] = 1.0
    found, error = product(torch.ones(1, terms, dtype=torch.float64), DoubleDouble.of(x), torch.matmul, terms)
    assert abs(_exact(found, (0, 0)) - (1 + Fraction(2) ** -67)) <= Fraction(error)


def test_the_most_terms_still_have_slices() -> None:
    """Of one bit; for more terms nothing is claimed."""
    w, x = _numbers(1, 30), _numbers(30, 1, seed=3)
    truth = sum((Fraction(a) * Fraction(b) for a, b in zip(w[0].tolist(), x[:, 0].tolist(), strict=True)), Fraction(0))
    found, error = product(w, DoubleDouble.of(x), torch.matmul, 2**28)
    assert abs(_exact(found, (0, 0)) - truth) <= Fraction(error)
    assert product(w, DoubleDouble.of(x), torch.matmul, 2**28 + 1)[1] == math.inf
