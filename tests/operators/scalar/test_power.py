"""Powers on intervals, exactly compared with rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.core.errors import InputError
from normscope.operators.scalar.power import power

ends = st.floats(-100, 100).map(lambda x: round(x, 3))


@settings(derandomize=True, deadline=None)
@given(st.integers(2, 7), ends, ends)
def test_natural_powers(p: int, a: float, b: float) -> None:
    """Slope and image enclose the exact rational ones, closely."""
    low, high = sorted((a, b))
    curve = power(float(p))
    steepest = p * max(abs(Fraction(low)), abs(Fraction(high))) ** (p - 1)
    slope = Fraction(curve.slope(low, high))
    assert steepest <= slope <= steepest * (1 + Fraction(1, 10**12)) + Fraction(1, 10**300)
    values = [Fraction(low) ** p, Fraction(high) ** p] + ([Fraction(0)] if low <= 0 <= high else [])
    least, most = curve.image(low, high)
    assert Fraction(least) <= min(values)
    assert Fraction(most) >= max(values)
    assert Fraction(least) >= min(values) - abs(min(values)) * Fraction(1, 10**12) - Fraction(1, 10**300)


@settings(derandomize=True, deadline=None)
@given(st.integers(-4, -1), st.floats(0.01, 100), st.floats(0.01, 100), st.booleans())
def test_negative_powers_on_one_side(p: int, a: float, b: float, mirrored: bool) -> None:
    """Away from the pole slope and image enclose the exact rational ones."""
    low, high = sorted((-a, -b) if mirrored else (a, b))
    curve = power(float(p))
    nearest = min(abs(Fraction(low)), abs(Fraction(high)))
    steepest = -p * nearest ** (p - 1)
    assert steepest <= Fraction(curve.slope(low, high)) <= steepest * (1 + Fraction(1, 10**12))
    least, most = curve.image(low, high)
    values = [Fraction(low) ** p, Fraction(high) ** p]
    assert Fraction(least) <= min(values)
    assert max(values) <= Fraction(most)


@pytest.mark.parametrize("p", [-1.0, -2.0, -3.0, -0.5, 0.5])
def test_the_pole_and_the_root_at_zero(p: float) -> None:
    """Zero is infinitely steep for every exponent below one."""
    curve = power(p)
    assert curve.slope(0.0, 1.0) == math.inf
    assert curve.slope(0.0, 0.0) == math.inf


def test_signs_around_a_pole() -> None:
    """An odd negative power runs to both infinities, an even one to one."""
    assert power(-1.0).image(-1.0, -0.5)[1] < 0
    assert power(-1.0).image(-1.0, 0.0)[0] == -math.inf
    assert power(-2.0).image(-1.0, 1.0)[0] == pytest.approx(1.0)


def test_trivial_exponents() -> None:
    """Exponents zero and one are a constant and the identity."""
    assert power(0.0).slope() == 0.0
    assert power(0.0).image() == (1.0, 1.0)
    assert power(1.0).slope() == 1.0
    assert power(2.5).slope(-1.0, 1.0) == math.inf  # not defined on the left
    with pytest.raises(InputError, match="finite exponent"):
        power(math.nan)


def test_overflow() -> None:
    """Values beyond the float range become bounds that hold."""
    assert power(9.0).image(0.0, 1e300)[1] == math.inf
    assert power(9.0).slope(0.0, 1e300) == math.inf
    assert power(3.0).image(-1e300, 0.0) == (-math.inf, 0.0)
