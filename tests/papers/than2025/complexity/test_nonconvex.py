"""Goldstein points: the order, and that plain stationarity is another thing."""

from __future__ import annotations

import pytest
import torch

from normscope.core.errors import InputError
from normscope.core.value import Kind, Value
from normscope.papers.than2025.complexity import goldstein


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
def test_wrong_numbers(name: str) -> None:
    """All three are positive."""
    numbers = {"gap": 1.0, "delta": 1.0, "alpha": 1.0, name: 0.0}
    with pytest.raises(InputError, match=f"Expected {name} to be positive"):
        goldstein(Value.of(1.0, Kind.CERTIFIED), **numbers)
