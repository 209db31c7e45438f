"""DenseNet: every layer sees the concatenation of all before it."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from normscope.zoo.networks.layers import ImageClassifier, convolution
from normscope.zoo.networks.normalizers import normalizer, weighted


class DenseLayer(nn.Module):
    """Append ``growth`` channels computed by a 1x1 and a 3x3 convolution, each after normalizer and ReLU."""

    def __init__(self, channels: int, growth: int, norm: str) -> None:
        super().__init__()
        self.norm1 = normalizer(norm, channels, 2)
        self.conv1 = convolution(channels, 4 * growth, 1, 1, norm)
        self.norm2 = normalizer(norm, 4 * growth, 2)
        self.conv2 = convolution(4 * growth, growth, 3, 1, norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` and the new channels."""
        y = self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(y)))], dim=1)


class DenseNet(ImageClassifier):
    """DenseNet, small by default; blocks (6, 12, 24, 16) and growth 32 at 224 pixels are DenseNet-121.

    Stem, dense blocks with a halving of channels and resolution between them, average pool, linear layer.

    Args:
        image_size: pixels of a side; more than 64 selects the large stem.
        blocks: layers in each dense block.
        growth: channels each layer adds.
        stem: channels of the first convolution, twice the growth by default.

    >>> DenseNet(blocks=(1, 1), growth=4)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(
        self,
        norm: str = "bn",
        classes: int = 10,
        image_size: int = 32,
        blocks: Sequence[int] = (4, 4, 4),
        growth: int = 12,
        stem: int | None = None,
    ) -> None:
        small = image_size <= 64
        channels = 2 * growth if stem is None else stem
        layers: list[nn.Module] = [convolution(3, channels, 3 if small else 7, 1 if small else 2, norm)]
        if not small:
            layers += [normalizer(norm, channels, 2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
        for index, count in enumerate(blocks):
            for _ in range(count):
                layers.append(DenseLayer(channels, growth, norm))
                channels += growth
            layers += [normalizer(norm, channels, 2), nn.ReLU()]
            if index + 1 < len(blocks):
                layers += [convolution(channels, channels // 2, 1, 1, norm), nn.AvgPool2d(2)]
                channels //= 2
        classifier = weighted(nn.Linear(channels, classes), norm)
        super().__init__((3, image_size, image_size), layers, classifier=classifier)
