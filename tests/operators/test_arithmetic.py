"""Sums, products and quotients of two tensors."""

from __future__ import annotations

import math

import pytest
import torch

from networks import points
from operators.refute import Case, linear, nonlinear, program, refuted, without_constant

SCALE = torch.tensor([0.7, -3.0, 1e-3], dtype=torch.float64)
LINEAR: dict[str, Case] = {
    "add": (lambda x: x + x.flip(1), (4,), 2.0),
    "add a constant": (lambda x: x + 5.0, (4,), 1.0),
    "add with alpha": (lambda x: torch.add(x, x, alpha=3), (4,), 4.0),
    "subtract": (lambda x: x - x.roll(1, 1), (4,), 2.0),
    "subtract from a constant": (lambda x: 1.0 - x, (4,), 1.0),
    "reversed with alpha": (lambda x: torch.rsub(x, x, alpha=4), (4,), 3.0),
    "negative": (lambda x: -x, (4,), 1.0),
    "times a number": (lambda x: x * 0.7, (4,), 0.7),
    "times a vector": (lambda x: x * SCALE, (3,), 3.0),
    "broadcast against a constant": (lambda x: x[:, None] * torch.ones(5, 3).double(), (3,), math.sqrt(5)),
    "over a number": (lambda x: x / 3.0, (4,), 1 / 3.0),
    "over a vector": (lambda x: x / SCALE, (3,), 1000.0),
    "addcmul": (lambda x: torch.addcmul(x, x, torch.full((4,), 2.0).double(), value=0.5), (4,), 2.0),
    "addcdiv": (lambda x: torch.addcdiv(x, x, torch.full((4,), 2.0).double()), (4,), 1.5),
    "lerp": (lambda x: torch.lerp(x, -x, 0.25), (4,), 0.5),
    "outer sum": (lambda x: x[:, :, None] + x[:, None, :], (3,), math.sqrt(12)),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_sums_and_factors(name: str) -> None:
    """Linear in the input: exact."""
    linear(LINEAR[name])


def test_numbers_keep_all_their_digits() -> None:
    """0.7 is the float64 number, not the float32 one below it."""
    upper = math.exp(refuted(lambda x: x * 0.7, 3).upper["everywhere"])
    assert 0.7 <= upper <= 0.7 * (1 + 1e-11)
    assert float(torch.tensor(0.7, dtype=torch.float32)) < 0.7


NONLINEAR: dict[str, Case] = {
    "product of bounded functions": (lambda x: x.sigmoid() * x.flip(1).tanh(), (3,), 1.25),
    "bounded quotient": (lambda x: x.tanh() / (x.flip(1).sigmoid() + 1), (3,), 1.25),
}  # fmt: skip


@pytest.mark.parametrize("name", NONLINEAR)
def test_products_and_quotients(name: str) -> None:
    """The product and quotient rules on the ranges of their factors."""
    nonlinear(NONLINEAR[name])


@pytest.mark.parametrize(
    "function",
    [lambda x: x * x, lambda x: x * x.flip(1), lambda x: x.square(), lambda x: torch.addcmul(x, x, x.flip(1))],
)
def test_products_need_a_range(function: object) -> None:
    """No constant on all inputs, one on the range of the data."""
    without_constant(function, 3)  # type: ignore[arg-type]


def test_squares_on_a_range() -> None:
    """Slope 2 max|x|, attained by the entry that is largest."""
    data = points(4, 3)
    checked = refuted(lambda x: x * x, 3, data=data)
    assert math.exp(checked.upper["range"]) == pytest.approx(2 * float(data.abs().max()), rel=1e-9)
    assert checked.attained["range"] == pytest.approx(checked.upper["range"], abs=1e-6)


def test_quotients_need_a_divisor_away_from_zero() -> None:
    """On a range that holds zero there is none; on a positive one there is."""
    without_constant(lambda x: 1.0 / x, 3, on_range=False)
    without_constant(lambda x: 1.0 / x, 3, data=points(3, 3).abs() + 0.5)
    without_constant(lambda x: x.flip(1) / (x.square() + 1.0), 3)


def test_rounded_division_is_a_step() -> None:
    """Known, and without a constant."""
    (opaque,) = program(lambda x: torch.div(x, 2.0, rounding_mode="floor") + x, 3).opaque
    assert opaque.atom.known


def test_factors_that_are_no_numbers() -> None:
    """Infinity as a factor has no constant; it is listed."""
    (opaque,) = program(lambda x: x * math.inf + x, 3).opaque
    assert "infinite" in opaque.atom.reason
