"""Images cut into square patches, each a token."""

from __future__ import annotations

import torch
from torch import nn


class PatchEmbedding(nn.Conv2d):
    """One linear map of every patch of an image: a convolution whose stride is its size, its positions as a sequence.

    Args:
        image_size: pixels of a side of the image.
        patch: pixels of a side of a patch; patches tile the image.
        width: features of a token.

    Raises:
        ValueError: if the patches do not tile the image.

    >>> embedding = PatchEmbedding(8, 4, 5)
    >>> embedding.tokens, embedding(torch.zeros(1, 3, 8, 8)).shape
    (4, torch.Size([1, 4, 5]))
    """

    def __init__(self, image_size: int, patch: int, width: int) -> None:
        if image_size % patch:
            raise ValueError(
                f"Expected image_size to be a multiple of patch, got image_size={image_size}, patch={patch}."
            )
        super().__init__(3, width, patch, stride=patch)
        self.tokens = (image_size // patch) ** 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, 3, H, W) to tokens (N, T, width)."""
        return super().forward(x).flatten(2).transpose(1, 2)
