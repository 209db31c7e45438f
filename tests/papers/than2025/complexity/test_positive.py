"""Positive numbers, rounded to the safe side."""

from __future__ import annotations

from fractions import Fraction

import pytest

from normscope.core.errors import InputError
from normscope.core.value import Kind
from normscope.papers.than2025.complexity.positive import factor, positive


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
