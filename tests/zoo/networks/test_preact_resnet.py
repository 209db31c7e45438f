"""Pre-activation residual network."""

from __future__ import annotations

import torch
from torch import nn

from normscope.zoo.networks.preact_resnet import PreactivationResNet


def test_size() -> None:
    """The usual 11,171,146 parameters and a last BatchNorm of 512 channels."""
    with torch.device("meta"):
        model = PreactivationResNet()
    assert sum(p.numel() for p in model.parameters()) == 11_171_146 + 2 * 512


def test_identity_path_is_free() -> None:
    """With zero convolutions a block without projection is the identity, negative values included."""
    block = PreactivationResNet(width=4).blocks[1]
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(block(x), x, atol=0, rtol=0)


def test_projection_sees_the_activated_input() -> None:
    """A shortcut that changes shape starts after normalizer and ReLU."""
    block = PreactivationResNet(norm="none", width=4).blocks[2]
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(block(x), block.shortcut(torch.relu(x)))
