"""MLP-Mixer: one MLP across patches, one across channels, in turn."""

import torch
from torch import nn
from torch.nn import functional as F

from normscope.zoo.networks.normalizers import token_normalizer
from normscope.zoo.networks.vit import PatchEmbedding


class MixerBlock(nn.Module):
    """``x + M_tokens(N(x)^T)^T``, then ``x + M_channels(N(x))``; both MLPs have one GELU layer."""

    def __init__(self, tokens: int, width: int, token_hidden: int, channel_hidden: int, norm: str) -> None:
        super().__init__()
        self.norm1 = token_normalizer(norm, width, 1e-6)
        self.token_widen = nn.Linear(tokens, token_hidden)
        self.token_narrow = nn.Linear(token_hidden, tokens)
        self.norm2 = token_normalizer(norm, width, 1e-6)
        self.channel_widen = nn.Linear(width, channel_hidden)
        self.channel_narrow = nn.Linear(channel_hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map tokens (N, T, C) to tokens."""
        y = self.norm1(x).transpose(1, 2)
        x = x + self.token_narrow(F.gelu(self.token_widen(y))).transpose(1, 2)
        return x + self.channel_narrow(F.gelu(self.channel_widen(self.norm2(x))))


class Mixer(nn.Module):
    """MLP-Mixer, small by default: patches to tokens, blocks, normalizer, mean over tokens, linear layer.

    Args:
        patch: pixels of a patch's side.
        token_hidden: hidden features of the MLP across tokens.
        channel_hidden: hidden features of the MLP across channels.

    >>> Mixer(width=8, depth=1)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(
        self,
        norm: str = "ln",
        classes: int = 10,
        image_size: int = 32,
        patch: int = 4,
        width: int = 128,
        depth: int = 4,
        token_hidden: int = 64,
        channel_hidden: int = 512,
    ) -> None:
        super().__init__()
        self.input_shape = (3, image_size, image_size)
        self.embedding = PatchEmbedding(image_size, patch, width)
        self.blocks = nn.Sequential(
            *(MixerBlock(self.embedding.tokens, width, token_hidden, channel_hidden, norm) for _ in range(depth))
        )
        self.norm = token_normalizer(norm, width, 1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, 3, H, W) to logits (N, classes)."""
        return self.head(self.norm(self.blocks(self.embedding(x))).mean(dim=1))
