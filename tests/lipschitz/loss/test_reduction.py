"""Batches: roots rounded up, sums and means, and the worst batch under class weights."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest

from normscope.core.errors import InputError
from normscope.core.value import Kind
from normscope.lipschitz.loss.reduction import (
    constant,
    elementwise,
    nonnegative,
    per_output,
    root_up,
    samplewise,
    unbounded,
    weighted_mean,
)


@pytest.mark.parametrize(
    "square",
    [Fraction(2), Fraction(3, 7), Fraction(10) ** 400, Fraction(1, 10**400), Fraction(0.1) ** 2, Fraction(2) ** -1000],
    ids=str,
)
def test_roots_are_the_least_floats_above(square: Fraction) -> None:
    """No smaller float is large enough."""
    root = root_up(square)
    assert Fraction(root) ** 2 >= square
    assert Fraction(math.nextafter(root, 0.0)) ** 2 < square


def test_roots_of_squares_are_exact() -> None:
    """No rounding where there is nothing to round; negative squares are refused."""
    assert [root_up(Fraction(x) ** 2) for x in (0.0, 1.0, 0.1, 1e200, 3.0)] == [0.0, 1.0, 0.1, 1e200, 3.0]
    with pytest.raises(ValueError, match="at least 0"):
        root_up(Fraction(-1))


def test_roots_at_the_ends_of_the_floats() -> None:
    """Subnormal roots are rounded up, too; beyond the largest float is infinity."""
    tiny = Fraction(5, 4) * Fraction(1, 2**1073)
    assert root_up(tiny**2) >= tiny
    assert root_up(10 * Fraction(1.7e308) ** 2) == math.inf


def test_slopes_of_each_output() -> None:
    """A sum over outputs with slopes of their own: ``m sum s^2``, over ``(m n)^2`` for the mean, the largest alone."""
    slopes = (Fraction(3), Fraction(4))
    assert elementwise(slopes, 2, 5, "sum") == 125
    assert elementwise(slopes, 2, 5, "mean") == Fraction(125, 100)
    assert elementwise(slopes, 2, 5, "none") == 16
    assert samplewise(Fraction(25), 5, "none") == 25


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 3, 7), (0, 2, 5), (0, 0, 4), (1, 1, 50)], ids=str)
@pytest.mark.parametrize(("slope", "shift"), [(2, 0), (1, 3), (1, 40)], ids=str)
def test_worst_batch_of_weights_against_all_batches(
    weights: tuple[int, ...], batch: int, slope: int, shift: int
) -> None:
    """The largest ``sum q(w)/(sum w)^2`` of all batches of classes, for ``q(w) = slope w^2 + shift``."""
    values = tuple(Fraction(w) for w in weights)

    def square(w: Fraction) -> Fraction:
        return slope * w**2 + shift

    every = [b for b in itertools.product(values, repeat=batch) if sum(b) > 0]
    expected = max(sum(map(square, b), Fraction(0)) / sum(b, Fraction(0)) ** 2 for b in every)
    assert weighted_mean(values, square, batch) == expected


def test_values_say_what_they_are() -> None:
    """Certified, with a statement; "no bound" keeps its reason."""
    assert constant(Fraction(4), "LOSS-1").kind is Kind.CERTIFIED
    assert constant(Fraction(4), "LOSS-1").statement == "normscope Proposition LOSS-1"
    none = unbounded("because", "LOSS-5")
    assert (none.log, none.assumptions) == (math.inf, ("because",))


def test_wrong_arguments() -> None:
    """Negative or infinite numbers, weights of another length, no positive weight."""
    for x in (-1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="finite number >= 0"):
            nonnegative(x, "x")
    with pytest.raises(InputError, match="one number for each of the 3 outputs, got 2"):
        per_output([1.0, 2.0], 3, "weight")
    with pytest.raises(InputError, match="positive class weight"):
        weighted_mean([Fraction(0)], lambda w: w**2, 2)
    with pytest.raises(InputError, match="Expected a reduction"):
        samplewise(Fraction(1), 1, "max")
