"""Intervals and jets against values and derivatives with fifty digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from normscope.operators.scalar.interval import FUNCTIONS, Interval, chain, outward, power, product

mpmath.mp.dps = 50

#: Each function with many digits, and the interval its arguments are drawn from.
TRUTH: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "exp": (mpmath.exp, -30, 30),
    "sigmoid": (lambda t: 1 / (1 + mpmath.exp(-t)), -40, 40),
    "softplus": (lambda t: mpmath.log1p(mpmath.exp(t)), -40, 40),
    "tanh": (mpmath.tanh, -20, 20),
    "erf": (mpmath.erf, -6, 6),
    "atan": (mpmath.atan, -50, 50),
    "sin": (mpmath.sin, -20, 20),
    "cos": (mpmath.cos, -20, 20),
    "relu": (lambda t: max(t, mpmath.mpf(0)), -3, 3),
    "log": (mpmath.log, 0.01, 50),
    "sqrt": (mpmath.sqrt, 0.01, 50),
    "rsqrt": (lambda t: 1 / mpmath.sqrt(t), 0.01, 50),
    "inverse": (lambda t: 1 / t, 0.01, 50),
}


def test_ends_move_outward_wherever_they_are() -> None:
    """Zero and subnormal numbers too, of which a share would be rounded away; infinite ends stay."""
    ends = np.array([0.0, 5e-324, -5e-324, 1.0, -1e300, 1e-300])
    moved = outward(ends, ends)
    assert (moved.low < ends).all()
    assert (moved.high > ends).all()
    assert outward(np.array([-np.inf]), np.array([np.inf])).high[0] == np.inf


def test_every_function_is_checked() -> None:
    """No function without its truth."""
    assert set(TRUTH) == set(FUNCTIONS)


@pytest.mark.parametrize("name", TRUTH)
def test_value_and_derivatives_lie_inside(name: str) -> None:
    """On random intervals, wide and narrow, at random points of them."""
    function, low, high = TRUTH[name]
    random = np.random.default_rng(0)
    for width in (1e-6, 0.1, 3.0):
        for _ in range(6):
            start = random.uniform(low, high)
            box = Interval.of(start, start + width)
            jets = FUNCTIONS[name](box)
            for share in (0.0, random.uniform(), 1.0):
                t = mpmath.mpf(float(start + share * width))
                t = min(max(t, mpmath.mpf(float(box.low[0]))), mpmath.mpf(float(box.high[0])))
                for order, jet in enumerate(jets):
                    if name == "relu" and order:
                        true = mpmath.mpf(1 if t > 0 and order == 1 else 0)
                    else:
                        true = mpmath.diff(function, t, order) if order else function(t)
                    slack = mpmath.mpf(10) ** -12 * (1 + abs(true)) if order else 0  # numerical differentiation
                    assert jet.low[0] - slack <= true <= jet.high[0] + slack, (name, order, t)


def test_the_inverse_of_negative_numbers() -> None:
    """Its second derivative 2/t^3 is negative there."""
    value, slope, bend = FUNCTIONS["inverse"](Interval.of(-2.0, -1.0))
    for t in (-2.0, -1.5, -1.0):
        assert value.low[0] <= 1 / t <= value.high[0]
        assert slope.low[0] <= -1 / t**2 <= slope.high[0]
        assert bend.low[0] <= 2 / t**3 <= bend.high[0]


def test_intervals_are_narrow() -> None:
    """At a point the enclosures are as wide as rounding, not more."""
    for name, (_, low, high) in TRUTH.items():
        point = (low + 2 * high) / 3
        for jet in FUNCTIONS[name](Interval.of(point, point)):
            assert jet.high[0] - jet.low[0] <= 1e-11 * (1 + abs(jet.high[0])), name


def test_waves_meet_their_extrema() -> None:
    """An interval that holds a maximum has it, one that does not has less."""
    sine = FUNCTIONS["sin"](Interval.of([0.0, 0.0, 4.0, 1e7], [1.0, 2.0, 5.0, 1e7]))[0]
    assert sine.high[0] == pytest.approx(math.sin(1.0), rel=1e-12)
    assert sine.high[1] == 1.0
    assert sine.low[2] == -1.0
    assert (sine.low[3], sine.high[3]) == (-1.0, 1.0)


@pytest.mark.parametrize("turns", [0, -3, 10_000])
def test_an_extremum_near_an_end_is_not_missed(turns: int) -> None:
    """Where the rounding of the position is larger than its distance from the end."""
    peak, trough = ((2 * turns + share) * math.pi for share in (0.5, 1.5))
    for low, high in ((-1e-5, 0.1), (-0.1, 1e-5)):
        sine = FUNCTIONS["sin"](Interval.of([peak + low, trough + low], [peak + high, trough + high]))[0]
        assert mpmath.sin(mpmath.mpf(peak)) <= sine.high[0]
        assert mpmath.sin(mpmath.mpf(trough)) >= sine.low[1]


def test_poles_and_ends_of_domains_are_unknown() -> None:
    """Nothing is claimed where a function is not defined or unbounded."""
    for name in ("inverse", "log", "sqrt", "rsqrt"):
        for jet in FUNCTIONS[name](Interval.of(-1.0, 1.0)):
            assert (jet.low[0], jet.high[0]) == (-math.inf, math.inf)


def test_arithmetic() -> None:
    """Sums, differences and products of all corners; zero times infinity is anything."""
    a, b = Interval.of(-1.0, 2.0), Interval.of(-3.0, 0.5)
    assert (a + b).low[0] <= -4.0 <= -3.9 < (a + b).high[0]
    assert (a - b).high[0] >= 5.0
    assert (a * b).low[0] <= -6.0
    assert (a * b).high[0] == pytest.approx(3.0)
    with np.errstate(all="ignore"):
        assert (Interval.of(0.0, 0.0) * Interval.of(-math.inf, math.inf)).high[0] == math.inf
    found = outward(np.array([math.nan, math.inf]), np.array([math.nan, math.inf]))
    assert found.low[0] == -math.inf
    assert found.low[1] < math.inf


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_powers(n: int) -> None:
    """Even powers of an interval about zero begin at zero."""
    value, slope, bend = power(Interval.of(-1.5, 2.0), n)
    assert value.low[0] == pytest.approx(0.0 if n % 2 == 0 else -(1.5**n), rel=1e-12, abs=1e-290)
    assert value.high[0] >= 2.0**n
    assert slope.high[0] >= n * 2.0 ** (n - 1)
    assert bend.high[0] >= n * (n - 1) * 2.0 ** (n - 2)


def test_product_and_chain() -> None:
    """``x^2 sin(x)`` at one by its own derivatives."""
    at = Interval.of(1.0, 1.0)
    one, zero = Interval.of(1.0, 1.0), Interval.of(0.0, 0.0)
    x = (at, one, zero)
    found = product(chain(power(at, 2), x), chain(FUNCTIONS["sin"](at), x))
    for order, jet in enumerate(found):
        true = float(mpmath.diff(lambda t: t**2 * mpmath.sin(t), 1, order))
        assert jet.low[0] - 1e-12 <= true <= jet.high[0] + 1e-12
