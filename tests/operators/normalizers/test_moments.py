"""Standard deviation and root mean square enclose the exact rational ones."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normscope.operators.normalizers.moments import RowSpread, inverse_scale, root_mean_square, standard_deviation

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9)


def exact_square(x: Tensor, centre: bool) -> Fraction:
    """Return the exact mean square of a row, after centring if asked."""
    values = [Fraction(v) for v in x.tolist()]
    mean = sum(values) / len(values) if centre else Fraction(0)
    return sum((v - mean) ** 2 for v in values) / len(values)


def assert_encloses(spread: RowSpread, exact: Fraction, width: float) -> None:
    """Check that the enclosure holds the exact root and is not wider than asked."""
    low, high = Fraction(spread.low.item()), Fraction(spread.high.item())
    assert low**2 <= exact <= high**2
    if exact:
        root = math.sqrt(exact) if 1e-300 < exact < 1e300 else None
        assert root is None or (spread.high.item() - spread.low.item()) <= width * root


@settings(derandomize=True, deadline=None, max_examples=200)
@given(numbers, st.sampled_from((0.0, 1e8, -3e15)))
def test_standard_deviation_encloses_the_exact_one(values: list[float], offset: float) -> None:
    """Standard deviation encloses the exact one."""
    x = torch.tensor(values, dtype=torch.float64) + offset
    assert_encloses(standard_deviation(x[None]), exact_square(x, centre=True), 1.0)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(numbers)
def test_root_mean_square_encloses_the_exact_one(values: list[float]) -> None:
    """Root mean square encloses the exact one."""
    x = torch.tensor(values, dtype=torch.float64)
    assert_encloses(root_mean_square(x[None]), exact_square(x, centre=False), 1e-13)


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e4, 1e8])
def test_an_offset_does_not_widen_the_enclosure(offset: float) -> None:
    """An offset does not widen the enclosure."""
    # the numbers are exact in float64, so the variance of the shifted row is that of the row
    x = (torch.arange(16.0).double() % 5) / 4
    spread = standard_deviation((x + offset)[None])
    assert_encloses(spread, exact_square(x, centre=True), 1e-14)


@pytest.mark.parametrize("scale", [2.0**-1000, 2.0**-600, 2.0**600, 2.0**1000])
def test_the_whole_float_range(scale: float) -> None:
    """The whole float range."""
    x = torch.tensor([[1.0, 2.0, 4.0, -7.0]], dtype=torch.float64) * scale
    assert_encloses(standard_deviation(x), exact_square(x[0], centre=True), 1e-13)
    assert_encloses(root_mean_square(x), exact_square(x[0], centre=False), 1e-13)
    assert standard_deviation(x).low.item() > 0.99 * scale


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8 + 0.1, -1e300])
@pytest.mark.parametrize("n", [1, 2, 3, 1000])
def test_a_constant_row_has_no_deviation(value: float, n: int) -> None:
    """A constant row has no deviation."""
    spread = standard_deviation(torch.full((1, n), value, dtype=torch.float64))
    assert spread.low.item() == spread.high.item() == 0.0
    assert not bool(spread.direction.any())


def test_one_unit_in_the_last_place_is_seen() -> None:
    """One unit in the last place is seen."""
    x = torch.full((1, 3), 0.1, dtype=torch.float64)
    x[0, 1] = math.nextafter(0.1, 1.0)
    spread = standard_deviation(x)
    assert_encloses(spread, exact_square(x[0], centre=True), 1e-12)
    assert spread.low.item() > 0


def test_rows_are_independent() -> None:
    """Rows are independent."""
    x = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = standard_deviation(x).low
    assert torch.equal(together, torch.cat([standard_deviation(row[None]).low for row in x]))


@settings(derandomize=True, deadline=None)
@given(st.floats(0, 1e6), st.sampled_from((0.0, 1e-12, 1e-5, 2.0)))
def test_inverse_scale_is_above_the_exact_inverse(std: float, eps: float) -> None:
    """Inverse scale is above the exact inverse."""
    bound = inverse_scale(torch.tensor([std], dtype=torch.float64), eps).item()
    total = Fraction(std) ** 2 + Fraction(eps)
    if total == 0 or math.isinf(bound):
        assert bound == math.inf
    else:
        assert Fraction(bound) ** 2 * total >= 1
        assert Fraction(bound) ** 2 * total <= 1 + Fraction(1, 10**13)
