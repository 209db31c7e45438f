"""U-Net: an encoder, a decoder of transposed convolutions, and concatenated skips between them."""

import torch
from torch import nn
from torch.nn import functional as F

from normscope.zoo.networks.layers import unit
from normscope.zoo.networks.normalizers import weighted


def _double(inputs: int, outputs: int, norm: str) -> nn.Sequential:
    """Return convolution, normalizer and ReLU, twice."""
    return nn.Sequential(*unit(inputs, outputs, 3, norm, nn.ReLU), *unit(outputs, outputs, 3, norm, nn.ReLU))


class UNet(nn.Module):
    """Small U-Net: level i has ``width 2^i`` channels.

    Args:
        outputs: channels of the output map.
        width: channels of the first level.
        levels: how often the resolution is halved, and doubled again.

    >>> UNet(width=4)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 2, 32, 32])
    """

    def __init__(
        self, norm: str = "bn", outputs: int = 2, image_size: int = 32, width: int = 16, levels: int = 2
    ) -> None:
        super().__init__()
        if image_size % 2**levels:
            raise ValueError(f"Expected image_size to be a multiple of 2^levels = {2**levels}, got {image_size}.")
        self.input_shape = (3, image_size, image_size)
        sizes = [width * 2**level for level in range(levels + 1)]
        self.encoders = nn.ModuleList(
            _double(inputs, size, norm) for inputs, size in zip([3, *sizes[:-1]], sizes, strict=True)
        )
        self.ups = nn.ModuleList(
            weighted(nn.ConvTranspose2d(2 * size, size, 2, stride=2), norm) for size in reversed(sizes[:-1])
        )
        self.decoders = nn.ModuleList(_double(2 * size, size, norm) for size in reversed(sizes[:-1]))
        self.head = weighted(nn.Conv2d(width, outputs, 1), norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, 3, H, W) to maps (N, outputs, H, W)."""
        skips: list[torch.Tensor] = []
        for index, encoder in enumerate(self.encoders):
            x = encoder(x if index == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for up, decoder, skip in zip(self.ups, self.decoders, reversed(skips[:-1]), strict=True):
            x = decoder(torch.cat([up(x), skip], dim=1))
        return self.head(x)
