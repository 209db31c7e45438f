"""MobileNetV2: published size, depthwise convolutions, channel rounding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.zoo.networks.mobilenet import InvertedResidual, MobileNetV2, round_channels


def test_published_size() -> None:
    """3,504,872 parameters, 52 convolutions, 17 of them depthwise."""
    with torch.device("meta"):
        model = MobileNetV2()
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert sum(p.numel() for p in model.parameters()) == 3_504_872
    assert len(convolutions) == 52
    assert sum(m.groups == m.in_channels == m.out_channels > 1 for m in convolutions) == 17


@pytest.mark.parametrize("channels", [8.0, 9.6, 11.2, 38.4, 100.0, 1536.0])
def test_rounding_keeps_nine_tenths(channels: float) -> None:
    """A multiple of eight, not a tenth smaller, and not eight or more away."""
    rounded = round_channels(channels)
    assert rounded % 8 == 0
    assert rounded >= 0.9 * channels
    assert abs(rounded - channels) < 8


def test_block_adds_its_input_where_it_fits() -> None:
    """Equal channels and stride one have a shortcut, others none."""
    x = torch.randn(1, 8, 4, 4, generator=torch.Generator().manual_seed(0))
    block = InvertedResidual(8, 8, 1, 6, "none")
    torch.testing.assert_close(block(x) - block.layers(x), x, atol=1e-6, rtol=0)
    assert not InvertedResidual(8, 8, 2, 6, "none").residual
    assert not InvertedResidual(8, 16, 1, 6, "none").residual


def test_small_images_keep_more_resolution() -> None:
    """32 pixels end at 4, 224 at 7."""
    for size, last in ((32, 4), (224, 7)):
        model = MobileNetV2(width=0.25, classes=2, image_size=size).eval()
        assert model.features(torch.zeros(1, 3, size, size)).shape[2:] == (last, last)
