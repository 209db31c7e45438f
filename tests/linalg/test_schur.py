"""Schur's test against dense singular values."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from normscope.linalg.schur import schur_norm
from normscope.operators.linear_map import LinearMap

MAPS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], float | None]] = {
    "mean": (lambda x: x.mean(), (7,), 1 / math.sqrt(7)),
    "sum of pairs": (lambda x: x.reshape(-1, 2).sum(1), (8,), math.sqrt(2)),
    "copies": (lambda x: x.repeat(5), (3,), math.sqrt(5)),
    "average pool": (lambda x: functional.avg_pool2d(x[None], 2)[0], (2, 4, 4), 0.5),
    "overlapping average pool": (lambda x: functional.avg_pool1d(x[None], 3, 1)[0], (1, 6), None),
    "unequal copies": (lambda x: x[[0, 0, 0, 1, 2]], (3,), math.sqrt(3)),
    "cumulative sum": (lambda x: x.cumsum(0), (6,), None),
    "bilinear": (lambda x: functional.interpolate(x[None], scale_factor=2, mode="bilinear")[0], (1, 3, 3), None),
}


@pytest.mark.parametrize("name", MAPS)
def test_the_bounds_surround_the_norm(name: str) -> None:
    """Attained below, Schur above; exact where windows are equal."""
    function, shape, exact = MAPS[name]
    map = LinearMap.from_function(function, shape)
    truth = float(torch.linalg.matrix_norm(map.matrix(), 2))
    bounds = schur_norm(map)
    assert bounds.lower <= truth * (1 + 1e-12)
    assert truth <= bounds.upper
    if exact is not None:
        assert truth == pytest.approx(exact, rel=1e-12)
        assert bounds.width < 1e-12


def test_zero_maps() -> None:
    """A map that leaves nothing has norm zero, and so has one into nothing."""
    assert schur_norm(LinearMap.from_function(lambda x: 0 * x, (4,))).upper == 0.0
    assert schur_norm(LinearMap.from_function(lambda x: x[:0], (4,))).upper == 0.0


def test_long_sums_leave_room_for_rounding() -> None:
    """A million terms: the margin grows with their number."""
    n = 1_000_000
    bounds = schur_norm(LinearMap.from_function(lambda x: x.sum(), (n,)))
    assert bounds.upper >= 1000.0
    assert 2.0**-53 * n <= bounds.width <= 1e-8
