"""Series of elementary functions at balls against derivatives with many digits."""

from __future__ import annotations

import math

import mpmath
import pytest
from flint import arb, arb_series, ctx

from normscope.operators.scalar.series import FUNCTIONS, ball, either, outward

EXACT = {
    "sigmoid": lambda t: 1 / (1 + mpmath.exp(-t)),
    "softplus": lambda t: mpmath.log1p(mpmath.exp(t)),
    "inverse": lambda t: 1 / t,
    "rsqrt": lambda t: 1 / mpmath.sqrt(t),
    "relu": lambda t: max(t, mpmath.mpf(0)),
    **{name: getattr(mpmath, name) for name in ("exp", "tanh", "erf", "erfc", "sin", "cos", "atan", "asin", "acos")},
    **{name: getattr(mpmath, name) for name in ("sinh", "cosh", "asinh", "acosh", "atanh", "log", "sqrt")},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_coefficients_hold_the_derivatives(name: str) -> None:
    """At points, and at every point of a wide ball."""
    centers = (
        (1.25, 3.0) if name == "acosh" else (0.5, 0.875) if name in ("log", "sqrt", "rsqrt") else (-0.5, 0.25, 0.75)
    )
    for center in centers:
        for radius in (0.0, 0.125):
            with ctx.workprec(200):
                found = FUNCTIONS[name](arb_series([ball(center - radius, center + radius), 1], 4))
            for x in (center - radius, center + radius / 3, center + radius):
                with mpmath.workdps(60):
                    truth = mpmath.taylor(EXACT[name], x, 3)
                for k in range(4):
                    low, high = outward(found[k])
                    assert low - 1e-15 * (1 + abs(low)) <= truth[k] <= high + 1e-15 * (1 + abs(high))
                    if radius == 0.0:
                        assert high - low <= 1e-14 * (1 + abs(low))


def test_across_a_kink_both_sides_hold() -> None:
    """Value and slope of relu; nothing is said of the second derivative."""
    found = FUNCTIONS["relu"](arb_series([ball(-1.0, 2.0), 1], 3))
    assert all(found[0].contains(arb(x)) for x in (0, 2))
    assert all(found[1].contains(arb(x)) for x in (0, 1))
    assert not found[2].is_finite()
    both = either(arb_series([1, 5], 2), arb_series([3, 4], 2))
    assert all(both[k].contains(arb(x)) for k, x in ((0, 1), (0, 3), (1, 5), (1, 4)))


def test_floats_around_a_ball() -> None:
    """Exact numbers stay, others move outward, and what is not a number is unknown."""
    assert outward(arb(0.25)) == (0.25, 0.25)
    low, high = outward(arb(2).sqrt())
    assert low < high <= math.nextafter(math.nextafter(low, 2.0), 2.0)
    assert outward(arb.nan()) == (-math.inf, math.inf)
    assert outward(arb(2000).exp())[0] < math.inf == outward(arb(2000).exp())[1]


def test_far_out_nothing_overflows() -> None:
    """Gates stay finite where their exponentials are not."""
    for name, left, right in (("sigmoid", 0.0, 1.0), ("tanh", -1.0, 1.0), ("softplus", 0.0, 1e300)):
        for x, limit in ((-1e300, left), (1e300, right)):
            low, high = outward(FUNCTIONS[name](arb_series([arb(x), 1], 2))[0])
            assert low == pytest.approx(limit)
            assert high == pytest.approx(limit)
