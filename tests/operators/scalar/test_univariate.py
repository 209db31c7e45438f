"""Constants of functions of one variable against many-digit optima and dense searches."""

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
from normscope.operators.scalar.formula import (
    ACTIVATIONS,
    ONE,
    Formula,
    X,
    add,
    apply,
    constant,
    mul,
    negative,
    raised,
    where,
)
from normscope.operators.scalar.univariate import TOLERANCE, attained, image, slope

mpmath.mp.dps = 50
K = math.sqrt(2 / math.pi)
CUBIC = add(X, mul(constant(0.044715), raised(X, 3)))

#: A formula, the function with many digits, and a point near its steepest one.
STEEPEST: dict[str, tuple[Formula, Callable[[Any], Any], float]] = {
    "silu": (mul(X, apply("sigmoid", X)), lambda x: x / (1 + mpmath.exp(-x)), 2.4),
    "quick gelu": (
        mul(X, apply("sigmoid", mul(constant(1.702), X))),
        lambda x: x / (1 + mpmath.exp(-mpmath.mpf(1.702) * x)),
        1.4,
    ),
    "gelu": (
        mul(mul(constant(0.5), X), add(ONE, apply("erf", mul(constant(math.sqrt(0.5)), X)))),
        lambda x: x / 2 * (1 + mpmath.erf(mpmath.mpf(math.sqrt(0.5)) * x)),
        1.4,
    ),
    "tanh gelu": (
        mul(mul(constant(0.5), X), add(ONE, apply("tanh", mul(constant(K), CUBIC)))),
        lambda x: x / 2 * (1 + mpmath.tanh(mpmath.mpf(K) * (x + mpmath.mpf(0.044715) * x**3))),
        1.4,
    ),
    "mish": (ACTIVATIONS["mish"](X), lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))), 1.5),
    "bell": (apply("exp", negative(raised(X, 2))), lambda x: mpmath.exp(-x * x), 0.7),
    "product": (mul(apply("tanh", X), apply("sigmoid", X)), lambda x: mpmath.tanh(x) / (1 + mpmath.exp(-x)), 0.4),
}


@pytest.mark.parametrize("name", STEEPEST)
def test_the_steepest_slope(name: str) -> None:
    """Above the truth with fifty digits, by no more than the tolerance."""
    formula, truth, start = STEEPEST[name]
    where_ = mpmath.findroot(lambda x: mpmath.diff(truth, x, 2), start)
    true = abs(mpmath.diff(truth, where_))
    found = slope(formula)
    assert true <= found <= float(true) * (1 + 2 * TOLERANCE)
    assert attained(formula) <= float(true)


@settings(derandomize=True, deadline=None, max_examples=12)
@given(st.floats(-8, 8))
def test_the_constant_of_a_swish_does_not_depend_on_its_scale(exponent: float) -> None:
    """``x s(b x)`` is ``x s(x)`` in another unit."""
    found = slope(mul(X, apply("sigmoid", mul(constant(2.0**exponent), X))))
    assert 1.0998393194 <= found <= 1.0998393195 * (1 + 2 * TOLERANCE)


FUNCTIONS: dict[str, tuple[Formula, Callable[[Tensor], Tensor]]] = {
    "silu": (STEEPEST["silu"][0], F.silu),
    "mish": (STEEPEST["mish"][0], F.mish),
    "softsign": (ACTIVATIONS["softsign"](X), F.softsign),
    "elu": (where(X, X, add(apply("exp", X), negative(ONE))), F.elu),
    "two slopes": (where(X, mul(constant(2.0), X), X), lambda x: torch.where(x > 0, 2 * x, x)),
    "square of relu": (raised(apply("relu", X), 2), lambda x: x.relu() ** 2),
    "growing wave": (mul(X, apply("sin", X)), lambda x: x * x.sin()),
    "root": (apply("sqrt", add(ONE, raised(X, 2))), lambda x: (1 + x * x).sqrt()),
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
        found, (least, most) = slope(formula, low, high), image(formula, low, high)
        assert steep * (1 - 1e-9) <= found <= steep + 0.01 * (1 + steep)
        assert least <= y.min().item() <= least + 0.01 * (1 + abs(least))
        assert most >= y.max().item() >= most - 0.01 * (1 + abs(most))


def test_what_has_no_constant() -> None:
    """Growing slopes, poles, jumps and ends of domains are infinite on the line; without them there is a constant."""
    assert slope(raised(X, 2)) == slope(mul(X, apply("sin", X))) == math.inf
    assert slope(apply("inverse", X), -1.0, 1.0) == math.inf
    assert slope(where(X, add(X, ONE), X)) == slope(where(X, add(X, ONE), X), -1.0, 1.0) == math.inf
    assert slope(mul(X, apply("log", X)), -1.0, 1.0) == math.inf
    assert slope(apply("inverse", X), 1.0, math.inf) == pytest.approx(1.0, rel=1e-6)
    assert slope(apply("sqrt", X), 0.25, math.inf) == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(InputError, match="low <= high"):
        slope(X, 1.0, 0.0)


def test_images_on_the_line() -> None:
    """Least values of gates, and both limits of bounded functions."""
    assert image(STEEPEST["silu"][0])[0] == pytest.approx(-0.2784645427610738, rel=1e-6)
    low, high = image(apply("tanh", X))
    assert -1.001 < low <= -1.0
    assert 1.0 <= high < 1.001
    assert image(apply("exp", X)) == (-math.inf, math.inf)  # nothing is claimed where it grows beyond powers
    assert image(X, -1.0, math.inf)[1] == math.inf
    assert image(X, -1.0, math.inf)[0] == pytest.approx(-1.0, rel=1e-6)
