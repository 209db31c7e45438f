"""Rounding constants against exact rational arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from normscope.core.errors import NonFiniteError
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF, gamma, schur_norm, to_unit_scale
from normscope.operators.linear_map import LinearMap


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


MAPS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], float | None]] = {
    "mean": (lambda x: x.mean(), (7,), 1 / math.sqrt(7)),
    "sum of pairs": (lambda x: x.reshape(-1, 2).sum(1), (8,), math.sqrt(2)),
    "copies": (lambda x: x.repeat(5), (3,), math.sqrt(5)),
    "average pool": (lambda x: functional.avg_pool2d(x[None], 2)[0], (2, 4, 4), 0.5),
    "overlapping average pool": (lambda x: functional.avg_pool1d(x[None], 3, 1)[0], (1, 6), None),
    "unequal copies": (lambda x: x[[0, 0, 0, 1, 2]], (3,), math.sqrt(3)),
    "cumulative sum": (lambda x: x.cumsum(0), (6,), None),
    "bilinear": (lambda x: functional.interpolate(x[None], scale_factor=2, mode="bilinear")[0], (1, 3, 3), None),
}


@pytest.mark.parametrize("name", MAPS)
def test_the_bounds_surround_the_norm(name: str) -> None:
    """Attained below, Schur above; exact where windows are equal."""
    function, shape, exact = MAPS[name]
    map = LinearMap.from_function(function, shape)
    truth = float(torch.linalg.matrix_norm(map.matrix(), 2))
    bounds = schur_norm(map)
    assert bounds.lower <= truth * (1 + 1e-12)
    assert truth <= bounds.upper
    if exact is not None:
        assert truth == pytest.approx(exact, rel=1e-12)
        assert bounds.width < 1e-12


def test_zero_maps() -> None:
    """A map that leaves nothing has norm zero, and so has one into nothing."""
    assert schur_norm(LinearMap.from_function(lambda x: 0 * x, (4,))).upper == 0.0
    assert schur_norm(LinearMap.from_function(lambda x: x[:0], (4,))).upper == 0.0


def test_long_sums_leave_room_for_rounding() -> None:
    """A million terms: the margin grows with their number."""
    n = 1_000_000
    bounds = schur_norm(LinearMap.from_function(lambda x: x.sum(), (n,)))
    assert bounds.upper >= 1000.0
    assert 2.0**-53 * n <= bounds.width <= 1e-8
