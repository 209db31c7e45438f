"""Positive numbers, rounded to the safe side."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.value import Kind, Value
from normscope.papers.than2025.complexity import (
    convex_lower,
    convex_upper,
    corollary_18,
    corollary_19,
    goldstein,
    printed_lower_bounds,
    strongly_convex_lower,
    strongly_convex_upper,
)
from normscope.papers.than2025.complexity.corollaries_18_and_19 import factor, positive


def test_rounding() -> None:
    """Up for upper bounds, down for lower ones."""
    third = Fraction(1, 3)
    assert Fraction(factor(third, Kind.LOWER).value) <= third <= Fraction(factor(third, Kind.CERTIFIED).value)
    assert factor(third, Kind.ESTIMATE).value == pytest.approx(1 / 3, rel=1e-15)


def test_refused() -> None:
    """Zero, negative numbers, and truth values."""
    assert positive(2, "x") == 2.0
    for wrong in (0, -1.0, True):
        with pytest.raises(InputError, match="Expected x to be positive"):
            positive(wrong, "x")


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


def test_powers() -> None:
    """Twice the constant costs four times, half of alpha eight times, half of delta twice."""
    one = goldstein(Value.of(1.0, Kind.CERTIFIED), 1.0, 1.0, 1.0)
    assert one.value == pytest.approx(1.0)
    assert goldstein(Value.of(2.0, Kind.CERTIFIED), 1.0, 1.0, 1.0).value == pytest.approx(4.0)
    assert goldstein(Value.of(1.0, Kind.CERTIFIED), 1.0, 1.0, 0.5).value == pytest.approx(8.0)
    assert goldstein(Value.of(1.0, Kind.CERTIFIED), 1.0, 0.5, 1.0).value == pytest.approx(2.0)
    assert goldstein(Value.of(1.0, Kind.CERTIFIED), 3.0, 1.0, 1.0).value == pytest.approx(3.0)


def test_it_is_an_order_not_a_bound() -> None:
    """Whatever the kind of the constant, and it says so."""
    count = goldstein(Value.of(1.0, Kind.CERTIFIED), 1.0, 1.0, 1.0)
    assert count.kind is Kind.ESTIMATE
    assert any("constants and logarithms" in a for a in count.assumptions)
    assert goldstein(Value.of(1.0, Kind.PRINTED), 1.0, 1.0, 1.0).kind is Kind.PRINTED


def test_a_kink_is_a_goldstein_point_only() -> None:
    """Beside the kink of ``|x|`` no gradient is short, but an average within delta is zero."""
    x = torch.tensor([-1e-9, 1e-9], requires_grad=True)
    (gradients,) = torch.autograd.grad(x.abs().sum(), x)
    assert gradients.abs().min() == 1.0
    assert gradients.mean() == 0.0


@pytest.mark.parametrize("name", ["gap", "delta", "alpha"])
def test_wrong_numbers_nonconvex(name: str) -> None:
    """All three are positive."""
    numbers = {"gap": 1.0, "delta": 1.0, "alpha": 1.0, name: 0.0}
    with pytest.raises(InputError, match=f"Expected {name} to be positive"):
        goldstein(Value.of(1.0, Kind.CERTIFIED), **numbers)


def _values(*numbers: float) -> list[Value]:
    return [Value.of(x, Kind.CERTIFIED) for x in numbers]


def test_formulas() -> None:
    """Products over accuracies, with powers of ``1/sigma``."""
    after = _values(2.0, 5.0)
    assert corollary_18(after, 0.1).value == pytest.approx(100.0)
    assert corollary_19(after, 0.1).value == pytest.approx(1000.0)
    half = Value.of(0.5, Kind.PRINTED)
    assert corollary_19(after, 0.1, half, 3).value == pytest.approx(125.0)
    assert corollary_19([], 0.1).value == pytest.approx(100.0)
    assert [v.value for v in printed_lower_bounds(_values(3.0)[0], 0.5).values()] == pytest.approx([36.0, 6.0, 6.0])


def test_all_are_printed_and_say_why() -> None:
    """Never a bound."""
    one = _values(1.0)[0]
    every = [corollary_18([one], 1.0), corollary_19([one], 1.0)]
    every += printed_lower_bounds(one, 1.0).values()
    assert {v.kind for v in every} == {Kind.PRINTED}
    assert all(v.assumptions for v in every)


def test_corollary_18_is_refuted_by_zero_weights() -> None:
    """All gradients of a network of zeros vanish: nothing is needed, whatever the bounds on its norms."""
    weights = [torch.zeros(2, 2, requires_grad=True) for _ in range(3)]
    h = torch.ones(2)
    for weight in weights:
        h = torch.relu(weight @ h)
    gradients = torch.autograd.grad((h - 1).abs().sum(), weights)
    assert all(float(g.abs().max()) == 0 for g in gradients)
    assert corollary_18(_values(2.0, 2.0), 1e-3).value > 1000


def test_printed_strongly_convex_bound_is_of_another_order() -> None:
    """Doubling ``L`` doubles what is printed; four times as many are needed at worst."""
    small, large = _values(10.0, 20.0)
    printed = [printed_lower_bounds(v, 0.01)["strongly convex"].value for v in (small, large)]
    true = [strongly_convex_lower(v, 1.0, 0.01).value for v in (small, large)]
    assert printed[1] / printed[0] == pytest.approx(2.0)
    assert true[1] / true[0] == pytest.approx(4.0)
    assert true[1] > printed[1]
    assert convex_lower(large, 1.0, 0.01).value < printed_lower_bounds(large, 0.01)["convex"].value
