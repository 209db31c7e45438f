"""NS218: InstanceNorm with running statistics."""

from __future__ import annotations

import torch
from torch import nn

from checking import found, noise


def test_what_is_told_is_so() -> None:
    """With statistics, another contrast of a sample comes through in evaluation; without, it does not."""
    for tracked in (True, False):
        norm = nn.InstanceNorm2d(3, track_running_stats=tracked)
        model = nn.Sequential(nn.Conv2d(3, 3, 3, bias=False), norm)
        model(noise(8, 3, 6, 6))
        model.eval()
        x = noise(1, 3, 6, 6, seed=1)
        with torch.no_grad():
            moved = float((model(3 * x) - model(x)).abs().max())
        assert (moved > 0.1) == tracked
        told = found("NS218", model, input_shape=(3, 6, 6))
        assert [f.place for f in told] == (["1"] if tracked else [])


def test_other_normalizers_are_left_alone() -> None:
    """BatchNorm keeps statistics by design."""
    assert found("NS218", nn.Sequential(nn.BatchNorm1d(3), nn.InstanceNorm1d(3))) == []
