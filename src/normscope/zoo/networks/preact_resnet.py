"""Residual networks whose blocks normalize first: ``x + W relu(N(V relu(N(x))))``."""

import torch
from torch import nn
from torch.nn import functional as F

from normscope.zoo.networks.layers import convolution
from normscope.zoo.networks.normalizers import normalizer, weighted


class PreactivationBlock(nn.Module):
    """Normalizer, ReLU and convolution, twice; a shortcut that changes shape starts after the first ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.norm1 = normalizer(norm, inputs, 2)
        self.conv1 = convolution(inputs, outputs, 3, stride, norm)
        self.norm2 = normalizer(norm, outputs, 2)
        self.conv2 = convolution(outputs, outputs, 3, 1, norm)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else convolution(inputs, outputs, 1, stride, norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        activated = F.relu(self.norm1(x))
        y = self.conv2(F.relu(self.norm2(self.conv1(activated))))
        return y + (x if self.shortcut is None else self.shortcut(activated))


class PreactivationResNet(nn.Module):
    """Pre-activation ResNet-18 for small images.

    3x3 stem, four stages of two blocks, a last normalizer and ReLU, average pool, linear layer.

    >>> PreactivationResNet(width=4)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(self, norm: str = "bn", classes: int = 10, image_size: int = 32, width: int = 64) -> None:
        super().__init__()
        self.input_shape = (3, image_size, image_size)
        self.stem = convolution(3, width, 3, 1, norm)
        blocks: list[nn.Module] = []
        channels = width
        for stage in range(4):
            outputs = width * 2**stage
            blocks.append(PreactivationBlock(channels, outputs, 1 if stage == 0 else 2, norm))
            blocks.append(PreactivationBlock(outputs, outputs, 1, norm))
            channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = normalizer(norm, channels, 2)
        self.head = weighted(nn.Linear(channels, classes), norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, 3, H, W) to logits (N, classes)."""
        y = F.relu(self.norm(self.blocks(self.stem(x))))
        return self.head(y.mean(dim=(2, 3)))
