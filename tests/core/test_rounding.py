"""Outward rounding stays on the safe side and stays close."""

from __future__ import annotations

import math
import sys
from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.core.errors import InputError, NonFiniteError
from normscope.core.rounding import (
    UNIT,
    as_float64,
    down,
    matrix_norm_sandwich,
    product_up,
    quotient_up,
    require_nonnegative,
    sum_units,
    tree_sum,
    up,
)

positive = st.floats(1e-300, 1e300)


@settings(derandomize=True, deadline=None)
@given(positive)
def test_up_and_down_enclose_and_stay_close(x: float) -> None:
    """Up and down enclose and stay close."""
    assert Fraction(down(x)) <= Fraction(x) * (1 - 8 * Fraction(UNIT))
    assert Fraction(up(x)) >= Fraction(x) * (1 + 8 * Fraction(UNIT))
    assert up(x) <= x * (1 + 1e-14)
    assert down(x) >= x * (1 - 1e-14)


@pytest.mark.parametrize("units", [0.5, 1.0, 2.5, 3.0, 9.0, 11.0, 1001.0])
def test_up_and_down_cover_every_number_of_units(units: float) -> None:
    """Also odd ones and fractions, whose factor is no float64 number."""
    generator = torch.Generator().manual_seed(0)
    some = (1.0 + torch.rand(2000, dtype=torch.float64, generator=generator)).tolist()
    for x in (1.7903580227831926, 1.0, math.nextafter(2.0, 0.0), 1e-320, *some):
        assert Fraction(up(x, units)) >= Fraction(x) * (1 + Fraction(units) * Fraction(UNIT))
        assert Fraction(down(x, units)) <= Fraction(x) * (1 - Fraction(units) * Fraction(UNIT))


def test_up_keeps_zero_infinity_and_lifts_the_smallest() -> None:
    """Up keeps zero infinity and lifts the smallest."""
    assert up(0.0) == 0.0
    assert up(math.inf) == math.inf
    assert up(5e-324) > 5e-324
    assert down(5e-324) == 0.0


@settings(derandomize=True, deadline=None)
@given(positive, positive)
def test_quotient_is_above_the_exact_one(a: float, b: float) -> None:
    """Quotient is above the exact one."""
    assert quotient_up(a, b) == math.inf or Fraction(quotient_up(a, b)) >= Fraction(a) / Fraction(b)


def test_quotient_corners() -> None:
    """Quotient corners."""
    assert quotient_up(0.0, 0.0) == math.inf
    assert quotient_up(1e-300, 1e300) == 5e-324  # the exact quotient is positive though it underflows
    assert quotient_up(math.inf, math.inf) == math.inf
    assert quotient_up(math.inf, 2.0) == math.inf


@settings(derandomize=True, deadline=None)
@given(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))
def test_product_up_is_the_least_float_above(a: float, b: float, c: float) -> None:
    """Product up is the least float above."""
    exact = abs(Fraction(a) * Fraction(b) * Fraction(c))
    result = product_up(a, b, c)
    assert Fraction(result) >= exact
    assert result == 0.0 or Fraction(math.nextafter(result, 0.0)) < exact


