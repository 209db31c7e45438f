"""Convolutional autoencoder: strided convolutions down, transposed convolutions up."""

import torch
from torch import nn

from normscope.zoo.networks.normalizers import normalizer, weighted


class Autoencoder(nn.Module):
    """Convolutional autoencoder: two halvings, a linear code, two doublings; the output is in [0, 1] by a sigmoid.

    Args:
        image_size: pixels of a side, a multiple of 4.
        code: features of the code.

    >>> Autoencoder(image_size=8, width=2)(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 1, 8, 8])
    """

    def __init__(
        self, norm: str = "bn", channels: int = 1, image_size: int = 28, width: int = 16, code: int = 32
    ) -> None:
        super().__init__()
        if image_size % 4:
            raise ValueError(f"Expected image_size to be a multiple of 4, got {image_size}.")
        self.input_shape = (channels, image_size, image_size)
        side = image_size // 4
        inner = 2 * width * side * side
        self.encoder = nn.Sequential(
            weighted(nn.Conv2d(channels, width, 4, stride=2, padding=1), norm),
            normalizer(norm, width, 2),
            nn.ReLU(),
            weighted(nn.Conv2d(width, 2 * width, 4, stride=2, padding=1), norm),
            normalizer(norm, 2 * width, 2),
            nn.ReLU(),
            nn.Flatten(),
            weighted(nn.Linear(inner, code), norm),
        )
        self.decoder = nn.Sequential(
            weighted(nn.Linear(code, inner), norm),
            nn.ReLU(),
            nn.Unflatten(1, (2 * width, side, side)),
            weighted(nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1), norm),
            normalizer(norm, width, 2),
            nn.ReLU(),
            weighted(nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1), norm),
            nn.Sigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, C, H, W) to their reconstructions."""
        return self.decoder(self.encoder(x))
