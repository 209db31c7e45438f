"""Inception-like network: parallel branches of different sizes, concatenated."""

import torch
from torch import nn

from normscope.zoo.networks.normalizers import normalizer, weighted
from normscope.zoo.networks.resnet import convolution


def _unit(inputs: int, outputs: int, size: int, norm: str) -> list[nn.Module]:
    return [convolution(inputs, outputs, size, 1, norm), normalizer(norm, outputs, 2), nn.ReLU()]


class InceptionBlock(nn.Module):
    """1x1, 3x3 and 5x5 convolutions and a max pool side by side; each gives ``branch`` channels."""

    def __init__(self, inputs: int, branch: int, norm: str) -> None:
        super().__init__()
        self.one = nn.Sequential(*_unit(inputs, branch, 1, norm))
        self.three = nn.Sequential(*_unit(inputs, branch, 1, norm), *_unit(branch, branch, 3, norm))
        self.five = nn.Sequential(*_unit(inputs, branch, 1, norm), *_unit(branch, branch, 5, norm))
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), *_unit(inputs, branch, 1, norm))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the concatenated branches."""
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


class Inception(nn.Module):
    """Small network of inception blocks: 3x3 stem, three pairs of blocks with max pools between them, linear layer.

    Args:
        norm: the normalizer.
        classes: outputs.
        image_size: pixels of a side.
        width: channels of the stem.

    >>> Inception(width=4)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(self, norm: str = "bn", classes: int = 10, image_size: int = 32, width: int = 32) -> None:
        super().__init__()
        self.input_shape = (3, image_size, image_size)
        channels = width
        layers = _unit(3, channels, 3, norm)
        for stage in range(3):
            branch = width * 2**stage // 2
            for _ in range(2):
                layers.append(InceptionBlock(channels, branch, norm))
                channels = 4 * branch
            if stage < 2:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = weighted(nn.Linear(channels, classes), norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, 3, H, W) to logits (N, classes)."""
        return self.classifier(self.features(x).mean(dim=(2, 3)))
