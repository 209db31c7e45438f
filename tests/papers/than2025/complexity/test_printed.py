"""Printed counts: the formulas of the paper, called printed, each with what is wrong with it."""

from __future__ import annotations

import pytest
import torch

from normscope.core.value import Kind, Value
from normscope.papers.than2025.complexity import (
    convex_lower,
    corollary_18,
    corollary_19,
    printed_lower_bounds,
    slides_rates,
    strongly_convex_lower,
)


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
    assert [v.value for v in slides_rates(_values(3.0)[0], 0.5).values()] == pytest.approx([72.0, 36.0])


def test_all_are_printed_and_say_why() -> None:
    """Never a bound."""
    one = _values(1.0)[0]
    every = [corollary_18([one], 1.0), corollary_19([one], 1.0)]
    every += [*printed_lower_bounds(one, 1.0).values(), *slides_rates(one, 1.0).values()]
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
