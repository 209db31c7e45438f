"""Power-average pooling."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from normscope.operators.power_pool import power_pool_constant
from operators.refute import Case, nonlinear, program

POOLS: dict[str, Case] = {
    "squares": (lambda x: F.lp_pool2d(x, 2, 2), (1, 4, 4), 1.0),
    "overlapping windows": (lambda x: F.lp_pool2d(x, 2.0, 3, 1), (1, 5, 5), 3.0),
    "fourth powers": (lambda x: F.lp_pool1d(x, 4, 3), (2, 6), 1.0),
    "one axis, overlapping": (lambda x: F.lp_pool1d(x, 2, 3, 2), (2, 7), math.sqrt(2)),
    "three axes": (lambda x: F.lp_pool3d(x, 2, 2), (1, 2, 2, 2), 1.0),
}


@pytest.mark.parametrize("name", POOLS)
def test_norms_of_windows(name: str) -> None:
    """The root of the largest number of windows an entry lies in."""
    nonlinear(POOLS[name])


def test_odd_powers_and_windows_that_are_cut_are_not_taken_for_norms() -> None:
    """They have no rule."""
    assert program(lambda x: F.lp_pool1d(x, 3, 2), 1, 4).opaque
    assert program(lambda x: F.lp_pool1d(x, 2, 3, 2, ceil_mode=True), 1, 6).opaque


def test_the_constant_is_attained_by_one_entry() -> None:
    """It moves the norm of every window it lies in."""
    x = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    x[0, 0, 2, 2] = 1.0
    moved = F.lp_pool2d(2.0 * x, 2, 3, 1) - F.lp_pool2d(x, 2, 3, 1)
    assert float(moved.norm()) == pytest.approx(power_pool_constant(9), rel=1e-12)
