"""U-Net: skips, transposed convolutions, shapes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.zoo.networks.unet import UNet


def test_skips_carry_the_input_past_the_decoder() -> None:
    """With transposed convolutions at zero the output still depends on the input; without skips it does not."""
    torch.manual_seed(0)
    model = UNet(width=4).eval()
    for up in model.ups:
        assert isinstance(up, nn.ConvTranspose2d)
        nn.init.zeros_(up.weight)
    x = torch.randn(1, 3, 32, 32)
    assert (model(x) - model(2 * x)).abs().max() > 1e-4
    with torch.no_grad():
        for decoder, size in zip(model.decoders, (8, 4), strict=True):
            decoder[0].weight[:, size:] = 0
    torch.testing.assert_close(model(x), model(2 * x))


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_output_has_the_inputs_resolution(levels: int) -> None:
    """Every halving is undone."""
    model = UNet(width=2, levels=levels, outputs=5).eval()
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 5, 32, 32)


def test_image_size_must_fit() -> None:
    """Each level halves it."""
    with pytest.raises(ValueError, match="multiple of 2\\^levels = 8"):
        UNet(image_size=20, levels=3)
