"""Curves of pieces: bisection, points of interest, slopes and images."""

from __future__ import annotations

import math

import pytest

from normscope.core.errors import InputError
from normscope.operators.scalar.curve import Curve, Piece, affine, bisect, nowhere, periodic, points


def test_bisect_finds_the_zero_to_the_last_bit() -> None:
    """The zero of x^3 - 2 is found as closely as floats allow."""
    root = bisect(lambda x: x**3 - 2.0, 1.0, 2.0)
    assert abs(root - 2.0 ** (1 / 3)) <= math.ulp(root)
    assert bisect(lambda x: -x, -1.0, 2.0) == pytest.approx(0.0, abs=1e-300)


def test_bisect_needs_a_sign_change() -> None:
    """Without one there may be no zero."""
    with pytest.raises(InputError, match="change sign"):
        bisect(lambda x: x * x + 1.0, 0.0, 1.0)


def test_points_near_the_ends_are_kept() -> None:
    """A point that rounding may have moved out of the interval is still considered."""
    inside = points(1.0, 5.0)
    assert inside(1.0 + 1e-13, 2.0) == (1.0,)
    assert inside(1.0 + 1e-9, 2.0) == ()
    assert nowhere(0.0, 1.0) == ()


@pytest.mark.parametrize("low", [-7.3, 0.1, 12.0, 9.9e5])
@pytest.mark.parametrize("width", [0.5, 2.0, 4.0, 40.0])
def test_periodic_finds_a_point_iff_there_is_one(low: float, width: float) -> None:
    """Every interval that holds a multiple of the period is told so."""
    found = periodic(0.0, 3.0)(low, low + width)
    exists = math.floor((low + width) / 3.0) * 3.0 >= low
    assert bool(found) == exists


def test_periodic_of_large_or_infinite_intervals_is_everything() -> None:
    """Where the points cannot be located all values are assumed."""
    assert len(periodic(0.0, 3.0)(-math.inf, 0.0)) == 3
    assert len(periodic(0.0, 3.0)(1e9, 1e9 + 0.1)) == 3


def parabola() -> Curve:
    """Return ``x^2`` on the left of 1 and ``2x - 1`` on the right."""
    left = Piece(
        -math.inf,
        1.0,
        lambda x: (x * x, 0.0),
        lambda x: (2 * x, 0.0),
        turns=points(0.0),
        left=(math.inf, -math.inf),
    )
    return Curve((left, affine(1.0, math.inf, 2.0, -1.0)), least=0.0)


def test_slope_and_image_of_a_curve() -> None:
    """Suprema over pieces, ends and turning points."""
    curve = parabola()
    assert curve.slope(-3.0, 5.0) == 6.0
    assert curve.slope(-0.5, 0.25) == 1.0
    assert curve.slope(0.0, 9.0) == 2.0
    assert curve.slope() == math.inf
    assert curve.image(-3.0, 2.0) == pytest.approx((0.0, 9.0))
    assert curve.image(2.0, 3.0) == pytest.approx((3.0, 5.0))
    assert curve.image() == (0.0, math.inf)


def test_error_bounds_widen_the_result() -> None:
    """The error of an evaluation is added on the safe side."""
    curve = Curve((Piece(0.0, 1.0, lambda x: (x, 0.25), lambda x: (1.0, 0.5)),))
    assert curve.slope(0.0, 1.0) == 1.5
    assert curve.image(0.0, 1.0) == (-0.25, 1.25)
    capped = Curve(curve.pieces, least=0.0, most=1.0, steepest=1.0)
    assert capped.slope(0.0, 1.0) == 1.0
    assert capped.image(0.0, 1.0) == (0.0, 1.0)


def test_outside_the_domain_nothing_is_claimed() -> None:
    """The slope is infinite and the image the whole line."""
    curve = Curve((affine(0.0, 1.0, 1.0),))
    assert curve.slope(-0.5, 0.5) == math.inf
    assert curve.image(0.5, 1.5) == (-math.inf, math.inf)


@pytest.mark.parametrize("ends", [(1.0, 0.0), (math.nan, 1.0), (math.inf, math.inf), (-math.inf, -math.inf)])
def test_an_interval_must_be_one(ends: tuple[float, float]) -> None:
    """Ends in the wrong order, NaN and a point at infinity are refused."""
    with pytest.raises(InputError, match="low <= high"):
        parabola().slope(*ends)
    with pytest.raises(InputError, match="low <= high"):
        parabola().image(*ends)


def test_affine_pieces_know_when_they_are_exact() -> None:
    """Slopes 0, 1 and -1 without offset have no rounding error, others have."""
    assert affine(-1.0, 1.0, -1.0).value(0.3) == (-0.3, 0.0)
    assert affine(-1.0, 1.0, 0.0, 2.5).value(0.3) == (2.5, 0.0)
    assert affine(-1.0, 1.0, 0.1).value(0.3)[1] > 0
    assert affine(-math.inf, 0.0, 2.0).at(-math.inf)[0][0] == -math.inf
    assert affine(-math.inf, 0.0, 0.0, 4.0).at(-math.inf)[0][0] == 4.0
