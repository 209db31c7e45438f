"""The interval type: ordered, outward, never silently wrong."""

from __future__ import annotations

import math

import pytest

from normscope.linalg.bounds import NormBounds, largest_norm


def test_bounds_out_of_order_are_refused() -> None:
    """Lower, probable and upper are ordered, and none is NaN."""
    with pytest.raises(ValueError, match="lower <= probable <= upper"):
        NormBounds(1.0, 0.5, 0.5, 0.0, "wrong")
    with pytest.raises(ValueError, match="lower <= probable <= upper"):
        NormBounds(0.0, 1.0, 2.0, 0.0, "wrong")
    with pytest.raises(ValueError, match="NaN"):
        NormBounds(math.nan, 1.0, 1.0, 0.0, "wrong")
    with pytest.raises(ValueError, match="delta"):
        NormBounds(0.0, 1.0, 1.0, 1.0, "wrong")


def test_widening_moves_outwards_by_what_was_asked() -> None:
    """A relative error r moves both ends by it, and by no more than a few ulps beyond."""
    wide = NormBounds.exact(5.0, method="x", relative=1e-3)
    assert wide.lower <= 5.0 * (1 - 1e-3) < 5.0 * (1 + 1e-3) <= wide.upper
    assert wide.width == pytest.approx(2e-3, rel=2e-3)
    with pytest.raises(ValueError, match="relative error"):
        wide.widen(1.0)


def test_scaling_keeps_the_truth_inside() -> None:
    """Adding a logarithm rounds: the scaled interval still holds the scaled number."""
    bounds = NormBounds.exact(3.0, method="x").scaled(math.log(7.0))
    assert bounds.lower <= 21.0 <= bounds.upper
    assert bounds.width < 1e-14


def test_zero_and_infinity() -> None:
    """The zero map has width zero; a missing certificate has infinite width."""
    zero = NormBounds.exact(0.0, method="zero")
    assert zero.scaled(5.0).upper == 0.0
    assert zero.width == 0.0
    none = NormBounds.certified(0.0, math.inf, "none")
    assert none.width == math.inf
    assert none.scaled(1.0).upper == math.inf
    assert NormBounds.certified(900.0, 900.0, "huge").upper == math.inf


def test_a_certificate_replaces_only_what_is_weaker() -> None:
    """A better certificate takes over the probable bound as well, and its delta is zero."""
    start = NormBounds(0.0, math.inf, 0.5, 1e-9, "lanczos")
    loose = start.with_upper(1.0, "torus")
    assert (loose.log_upper, loose.log_probable, loose.delta) == (1.0, 0.5, 1e-9)
    tight = start.with_upper(0.25, "torus")
    assert (tight.log_upper, tight.log_probable, tight.delta) == (0.25, 0.25, 0.0)
    assert tight.with_upper(0.3, "other") == tight
    assert tight.with_probable(0.3, 1e-9, "other") == tight


def test_contradictions_are_refused() -> None:
    """An attained value above a certificate means one of them is wrong; nothing hides it."""
    with pytest.raises(ValueError, match="one of them is wrong"):
        NormBounds.certified(0.0, 1.0, "x").with_upper(-0.1, "y")
    with pytest.raises(ValueError, match="one of them is wrong"):
        NormBounds.certified(0.0, 1.0, "x").with_lower(1.1)


def test_block_diagonal_takes_the_largest_and_adds_failure_probabilities() -> None:
    """Each end is maximised by itself; two probabilistic bounds fail with the sum of their deltas."""
    a = NormBounds(0.0, 2.0, 0.5, 1e-9, "a")
    b = NormBounds(0.2, 1.0, 0.4, 2e-9, "b")
    both = largest_norm([a, b])
    assert (both.log_lower, both.log_upper, both.log_probable) == (0.2, 2.0, 0.5)
    assert both.delta == pytest.approx(3e-9)
    assert largest_norm([]).upper == 0.0


def test_bounds_from_numbers_go_outwards() -> None:
    """The logarithms are moved away from each other, so the numbers lie inside."""
    for lower, upper in ((1.0, 1.0), (0.1, 3.0), (1e-300, 1e300)):
        bounds = NormBounds.between(lower, upper, "")
        assert bounds.lower <= lower
        assert bounds.upper >= upper
        assert bounds.log_upper - math.log(upper) < 1e-12 * max(1.0, abs(math.log(upper)))
    assert NormBounds.between(0.0, 0.0, "").upper == 0.0


def test_the_tightest_of_two_bounds() -> None:
    """Each side comes from the one that knows more; a probable bound keeps its chance of failing."""
    attained = NormBounds(math.log(2.0), math.inf, math.log(3.0), 1e-9, "lanczos")
    product = NormBounds(-math.inf, math.log(5.0), math.log(5.0), 0.0, "product")
    both = attained.meet(product)
    assert (both.lower, both.upper, both.probable) == pytest.approx((2.0, 5.0, 3.0))
    assert (both.delta, both.method) == (1e-9, "lanczos")
    sure = attained.meet(NormBounds.between(0.0, 2.5, "product"))
    assert (sure.delta, sure.probable) == (0.0, sure.upper)


def test_a_certificate_below_an_attained_value_is_refused() -> None:
    """By rounding it may lie a hair below; by more, one of them is wrong."""
    three = NormBounds(math.log(3.0), math.inf, math.inf, 0.0, "lanczos")
    with pytest.raises(ValueError, match="one of them is wrong"):
        three.meet(NormBounds(-math.inf, math.log(2.9), math.log(2.9), 0.0, "given"))
    nearly = three.meet(NormBounds(-math.inf, math.log(3.0) - 1e-12, math.log(3.0) - 1e-12, 0.0, "given"))
    assert nearly.log_lower == nearly.log_upper == math.log(3.0)
