"""Constants in the log domain: sums and products against fifty digits, always rounded up."""

from __future__ import annotations

import math

import mpmath
import pytest

from normscope.operators.nonlinear import Lip

NUMBERS = [1e-30, 0.1, 1 / 3, 0.7, 1.0, 3.0, 7.7, 1e30, 1e300]


def of(number: float) -> Lip:
    return Lip.constant(math.log(number), 1)


def test_products_are_rounded_up() -> None:
    """Whatever the order: up a thousand times and back again, in logarithms far larger than the result."""
    for number in NUMBERS:
        lip, exact = Lip.constant(0.0, 1), mpmath.mpf(0)
        for factor in [number] * 1000 + [1.0 / number] * 1000:
            lip = lip.scaled(math.log(factor))
        with mpmath.workdps(50):
            exact = 1000 * mpmath.log(mpmath.mpf(number) * mpmath.mpf(1.0 / number))
        assert exact <= lip.certified[0] <= exact + 2000 * 2.0**-50 * (2 + 3000 * abs(math.log(number)))


@pytest.mark.parametrize("a", NUMBERS)
@pytest.mark.parametrize("b", NUMBERS)
def test_sums_are_rounded_up(a: float, b: float) -> None:
    """Of the numbers whose logarithms are stored, not of those they were meant to be."""
    first, second = of(a), of(b)
    with mpmath.workdps(50):
        x, y = mpmath.exp(first.certified[0]), mpmath.exp(second.certified[0])
        plain, square = mpmath.log(x + y), mpmath.log(x * x + y * y) / 2
    assert plain <= (first + second).certified[0] <= plain + 1e-13 * (1 + abs(plain))
    assert square <= first.root_sum_square(second).certified[0] <= square + 1e-13 * (1 + abs(square))


def test_zero_and_infinity() -> None:
    """A map that ignores its input stays zero behind anything; no bound times anything else is no bound."""
    zero, none = Lip.constant(-math.inf, 2), Lip.constant(math.inf, 2)
    assert zero.scaled(math.inf) == zero
    assert none.scaled(-math.inf).certified == (-math.inf, -math.inf)
    assert none.scaled(-5.0) == none
    assert (zero + none) == none
    assert (zero + zero) == zero
    assert zero.total() == (-math.inf, -math.inf)


def test_probabilities_add_up_and_stay_below_one() -> None:
    """A union bound over every norm that may fail."""
    lip = of(2.0).scaled(1.0, 0.9, 1e-9).scaled(1.0, 0.8, 1e-9)
    assert lip.delta == pytest.approx(2e-9)
    assert lip.probable[0] < lip.certified[0]
    assert (lip + lip).delta == pytest.approx(4e-9)
    assert Lip((0.0,), (0.0,), 0.8).root_sum_square(Lip((0.0,), (0.0,), 0.7)).delta == 1.0


def test_blocks_are_kept_apart_until_the_end() -> None:
    """The better bound block by block; all blocks together by the root of the sum of squares."""
    first, second = Lip((math.log(3.0), 0.0), (math.log(3.0), 0.0)), Lip((0.0, math.log(4.0)), (0.0, math.log(4.0)))
    assert first.minimum(second).certified == (0.0, 0.0)
    both = Lip((math.log(3.0), math.log(4.0)), (math.log(3.0), math.log(4.0)))
    assert both.total()[0] == pytest.approx(math.log(5.0), rel=1e-14)
