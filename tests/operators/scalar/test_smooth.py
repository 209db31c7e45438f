"""Smooth activations: every evaluation encloses the many-digit value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest

from normscope.core.errors import InputError
from normscope.operators.scalar.curve import Curve, Piece
from normscope.operators.scalar.smooth import (
    exponential_below_zero,
    log_sigmoid,
    logistic,
    near,
    sigmoid,
    softplus,
    softsign,
    tanh,
    tanhshrink,
)

EXACT: dict[str, tuple[Curve, Callable[[Any], Any]]] = {
    "sigmoid": (sigmoid(), lambda t: 1 / (1 + mpmath.exp(-t))),
    "log_sigmoid": (log_sigmoid(), lambda t: -mpmath.log1p(mpmath.exp(-t))),
    "softplus": (softplus(0.7, 1e9), lambda t: mpmath.log1p(mpmath.exp(mpmath.mpf(0.7) * t)) / mpmath.mpf(0.7)),
    "tanh": (tanh(), mpmath.tanh),
    "tanhshrink": (tanhshrink(), lambda t: t - mpmath.tanh(t)),
    "softsign": (softsign(), lambda t: t / (1 + abs(t))),
}
SLOPES: dict[str, Callable[[Any], Any]] = {
    "sigmoid": lambda t: 1 / (1 + mpmath.exp(-t)) / (1 + mpmath.exp(t)),
    "log_sigmoid": lambda t: 1 / (1 + mpmath.exp(t)),
    "softplus": lambda t: 1 / (1 + mpmath.exp(-mpmath.mpf(0.7) * t)),
    "tanh": lambda t: mpmath.sech(t) ** 2,
    "tanhshrink": lambda t: mpmath.tanh(t) ** 2,
    "softsign": lambda t: 1 / (1 + abs(t)) ** 2,
}
ARGUMENTS = [-1000.0, -745.5, -40.0, -3.0, -1e-9, 0.0, 1e-300, 0.4, 2.0, 37.0, 710.0, 1e5]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("x", ARGUMENTS)
def test_evaluations_enclose_the_truth(name: str, x: float) -> None:
    """Value and slope lie within their stated error at all scales."""
    with mpmath.workdps(400):
        curve, exact = EXACT[name]
        value, error = curve.pieces[0].value(x)
        assert abs(exact(mpmath.mpf(x)) - mpmath.mpf(value)) <= error
        slope, error = curve.pieces[0].slope(x)
        assert abs(SLOPES[name](mpmath.mpf(x)) - mpmath.mpf(slope)) <= error


@pytest.mark.parametrize(("height", "rate"), [(1.0, 1.0), (1.5, 0.3), (-2.0, 1.0), (3.0, 1 / 3), (-3.0, -1 / 3)])
@pytest.mark.parametrize("x", [-50.0, -2.0, -1e-8, 0.0])
def test_exponential_piece_encloses_the_truth(height: float, rate: float, x: float) -> None:
    """The left half of ELU and CELU, for every sign of its factors."""
    piece: Piece = exponential_below_zero(height, rate, abs(height))
    a, b, t = map(mpmath.mpf, (height, rate, x))
    value, error = piece.value(x)
    assert abs(a * mpmath.expm1(b * t) - value) <= error
    slope, error = piece.slope(x)
    assert abs(a * b * mpmath.exp(b * t) - slope) <= error


def test_exponential_piece_in_the_limit() -> None:
    """A positive rate levels off, a negative one grows, none stays."""
    assert exponential_below_zero(2.0, 1.0, 2.0).at(-math.inf) == ((-2.0, 0.0), (0.0, 0.0))
    assert exponential_below_zero(-3.0, -1 / 3, 3.0).at(-math.inf) == ((-math.inf, 0.0), (math.inf, 0.0))
    assert exponential_below_zero(2.0, 0.0, 2.0).at(-math.inf) == ((0.0, 0.0), (0.0, 0.0))


def test_logistic_has_both_tails() -> None:
    """The two tails are computed with full relative accuracy."""
    assert logistic(-40.0) == pytest.approx(math.exp(-40.0), rel=1e-15)
    assert logistic(40.0) == pytest.approx(1.0)
    assert logistic(-1e9) > 0.0


def test_near_keeps_zero_and_infinity() -> None:
    """An exact zero has no error, and infinity gets none added."""
    assert near(0.0) == (0.0, 0.0)
    assert near(math.inf) == (math.inf, 0.0)
    assert near(1.0, 10.0)[1] > near(1.0)[1]


def test_softplus_needs_a_positive_beta() -> None:
    """A zero or negative beta is refused."""
    with pytest.raises(InputError, match="beta > 0"):
        softplus(-1.0, 20.0)
