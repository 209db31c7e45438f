"""Inception-like network: parallel branches of different sizes, concatenated."""

import functools

import torch
from torch import nn

from normscope.zoo.networks.layers import ImageClassifier, unit
from normscope.zoo.networks.normalizers import weighted


class InceptionBlock(nn.Module):
    """1x1, 3x3 and 5x5 convolutions and a max pool side by side; each gives ``branch`` channels."""

    def __init__(self, inputs: int, branch: int, norm: str) -> None:
        super().__init__()
        one = functools.partial(unit, inputs, branch, 1, norm, nn.ReLU)
        self.one = nn.Sequential(*one())
        self.three = nn.Sequential(*one(), *unit(branch, branch, 3, norm, nn.ReLU))
        self.five = nn.Sequential(*one(), *unit(branch, branch, 5, norm, nn.ReLU))
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), *one())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the concatenated branches."""
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


class Inception(ImageClassifier):
    """Small network of inception blocks: 3x3 stem, three pairs of blocks with max pools between them, linear layer.

    Args:
        width: channels of the stem.

    >>> Inception(width=4)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(self, norm: str = "bn", classes: int = 10, image_size: int = 32, width: int = 32) -> None:
        channels = width
        layers = unit(3, channels, 3, norm, nn.ReLU)
        for stage in range(3):
            branch = width * 2**stage // 2
            for _ in range(2):
                layers.append(InceptionBlock(channels, branch, norm))
                channels = 4 * branch
            if stage < 2:
                layers.append(nn.MaxPool2d(2))
        classifier = weighted(nn.Linear(channels, classes), norm)
        super().__init__((3, image_size, image_size), layers, classifier=classifier)
