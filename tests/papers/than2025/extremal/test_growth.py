"""Remark 7: scales above one are not enough for exponential growth."""

from __future__ import annotations

import math

import pytest

from normscope.core.errors import InputError
from normscope.papers.than2025.extremal import remark_7, theorem_6


def test_rates_enclose_the_product() -> None:
    """``K low <= log prod a <= K high``."""
    scales = [1.5, 3.0, 2.0]
    low, high = remark_7(scales)
    constant = theorem_6([2] * 4, scales).constant.log
    assert 3 * low <= constant <= 3 * high
    assert low == pytest.approx(math.log(1.5))


def test_scales_above_one_whose_product_stays_small() -> None:
    """``prod (1 + 2^-k)`` converges to 2.384..., so its rate goes to zero."""
    scales = [1 + 2.0**-k for k in range(1, 51)]
    assert min(scales) > 1
    assert theorem_6([1] * 51, scales).constant.value == pytest.approx(2.384231, rel=1e-6)
    assert remark_7(scales)[0] < 1e-14


@pytest.mark.parametrize("scales", [[], [0.0], [-1.0], [math.inf]])
def test_wrong_scales(scales: list[float]) -> None:
    """Positive numbers, at least one."""
    with pytest.raises(InputError, match="positive"):
        remark_7(scales)
