"""MLP-Mixer: published size, what mixes with what."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.zoo.networks.mixer import Mixer, MixerBlock


def test_mixer_b16_has_its_published_size() -> None:
    """The large arguments give the original."""
    with torch.device("meta"):
        model = Mixer(
            classes=1000, image_size=224, patch=16, width=768, depth=12, token_hidden=384, channel_hidden=3072
        )
    assert sum(p.numel() for p in model.parameters()) == 59_880_472


def test_first_mlp_mixes_tokens_and_second_channels() -> None:
    """With one of them at zero, the Jacobian has no entries across the other axis."""
    torch.manual_seed(0)
    x = torch.randn(1, 3, 4, dtype=torch.float64)
    block = MixerBlock(3, 4, 5, 6, "none").double()
    nn.init.zeros_(block.token_narrow.weight)
    jacobian = torch.func.jacrev(block)(x)[0, :, :, 0]  # shape: (token, channel, token, channel)
    assert all(jacobian[i, :, j].abs().max() == 0 for i in range(3) for j in range(3) if i != j)
    block = MixerBlock(3, 4, 5, 6, "none").double()
    nn.init.zeros_(block.channel_narrow.weight)
    jacobian = torch.func.jacrev(block)(x)[0, :, :, 0]
    assert all(jacobian[:, i, :, j].abs().max() == 0 for i in range(4) for j in range(4) if i != j)
    assert jacobian[0, 0, 1, 0].abs() > 0


def test_patches_must_tile_the_image() -> None:
    """As for the vision transformer."""
    with pytest.raises(ValueError, match="multiple of patch"):
        Mixer(image_size=30)