def test_product_up_of_very_large_numbers_is_infinite() -> None:
    """Beyond the range of float64, and for an infinite factor."""
    assert product_up(1e308, 1e308) == math.inf
    assert product_up(sys.float_info.max, 1.0 + 2.0**-52) == math.inf
    assert product_up(sys.float_info.max, -1.0) == sys.float_info.max
    assert product_up(math.inf, 0.5) == product_up(2.0, -math.inf) == math.inf


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 1000, 4097])
def test_tree_sum_meets_its_error_bound(n: int) -> None:
    """Tree sum meets its error bound."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, dtype=torch.float64, generator=generator) * 10.0 ** torch.randint(
        -8, 9, (n,), generator=generator
    )
    exact = sum(map(Fraction, x.tolist()))
    size = sum(abs(Fraction(v)) for v in x.tolist())
    assert abs(Fraction(tree_sum(x).item()) - exact) <= Fraction(sum_units(n) * UNIT) * size


def test_tree_sum_keeps_the_other_axes() -> None:
    """Tree sum keeps the other axes."""
    x = torch.arange(24.0).reshape(2, 3, 4)
    assert torch.equal(tree_sum(x), x.sum(dim=-1))


def test_as_float64_refuses_what_is_no_real_number() -> None:
    """As float64 refuses what is no real number."""
    with pytest.raises(NonFiniteError, match="gamma"):
        as_float64(torch.tensor([math.nan]), "gamma")
    with pytest.raises(InputError, match="Expected x to be a real tensor"):
        as_float64(torch.empty(0), "x")
    with pytest.raises(InputError):
        as_float64(torch.ones(1, dtype=torch.complex64), "x")


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_require_nonnegative_refuses(value: float) -> None:
    """Require nonnegative refuses."""
    with pytest.raises(InputError, match="eps"):
        require_nonnegative(value, "eps")


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (4, 1), (3, 3), (4, 6), (6, 4)])
@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_matrix_norm_encloses_the_exact_norm(shape: tuple[int, int], scale: float) -> None:
    """Matrix norm encloses the exact norm."""
    generator = torch.Generator().manual_seed(sum(shape))
    A = torch.randn(shape, dtype=torch.float64, generator=generator) * scale
    exact = mpmath.mp.svd_r(mpmath.matrix(A.tolist()), compute_uv=False)[0]
    lower, upper = matrix_norm_sandwich(A)
    assert lower <= exact <= upper
    assert upper - lower <= 1e-12 * upper


@pytest.mark.parametrize("unit", [5e-324, 1e-310])
def test_matrix_norm_of_subnormal_entries(unit: float) -> None:
    """The norms are the root of 2 and the golden ratio times the entries: the last product is rounded outward."""
    lower, upper = matrix_norm_sandwich(torch.tensor([[unit, unit]], dtype=torch.float64))
    assert Fraction(lower) ** 2 <= 2 * Fraction(unit) ** 2 <= Fraction(upper) ** 2
    lower, upper = matrix_norm_sandwich(torch.tensor([[unit, 0.0], [unit, unit]], dtype=torch.float64))
    exact = (1 + mpmath.sqrt(5)) / 2 * mpmath.mpf(unit)
    assert lower <= exact <= upper


def test_matrix_norm_beyond_the_largest_float() -> None:
    """The lower bound is a number, the upper one is infinite."""
    lower, upper = matrix_norm_sandwich(torch.full((1, 2), 1.7e308, dtype=torch.float64))
    assert 1.7e308 < lower < upper == math.inf


def test_matrix_norm_of_low_rank_and_zero() -> None:
    """Matrix norm of low rank and zero."""
    u = torch.arange(1.0, 9.0).double()
    lower, upper = matrix_norm_sandwich(torch.outer(u, u))
    assert lower <= float(u @ u) <= upper
    assert matrix_norm_sandwich(torch.zeros(3, 3)) == (0.0, 0.0)


def test_matrix_norm_of_a_large_matrix_is_tight() -> None:
    """Matrix norm of a large matrix is tight."""
    A = torch.randn(150, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lower, upper = matrix_norm_sandwich(A)
    assert lower <= torch.linalg.matrix_norm(A, 2).item() <= upper
    assert upper / lower - 1 < 1e-9


@pytest.mark.parametrize("n", [2, 20, 60])
def test_matrix_norm_allows_for_the_rounding_of_its_own_check(n: int) -> None:
    """Each product of factors of Frobenius norm sqrt(n) may hide an error of n u n, even where none is computed."""
    lower, upper = matrix_norm_sandwich(torch.eye(n, dtype=torch.float64))
    assert upper - 1.0 >= 2 * n**2 * UNIT
    assert 1.0 - lower >= 2 * n**2 * UNIT
