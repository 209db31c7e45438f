"""Statements about most inputs: the promised confidence is kept, and nothing is said with too few points."""

from __future__ import annotations

import math

import numpy as np
import pytest

from normscope.core.errors import InputError
from normscope.lipschitz.local.share_of_inputs import covered_share, covering_rank, covering_value, points_needed


@pytest.mark.parametrize(("count", "share", "confidence"), [(100, 0.95, 0.99), (360, 0.95, 0.99), (60, 0.8, 0.9)])
def test_the_share_is_covered_as_often_as_promised(count: int, share: float, confidence: float) -> None:
    rank = covering_rank(count, share, confidence)
    assert rank is not None
    draws = np.sort(np.random.default_rng(0).random((20_000, count)), axis=1)  # the value is the share it covers
    kept = float((draws[:, rank - 1] >= share).mean())
    assert kept >= confidence - 3 * math.sqrt(confidence * (1 - confidence) / 20_000)
    if rank > 1:
        assert float((draws[:, rank - 2] >= share).mean()) < confidence + 0.003


def test_the_covered_share_is_the_inverse() -> None:
    for count, rank in ((90, 90), (200, 190), (50, 30)):
        share = covered_share(count, rank, 0.99)
        assert covering_rank(count, share - 1e-9, 0.99) == rank
    assert covered_share(10, 0, 0.9) == 0.0


def test_too_few_points_say_nothing() -> None:
    needed = points_needed(0.95, 0.99)
    assert covering_rank(needed, 0.95, 0.99) == needed
    assert covering_rank(needed - 1, 0.95, 0.99) is None
    assert covering_value([1.0] * (needed - 1), 0.95, 0.99) is None


def test_the_rank_is_the_least_and_the_points_are_enough() -> None:
    """Also for low confidences, and where the confidence is reached exactly."""
    assert covering_rank(100, 0.5, 0.1) == 45  # P[Bin(100, 1/2) <= 43] = .097, <= 44: .136
    for share in np.linspace(0.05, 0.95, 19):
        for count in range(1, 12):
            needed = points_needed(share, 1 - share**count)
            assert covering_rank(needed, share, 1 - share**count) == needed
            assert needed <= count + 1


def test_points_without_a_constant_count() -> None:
    assert covering_value([math.inf] * 30 + [1.0] * 270, 0.95, 0.99) == math.inf


def test_shares_outside_their_range_are_refused() -> None:
    with pytest.raises(InputError, match="share"):
        covering_rank(100, 1.0, 0.99)
    with pytest.raises(InputError, match="confidence"):
        points_needed(0.95, 0.0)
