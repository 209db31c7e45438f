"""Expansions far out against values and derivatives with many digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import pytest

from normscope.operators.scalar.asymptotics import Tail, Terms, UnknownTailError, expand, joined, supremum, times
from normscope.operators.scalar.formula import ONE, Formula, X, apply, constant, where

CASES: dict[str, tuple[Formula, Callable[[Any], Any]]] = {
    "silu": (X * apply("sigmoid", X), lambda x: x / (1 + mpmath.exp(-x))),
    "gate first": (apply("sigmoid", X) * X, lambda x: x / (1 + mpmath.exp(-x))),
    "tanh": (X * apply("tanh", X + X**3), lambda x: x * mpmath.tanh(x + x**3)),
    "erf": (X * apply("erf", constant(0.5) * X), lambda x: x * mpmath.erf(x / 2)),
    "mish": (
        X * apply("tanh", apply("softplus", X)),
        lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))),
    ),
    "root": (apply("sqrt", ONE + X**2), lambda x: mpmath.sqrt(1 + x * x)),
    "inverse root": (X * apply("rsqrt", ONE + X**2), lambda x: x / mpmath.sqrt(1 + x * x)),
    "rational": (X * apply("inverse", ONE + X**2), lambda x: x / (1 + x * x)),
    "logarithm": (apply("log", ONE + X**2), lambda x: mpmath.log(1 + x * x)),
    "bell": (apply("exp", -(X**2)), lambda x: mpmath.exp(-x * x)),
    "wave": (X + apply("sin", X), lambda x: x + mpmath.sin(x)),
    "arc": (X * apply("atan", X), lambda x: x * mpmath.atan(x)),
    "settled": (apply("exp", apply("tanh", X)), lambda x: mpmath.exp(mpmath.tanh(x))),
    "choice": (where(X + ONE, X**2, X), lambda x: x * x if x > -1 else x),
}


def value(terms: Terms, s: Any) -> Any:
    """Return a sum of terms at a point."""
    return sum(c * mpmath.mpf(s) ** m * mpmath.exp(-k * s) for (m, k), c in terms.items())


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("name", CASES)
def test_remainders_are_bounded(name: str, side: int) -> None:
    """The function less its polynomial, and the derivative less that of the polynomial, at many points."""
    formula, truth = CASES[name]
    start = 4.0
    tail = expand(formula, side, start)
    polynomial = list(enumerate(tail.polynomial))

    def rest(t: Any) -> Any:
        return truth(side * t) - sum(mpmath.mpf(p.numerator) / p.denominator * t**i for i, p in polynomial)

    with mpmath.workdps(90):
        for s in (4.0, 4.7, 6.0, 9.0, 20.0, 100.0):
            assert abs(rest(mpmath.mpf(s))) <= value(tail.value, s) + mpmath.mpf(10) ** -80
            assert abs(mpmath.diff(rest, s)) <= value(tail.slope, s) + mpmath.mpf(10) ** -25
    assert supremum(tail.steep(), start) >= max(abs(mpmath.diff(lambda t: truth(side * t), s)) for s in (4.0, 5.0, 9.0))


def test_suprema_of_terms() -> None:
    """The top of ``s exp(-s)`` is at one; a growing term has none; a start beyond the top counts."""
    assert supremum({(1.0, 1.0): 1.0}, 0.1) == pytest.approx(math.exp(-1.0), rel=1e-9)
    assert supremum({(1.0, 1.0): 1.0}, 3.0) == pytest.approx(3.0 * math.exp(-3.0), rel=1e-9)
    assert supremum({(0.5, 0.0): 1e-9}, 1.0) == math.inf
    assert supremum({}, 1.0) == 0.0
    assert supremum(joined({(0.0, 1.0): 1.0}, {(0.0, 1.0): 2.0}), 1.0) >= 3.0 * math.exp(-1.0)
    assert list(times({(1.0, 1.0): 1.0}, {(2.0, 1.0): 1.0})) == [(3.0, pytest.approx(2.0))]


def test_what_is_not_known_is_refused() -> None:
    """Growth beyond powers, a start before the leading term leads, and domains that are left."""
    for formula, side in ((apply("exp", X), 1), (apply("log", X), -1), (apply("sqrt", X), -1)):
        with pytest.raises(UnknownTailError):
            expand(formula, side, 4.0)
    with pytest.raises(UnknownTailError):
        expand(apply("tanh", X + constant(-100.0)), 1, 4.0)
    assert expand(apply("tanh", X + constant(-100.0)), 1, 128.0).polynomial == (Fraction(1),)


def test_arithmetic_is_exact_in_the_polynomial() -> None:
    """``(s + 1)(s - 1) = s^2 - 1``, and cancelling terms leave no degree."""
    a, b = Tail((Fraction(1), Fraction(1))), Tail((Fraction(-1), Fraction(1)))
    assert (a * b).polynomial == (Fraction(-1), Fraction(0), Fraction(1))
    assert (a + Tail((Fraction(0), Fraction(-1)))).degree == 0
