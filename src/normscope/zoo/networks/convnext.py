"""ConvNeXt and ConvNeXt V2: depthwise 7x7 convolutions, token normalizers, layer scale or response normalization."""

from collections.abc import Sequence

import torch
from torch import nn

from normscope.zoo.networks.layers import ImageClassifier
from normscope.zoo.networks.normalizers import token_normalizer

EPS = 1e-6


class ChannelNorm(nn.Module):
    """A token normalizer applied to the channels of each pixel of (N, C, H, W)."""

    def __init__(self, norm: str, channels: int) -> None:
        super().__init__()
        self.norm = token_normalizer(norm, channels, EPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalized image."""
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class GlobalResponseNorm(nn.Module):
    r"""Weigh each channel by its share of the response.

    .. math:: x + \gamma\, x\, \|x_c\| / (\mathrm{mean}_c \|x_c\| + \epsilon) + \beta

    The norm of a channel is over all pixels; ``x`` has shape (N, H, W, C).

    >>> layer = GlobalResponseNorm(2)
    >>> _ = torch.nn.init.ones_(layer.weight)
    >>> layer(torch.tensor([3.0, 1.0]).expand(1, 2, 2, 2))[0, 0, 0]
    tensor([7.5000, 1.5000], grad_fn=<SelectBackward0>)
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the responses of ``x`` (N, H, W, C)."""
        size = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
        share = size / (size.mean(dim=-1, keepdim=True) + EPS)
        return x + self.weight * (x * share) + self.bias


class Block(nn.Module):
    """Depthwise 7x7 convolution, normalizer, two pointwise layers with GELU between, around a shortcut."""

    def __init__(self, channels: int, norm: str, response: bool) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = token_normalizer(norm, channels, EPS)
        self.widen = nn.Linear(channels, 4 * channels)
        self.response = GlobalResponseNorm(4 * channels) if response else None
        self.narrow = nn.Linear(4 * channels, channels)
        self.layer_scale = None if response else nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = nn.functional.gelu(self.widen(y))
        if self.response is not None:
            y = self.response(y)
        y = self.narrow(y)
        if self.layer_scale is not None:
            y = y * self.layer_scale
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(ImageClassifier):
    """ConvNeXt-T: 28,589,128 parameters; width 40, blocks (2, 2, 6, 2) and responses are V2 atto with 3,708,400.

    4x4 patches, four stages of blocks with 2x2 reductions between them, average pool, normalizer, linear layer.

    Args:
        blocks: blocks in each of the four stages; ``image_size`` is a multiple of 32.
        response: whether blocks have global response normalization, as in version 2, or layer scale.

    >>> ConvNeXt(width=4, classes=2, image_size=32)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 2])
    """

    def __init__(
        self,
        norm: str = "ln",
        classes: int = 1000,
        image_size: int = 224,
        width: int = 96,
        blocks: Sequence[int] = (3, 3, 9, 3),
        response: bool = False,
    ) -> None:
        if image_size % 32:
            raise ValueError(f"Expected image_size to be a multiple of 32, got {image_size}.")
        channels = [width * 2**stage for stage in range(4)]
        layers: list[nn.Module] = [nn.Conv2d(3, channels[0], 4, stride=4), ChannelNorm(norm, channels[0])]
        for stage, count in enumerate(blocks):
            if stage > 0:
                layers.append(ChannelNorm(norm, channels[stage - 1]))
                layers.append(nn.Conv2d(channels[stage - 1], channels[stage], 2, stride=2))
            layers.extend(Block(channels[stage], norm, response) for _ in range(count))
        last, head = token_normalizer(norm, channels[-1], EPS), nn.Linear(channels[-1], classes)
        super().__init__((3, image_size, image_size), layers, norm=last, head=head)
