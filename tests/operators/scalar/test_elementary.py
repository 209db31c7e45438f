"""Elementary functions: every evaluation encloses the many-digit value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest

from normscope.operators.scalar import elementary

LINE = [-700.0, -30.0, -2.0, -1e-9, 0.0, 0.3, 5.0, 30.0, 700.0]
UNIT_INTERVAL = [-1.0 + 1e-9, -0.5, 0.0, 0.1, 0.999]
#: Exact function, exact derivative, arguments.
EXACT: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], list[float]]] = {
    "exp": (mpmath.exp, mpmath.exp, LINE),
    "exp2": (lambda t: mpmath.mpf(2) ** t, lambda t: mpmath.log(2) * mpmath.mpf(2) ** t, LINE),
    "expm1": (mpmath.expm1, mpmath.exp, LINE),
    "log": (mpmath.log, lambda t: 1 / t, [1e-300, 0.2, 1.0, 1e300]),
    "log2": (lambda t: mpmath.log(t, 2), lambda t: 1 / t / mpmath.log(2), [1e-300, 0.2, 1.0, 1e300]),
    "log10": (mpmath.log10, lambda t: 1 / t / mpmath.log(10), [1e-300, 0.2, 1.0, 1e300]),
    "log1p": (mpmath.log1p, lambda t: 1 / (1 + t), [-1 + 1e-10, -0.5, 1e-12, 3.0, 1e10]),
    "sin": (mpmath.sin, mpmath.cos, [-1e5, -2.0, 0.0, 1e-5, 3.0, 1e15]),
    "cos": (mpmath.cos, lambda t: -mpmath.sin(t), [-1e5, -2.0, 0.0, 1e-5, 3.0, 1e15]),
    "sinh": (mpmath.sinh, mpmath.cosh, LINE),
    "cosh": (mpmath.cosh, mpmath.sinh, LINE),
    "asin": (mpmath.asin, lambda t: 1 / mpmath.sqrt(1 - t * t), UNIT_INTERVAL),
    "acos": (mpmath.acos, lambda t: -1 / mpmath.sqrt(1 - t * t), UNIT_INTERVAL),
    "atanh": (mpmath.atanh, lambda t: 1 / (1 - t * t), UNIT_INTERVAL),
    "atan": (mpmath.atan, lambda t: 1 / (1 + t * t), [-1e200, -3.0, 0.0, 0.5, 1e10]),
    "asinh": (mpmath.asinh, lambda t: 1 / mpmath.sqrt(1 + t * t), [-1e200, -3.0, 0.0, 0.5, 1e10]),
    "acosh": (mpmath.acosh, lambda t: 1 / mpmath.sqrt(t * t - 1), [1 + 1e-9, 2.0, 1e10]),
    "erf": (mpmath.erf, lambda t: 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-t * t), [-30.0, -2.0, 0.0, 1e-8, 5.0]),
    "erfc": (mpmath.erfc, lambda t: -2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-t * t), [-30.0, -2.0, 0.0, 1e-8, 26.0]),
}


@pytest.mark.parametrize(("name", "x"), [(name, x) for name, (_, _, xs) in EXACT.items() for x in xs])
def test_evaluations_enclose_the_truth(name: str, x: float) -> None:
    """Value and slope lie within their stated error, and the error is small."""
    with mpmath.workdps(650):
        value_of, slope_of, _ = EXACT[name]
        piece = getattr(elementary, name)().pieces[0]
        for exact, (number, error) in ((value_of, piece.value(x)), (slope_of, piece.slope(x))):
            assert abs(exact(mpmath.mpf(x)) - mpmath.mpf(number)) <= error
            assert error <= 1e-11 * abs(number) + 1e-299


@pytest.mark.parametrize("name", ["exp", "exp2", "expm1", "sinh", "cosh"])
def test_overflow_is_infinite_and_has_the_right_sign(name: str) -> None:
    """Arguments beyond the float range give unbounded slopes and one-sided images."""
    curve = getattr(elementary, name)()
    assert curve.slope(0.0, 5000.0) == math.inf
    assert curve.image(0.0, 5000.0)[1] == math.inf
    low = curve.image(-5000.0, 0.0)[0]
    assert low == (-math.inf if name == "sinh" else curve.least)


@pytest.mark.parametrize(
    ("name", "end"), [("log", 0.0), ("log1p", -1.0), ("acosh", 1.0), ("asin", 1.0), ("atanh", -1.0)]
)
def test_ends_of_the_domain_are_infinitely_steep(name: str, end: float) -> None:
    """At the end of the domain the slope is infinite."""
    assert getattr(elementary, name)().slope(end, end) == math.inf


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (1.0, 2.0), (2.0, 5.0), (3.0, 3.3), (-4.6, -1.6), (100.0, 101.0)]
)
def test_waves_on_intervals(low: float, high: float) -> None:
    """Sine and cosine reach their extrema exactly when the interval holds them."""
    for name, function in (("sin", math.sin), ("cos", math.cos)):
        values = [function(low + (high - low) * k / 20000) for k in range(20001)]
        least, most = getattr(elementary, name)().image(low, high)
        assert least <= min(values)
        assert most >= max(values)
        assert least >= min(values) - 1e-7
        assert most <= max(values) + 1e-7
