"""Rounding constants against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from normscope.core.errors import NonFiniteError
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF, gamma, to_unit_scale


@pytest.mark.parametrize("k", [1, 7, 1000, 10**7])
def test_gamma_is_not_below_its_definition(k: int) -> None:
    """Gamma as computed is at least k u / (1 - k u) in exact arithmetic, and close to it."""
    u = Fraction(1, 2**53)
    exact = k * u / (1 - k * u)
    assert Fraction(gamma(k)) >= exact
    assert gamma(k) <= float(exact) * (1 + 1e-12)
    assert gamma(k, complex_arithmetic=True) > gamma(k)


def test_gamma_bounds_the_error_of_dot_products() -> None:
    """The measured error of float64 dot products, real and complex, stays below the constant."""
    generator = torch.Generator().manual_seed(0)
    for n in (3, 50, 400):
        x, y = torch.randn(2, n, generator=generator, dtype=torch.float64)
        exact = sum(Fraction(a) * Fraction(b) for a, b in zip(x.tolist(), y.tolist(), strict=True))
        error = abs(Fraction(float(x @ y)) - exact)
        assert error <= Fraction(gamma(n)) * Fraction(float(x.abs() @ y.abs()) * (1 + 1e-12))


def test_gamma_refuses_what_the_analysis_does_not_cover() -> None:
    """With k u near one the constant means nothing."""
    with pytest.raises(ValueError, match="k u"):
        gamma(int(0.6 / UNIT_ROUNDOFF))


@pytest.mark.parametrize("top", [1.0, 3e-300, 5e-324, 1.7e308, 2.0**-1040])
def test_scaling_is_exact_for_the_largest_entries(top: float) -> None:
    """The scaled tensor times the power of two is the tensor again, bit by bit, and its top is in [1/2, 1)."""
    tensor = torch.tensor([top, -top / 2], dtype=torch.float64)
    scaled, log_factor = to_unit_scale(tensor)
    assert 0.5 <= float(scaled.abs().max()) < 1.0
    exponent = round(log_factor / math.log(2.0))
    assert [math.ldexp(x, exponent) for x in scaled.tolist()] == tensor.tolist()


def test_scaling_edge_cases() -> None:
    """Zero and empty tensors stay, NaN and infinity are refused, half precision is widened exactly."""
    assert to_unit_scale(torch.zeros(2))[1] == 0.0
    assert to_unit_scale(torch.zeros(0))[0].dtype == torch.float64
    half, log_factor = to_unit_scale(torch.tensor([0.1], dtype=torch.bfloat16))
    assert half.item() * math.exp(log_factor) == pytest.approx(torch.tensor(0.1).bfloat16().item(), rel=1e-15)
    for bad in (math.nan, math.inf):
        with pytest.raises(NonFiniteError):
            to_unit_scale(torch.tensor([1.0, bad]))
