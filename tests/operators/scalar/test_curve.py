"""Ranges of formulas and of their slopes against many-digit optima and dense searches, and curves of pieces."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normscope.core.errors import InputError
from normscope.operators.scalar.curve import Curve, Piece, critical, enclosure, line, slope
from normscope.operators.scalar.formula import ACTIVATIONS, ONE, Formula, X, apply, constant, where

mpmath.mp.dps = 50
K = math.sqrt(2 / math.pi)
CUBIC = X + constant(0.044715) * X**3

#: A formula, the function with many digits, and a point near its steepest one.
STEEPEST: dict[str, tuple[Formula, Callable[[Any], Any], float]] = {
    "silu": (X * apply("sigmoid", X), lambda x: x / (1 + mpmath.exp(-x)), 2.4),
    "quick gelu": (
        X * apply("sigmoid", constant(1.702) * X),
        lambda x: x / (1 + mpmath.exp(-mpmath.mpf(1.702) * x)),
        1.4,
    ),
    "gelu": (
        constant(0.5) * X * (ONE + apply("erf", constant(math.sqrt(0.5)) * X)),
        lambda x: x / 2 * (1 + mpmath.erf(mpmath.mpf(math.sqrt(0.5)) * x)),
        1.4,
    ),
    "tanh gelu": (
        constant(0.5) * X * (ONE + apply("tanh", constant(K) * CUBIC)),
        lambda x: x / 2 * (1 + mpmath.tanh(mpmath.mpf(K) * (x + mpmath.mpf(0.044715) * x**3))),
        1.4,
    ),
    "mish": (ACTIVATIONS["mish"](X), lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))), 1.5),
    "bell": (apply("exp", -(X**2)), lambda x: mpmath.exp(-x * x), 0.7),
    "product": (apply("tanh", X) * apply("sigmoid", X), lambda x: mpmath.tanh(x) / (1 + mpmath.exp(-x)), 0.4),
}


@pytest.mark.parametrize("name", STEEPEST)
def test_the_steepest_slope(name: str) -> None:
    """Above the truth with fifty digits, by no more than rounding."""
    formula, truth, start = STEEPEST[name]
    where_ = mpmath.findroot(lambda x: mpmath.diff(truth, x, 2), start)
    true = abs(mpmath.diff(truth, where_))
    found = slope(formula)
    assert true <= found <= float(true) * (1 + 1e-14)


@settings(derandomize=True, deadline=None, max_examples=12)
@given(st.floats(-8, 8))
def test_the_constant_of_a_swish_does_not_depend_on_its_scale(exponent: float) -> None:
    """``x s(b x)`` is ``x s(x)`` in another unit."""
    found = slope(X * apply("sigmoid", constant(2.0**exponent) * X))
    assert 1.0998393194 <= found <= 1.0998393202


FUNCTIONS: dict[str, tuple[Formula, Callable[[Tensor], Tensor]]] = {
    "silu": (STEEPEST["silu"][0], F.silu),
    "mish": (STEEPEST["mish"][0], F.mish),
    "softsign": (ACTIVATIONS["softsign"](X), F.softsign),
    "elu": (where(X, X, apply("exp", X) - ONE), F.elu),
    "two slopes": (where(X, constant(2.0) * X, X), lambda x: torch.where(x > 0, 2 * x, x)),
    "square of relu": (apply("relu", X) ** 2, lambda x: x.relu() ** 2),
    "growing wave": (X * apply("sin", X), lambda x: x * x.sin()),
    "root": (apply("sqrt", ONE + X**2), lambda x: (1 + x * x).sqrt()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_on_intervals(name: str) -> None:
    """Slope and image on intervals: never exceeded on a dense grid, and nearly reached."""
    formula, function = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        low, high = sorted((16 * torch.rand(2, generator=generator, dtype=torch.float64) - 8).tolist())
        x = torch.linspace(low, high, 4001, dtype=torch.float64)
        y = function(x)
        steep = ((y[1:] - y[:-1]) / (x[1:] - x[:-1])).abs().max().item()
        found, (least, most) = slope(formula, low, high), enclosure(formula, 0, low, high)
        assert steep * (1 - 1e-9) <= found <= steep + 0.01 * (1 + steep)
        assert least <= y.min().item() <= least + 0.01 * (1 + abs(least))
        assert most >= y.max().item() >= most - 0.01 * (1 + abs(most))


def test_what_has_no_constant() -> None:
    """Growing slopes, poles, jumps and ends of domains are infinite on the line; without them there is a constant."""
    assert slope(X**2) == slope(X * apply("sin", X)) == math.inf
    assert slope(apply("inverse", X), -1.0, 1.0) == math.inf
    assert slope(where(X, X + ONE, X)) == slope(where(X, X + ONE, X), -1.0, 1.0) == math.inf
    assert slope(X * apply("log", X), -1.0, 1.0) == math.inf
    assert slope(apply("inverse", X), 1.0, math.inf) == pytest.approx(1.0, rel=1e-6)
    assert slope(apply("sqrt", X), 0.25, math.inf) == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(InputError, match="low <= high"):
        slope(X, 1.0, 0.0)


def test_images_on_the_line() -> None:
    """Least values of gates, and both limits of bounded functions."""
    assert enclosure(STEEPEST["silu"][0], 0)[0] == pytest.approx(-0.2784645427610738, rel=1e-14)
    low, high = enclosure(apply("tanh", X), 0)
    assert -1.001 < low <= -1.0
    assert 1.0 <= high < 1.001
    assert enclosure(apply("exp", X), 0) == (-math.inf, math.inf)  # nothing is claimed where it grows beyond powers
    assert enclosure(X, 0, -1.0, math.inf) == pytest.approx((-1.0, math.inf), rel=1e-15)


def changes(values: Tensor) -> int:
    """Return the number of sign changes in a sequence."""
    signs = values[values != 0].sign()
    return int((signs[1:] != signs[:-1]).sum())


@pytest.mark.parametrize("name", ["silu", "mish", "quick gelu", "tanh gelu", "gelu", "bell", "product"])
def test_the_points_where_a_function_turns_are_all_there_are(name: str) -> None:
    """As many as sign changes of derivatives by automatic differentiation on a dense grid, and each is one."""
    formula, truth, _ = STEEPEST[name]
    grid = [mpmath.mpf(k) / 16 + mpmath.mpf("0.001") for k in range(-128, 128)]
    for order in (0, 1):
        derivative = torch.tensor([float(mpmath.sign(mpmath.diff(truth, x, order + 1))) for x in grid])
        found = critical(formula, order)
        assert found is not None
        assert sum(-8 < low < 8 for low, _ in found) == changes(derivative)
        for low, high in found:
            assert high - low <= 1e-15 * max(1.0, abs(low)) or slope(formula, low, high) < 1e-30


def test_a_sine_turns_too_often_to_list() -> None:
    """Its range is found without."""
    wave = apply("sin", constant(3.0) * X)
    assert critical(wave, 0) is None
    assert enclosure(wave, 0, 0.1, 0.9) == pytest.approx((math.sin(0.3), 1.0), abs=1e-8)
    assert slope(wave) == pytest.approx(3.0, rel=1e-12)
    assert slope(wave, 0.4, 0.5) == pytest.approx(3 * math.cos(1.2), rel=1e-8)


def test_kinks_count_from_both_sides() -> None:
    """The slope of ``relu(x - 0.3)^2 - |x|`` is steepest on the left of zero."""
    kinked = apply("relu", X + constant(-0.3)) ** 2 - ACTIVATIONS["abs"](X)
    assert enclosure(kinked, 1, -1.0, 0.5) == pytest.approx((-1.0, 1.0))
    assert enclosure(kinked, 1, 0.1, 0.8) == pytest.approx((-1.0, 0.0), abs=1e-12)
    assert enclosure(kinked, 0, -1.0, 0.25) == pytest.approx((-1.0, 0.0), abs=1e-12)


def test_a_plateau_counts() -> None:
    """Between two bends the slope is constant and largest: ``relu(x) - relu(x - 1)``, smoothed by squares."""
    ramp = [apply("relu", X + constant(-c)) ** 2 for c in (0.0, 1.0, 3.0, 4.0)]
    formula = ramp[0] - ramp[1] + (-ramp[2] + ramp[3])
    assert slope(formula) == pytest.approx(2.0, rel=1e-12)
    assert slope(formula, -1.0, 9.0) == pytest.approx(2.0, rel=1e-12)
    assert slope(formula, 3.5, 9.0) == pytest.approx(1.0, rel=1e-12)


def parabola() -> Curve:
    """Return ``x^2`` on the left of 1 and ``2x - 1`` on the right."""
    left = Piece(-math.inf, 1.0, X**2, turns=(0.0,), bends=(), left=(math.inf, -math.inf))
    return Curve((left, line(1.0, math.inf, constant(2.0) * X + constant(-1.0))), least=0.0)


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


def test_exact_limits_cap_the_result() -> None:
    """What is known exactly is not exceeded by rounding."""
    curve = Curve((line(0.0, 1.0, apply("inverse", constant(3.0)) * X),))
    assert curve.slope(0.0, 1.0) == math.nextafter(1 / 3, 1.0)
    capped = Curve(curve.pieces, least=0.0, most=0.25, steepest=0.25)
    assert capped.slope(0.0, 1.0) == 0.25
    assert capped.image(0.0, 1.0) == (0.0, 0.25)


def test_outside_the_domain_nothing_is_claimed() -> None:
    """The slope is infinite and the image the whole line."""
    curve = Curve((line(0.0, 1.0, X),))
    assert curve.slope(-0.5, 0.5) == math.inf
    assert curve.image(0.5, 1.5) == (-math.inf, math.inf)


@pytest.mark.parametrize("ends", [(1.0, 0.0), (math.nan, 1.0), (math.inf, math.inf), (-math.inf, -math.inf)])
def test_an_interval_must_be_one(ends: tuple[float, float]) -> None:
    """Ends in the wrong order, NaN and a point at infinity are refused."""
    with pytest.raises(InputError, match="low <= high"):
        parabola().slope(*ends)
    with pytest.raises(InputError, match="low <= high"):
        parabola().image(*ends)
