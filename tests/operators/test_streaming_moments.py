"""Streaming moments against one pass over everything."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from networks import points
from normscope.operators.streaming_moments import Moments, channel_rows


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(lambda s: sum(s) > 0),
    channels=st.integers(1, 4),
    shift=st.sampled_from((0.0, 1e3, -1e6)),
    seed=st.integers(0, 1000),
)
def test_streaming_equals_one_shot(sizes: list[int], channels: int, shift: float, seed: int) -> None:
    """Batches of any sizes, empty ones included, with means far from zero: the same as all rows at once."""
    rows = points(sum(sizes), channels, seed=seed) + shift
    streamed = Moments()
    for piece in rows.split(sizes):
        streamed.update(piece)
    assert streamed.count == sum(sizes)
    assert torch.allclose(streamed.mean, rows.mean(0), rtol=1e-12, atol=1e-12)
    assert torch.allclose(streamed.variance, rows.var(0, unbiased=False), rtol=1e-8, atol=1e-15 * shift**2)
    assert torch.equal(streamed.low, rows.amin(0))
    assert torch.equal(streamed.high, rows.amax(0))


def test_the_naive_formula_would_fail_where_this_does_not() -> None:
    """A spread of one around 1e8: E[x^2] - E[x]^2 loses everything in float64, the merge does not."""
    rows = points(1000, 1) + 1e8
    exact = float((rows - 1e8).var(unbiased=False))
    streamed = Moments()
    for piece in rows.split(7):
        streamed.update(piece)
    assert float(streamed.variance) == pytest.approx(exact, rel=1e-6)
    naive = float(rows.square().mean() - rows.mean() ** 2)
    assert abs(naive / exact - 1) > 1e-2


def test_memory_does_not_grow() -> None:
    """Whatever was seen, only numbers per channel are held."""
    moments = Moments()
    for seed in range(20):
        moments.update(points(50, 3, seed=seed))
    held = [t for t in vars(moments).values() if isinstance(t, torch.Tensor)]
    assert [t.numel() for t in held] == [3, 3, 3, 3]
    assert moments.count == 1000


def test_nothing_seen() -> None:
    """No rows, no moments."""
    moments = Moments()
    moments.update(torch.zeros(0, 3))
    assert moments.count == 0
    assert moments.variance.numel() == 0


def test_low_precision_is_summed_in_float64() -> None:
    """A long float16 column overflows its own sum, but not this one."""
    rows = torch.full((5000, 1), 100.0, dtype=torch.float16)
    moments = Moments()
    moments.update(rows)
    assert float(moments.mean) == 100.0
    assert float(moments.variance) == 0.0


def test_a_number_is_one_channel() -> None:
    """Seen once a batch."""
    assert channel_rows(torch.tensor(3.0), 0).tolist() == [[3.0]]


def test_channels_along_any_axis() -> None:
    """Observations are all other axes together."""
    x = points(2, 3, 4, 5)
    assert channel_rows(x, 1).shape == (40, 3)
    assert torch.equal(channel_rows(x, 1).mean(0), x.movedim(1, -1).reshape(-1, 3).mean(0))
    assert torch.equal(channel_rows(x, -1), x.reshape(-1, 5))
