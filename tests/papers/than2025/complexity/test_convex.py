"""Convex counts: the subgradient method on the worst functions is neither slower nor faster than they say."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.value import Kind, Value
from normscope.papers.than2025.complexity import (
    convex_lower,
    convex_upper,
    strongly_convex_lower,
    strongly_convex_upper,
)


def _certified(x: float) -> Value:
    return Value.of(x, Kind.CERTIFIED)


def _subgradient(x: Tensor, slope: float, modulus: float) -> Tensor:
    """Return a subgradient of ``slope max_i x_i + modulus ||x||^2/2``: that of the first of the largest."""
    g = modulus * x
    g[int(torch.argmax(x))] += slope
    return g


def _value(x: Tensor, slope: float, modulus: float) -> float:
    return slope * float(x.max()) + modulus * float(x @ x) / 2


@pytest.mark.parametrize("t", [1, 4, 25, 100])
def test_worst_convex_function_is_between_the_bounds(t: int) -> None:
    """After ``t`` steps on it the gap is at least what forbids fewer, and at most what allows as many."""
    L, R = 3.0, 2.0
    root = math.sqrt(t)
    slope, modulus = L * root / (1 + root), L / (R * (1 + root))
    least = -(slope**2) / (2 * modulus * t)
    x, best, mean = torch.zeros(t, dtype=torch.float64), math.inf, torch.zeros(t, dtype=torch.float64)
    for _ in range(t):
        best = min(best, _value(x, slope, modulus))
        mean += x / t
        g = _subgradient(x, slope, modulus)
        assert float(torch.linalg.vector_norm(g)) <= L * (1 + 1e-12)
        x = x - R / (L * root) * g
        x = x * min(1.0, R / max(float(torch.linalg.vector_norm(x)), 1e-300))
    gap = best - least
    assert gap >= L * R / (2 * (1 + root)) * (1 - 1e-12)
    assert _value(mean, slope, modulus) - least <= L * R / root * (1 + 1e-12)
    # Asked for a gap just below that of the worst function after t steps, more than t - 1 steps are needed.
    needed = convex_lower(_certified(L), R, L * R / (2 * (1 + root)) * (1 - 1e-9))
    assert needed.value >= t * (1 - 1e-6)
    assert convex_upper(_certified(L), R, L * R / root).value == pytest.approx(t, rel=1e-9)


@pytest.mark.parametrize("t", [1, 4, 25, 100])
def test_worst_strongly_convex_function_is_between_the_bounds(t: int) -> None:
    """The same for ``L^2/(8 mu t)`` and ``2 L^2/(mu (t + 1))``."""
    L, mu = 3.0, 0.5
    slope = L / 2
    least = -(slope**2) / (2 * mu * t)
    x, best, weighted, total = torch.zeros(t, dtype=torch.float64), math.inf, torch.zeros(t, dtype=torch.float64), 0.0
    for s in range(1, t + 1):
        best = min(best, _value(x, slope, mu))
        weighted, total = weighted + s * x, total + s
        x = x - 2 / (mu * (s + 1)) * _subgradient(x, slope, mu)
        x = x * min(1.0, L / (2 * mu) / max(float(torch.linalg.vector_norm(x)), 1e-300))
    assert best - least >= L**2 / (8 * mu * t) * (1 - 1e-12)
    assert _value(weighted / total, slope, mu) - least <= 2 * L**2 / (mu * (t + 1)) * (1 + 1e-12)
    assert strongly_convex_lower(_certified(L), mu, L**2 / (8 * mu * t)).value == pytest.approx(t, rel=1e-9)
    assert strongly_convex_upper(_certified(L), mu, 2 * L**2 / (mu * t)).value == pytest.approx(t, rel=1e-9)


def test_kinds_and_sizes() -> None:
    """Upper counts keep the guarantee of the constant; lower ones are lower; logarithms go past floats."""
    huge = Value(2000.0, Kind.CERTIFIED)
    assert convex_upper(huge, 1.0, 1.0).log == pytest.approx(4000.0)
    assert convex_lower(huge, 1.0, 0.5).log == pytest.approx(4000.0)
    assert convex_upper(Value.of(2.0, Kind.ESTIMATE), 1.0, 1.0).kind is Kind.ESTIMATE
    assert convex_lower(huge, 1.0, 1.0).kind is strongly_convex_lower(huge, 1.0, 1.0).kind is Kind.LOWER
    assert convex_lower(_certified(1.0), 1.0, 1.0).value == 0.0
    infinite = Value(math.inf, Kind.CERTIFIED)
    assert convex_upper(infinite, 1.0, 1.0).log == convex_lower(infinite, 1.0, 1.0).log == math.inf
    assert "worst function" in convex_lower(huge, 1.0, 1.0).assumptions[-1]


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_wrong_numbers(wrong: float) -> None:
    """Accuracies, radii and moduli are positive."""
    for call in (convex_upper, convex_lower, strongly_convex_upper, strongly_convex_lower):
        with pytest.raises(InputError, match="to be positive"):
            call(_certified(1.0), wrong, 1.0)
        with pytest.raises(InputError, match="Expected alpha to be positive"):
            call(_certified(1.0), 1.0, wrong)
