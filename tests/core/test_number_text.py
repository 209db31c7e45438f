"""Numbers of any size."""

from __future__ import annotations

import math

import pytest

from normscope.core.number_text import digits, number_text


@pytest.mark.parametrize(
    ("log10", "text"),
    [
        (0.0, "1"),
        (math.log10(123.456), "123.5"),
        (5.9, "7.943e+05"),
        (6.0, "1e+06"),
        (6.0 - 1e-7, "1e+06"),
        (-6.0 + 1e-7, "1e-06"),
        (31.2876, "1.939e+31"),
        (-5.5, "3.162e-06"),
        (-6.0, "1e-06"),
        (-300.25, "5.623e-301"),
        (4000.0, "1e+4000"),
        (math.inf, "no bound"),
        (-math.inf, "0"),
    ],
)
def test_any_size(log10: float, text: str) -> None:
    """Four digits, and an exponent where there are more."""
    assert number_text(log10) == text


def test_more_digits() -> None:
    """As many as are asked for, at any size."""
    assert number_text(math.log10(2.0) + 400.0, 9) == "2e+400"
    assert number_text(math.log10(1.23456789), 9) == "1.23456789"
    assert digits(1.23456789, 2) == "1.2"
