"""NS202: groups of one or two entries."""

from __future__ import annotations

import torch
from torch import nn

from checking import found, noise
from networks import Lambda
from normscope.core.finding import Severity


def test_groups_of_one_give_a_constant() -> None:
    """GroupNorm with a channel per group on 1x1 maps."""
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.GroupNorm(4, 4)).eval()
    (one,) = found("NS202", model, noise(3, 4, 5, 5))
    assert (one.severity, one.place) == (Severity.ERROR, "1")
    assert float(model.double()(noise(3, 4, 5, 5).double()).detach().abs().max()) < 1e-12


def test_groups_of_two_keep_only_the_order() -> None:
    """Every entry becomes plus or minus one."""
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.GroupNorm(2, 4)).eval()
    (one,) = found("NS202", model, noise(3, 4, 5, 5))
    assert one.severity is Severity.WARNING
    assert torch.allclose(model(1e3 * noise(3, 4, 5, 5)).abs(), torch.ones(3, 4, 1, 1))


def test_hand_written_ones_count_and_larger_ones_do_not() -> None:
    """A standardization over an axis of two; LayerNorm over three."""
    model = Lambda(lambda s, x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt())
    assert len(found("NS202", model, noise(3, 4, 2))) == 1
    assert found("NS202", model, noise(3, 4, 3)) == []
    assert found("NS202", nn.LayerNorm(3), noise(5, 3)) == []
