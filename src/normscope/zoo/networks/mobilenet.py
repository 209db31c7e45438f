"""MobileNetV2: inverted residual blocks with depthwise convolutions and linear bottlenecks."""

import torch
from torch import nn

from normscope.zoo.networks.layers import ImageClassifier, unit
from normscope.zoo.networks.normalizers import weighted

#: Per stage: expansion, channels, blocks, stride.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def round_channels(channels: float, divisor: int = 8) -> int:
    """Return ``channels`` rounded to a multiple of ``divisor``, never more than a tenth below.

    >>> [round_channels(32 * w) for w in (1.0, 0.35, 1.2)]
    [32, 16, 40]
    """
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


class InvertedResidual(nn.Module):
    """Widen by a 1x1 convolution, filter each channel, project back without activation, add the input if it fits."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, norm: str) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        units = [] if expansion == 1 else [unit(inputs, hidden, 1, norm, nn.ReLU6)]
        units.append(unit(hidden, hidden, 3, norm, nn.ReLU6, stride=stride, groups=hidden))
        units.append(unit(hidden, outputs, 1, norm))
        self.layers = nn.Sequential(*(nn.Sequential(*layers) for layers in units))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return x + self.layers(x) if self.residual else self.layers(x)


class MobileNetV2(ImageClassifier):
    """MobileNetV2: 3,504,872 parameters with 1000 classes.

    Stem, seven stages of inverted residual blocks, 1x1 convolution, average pool, linear layer.

    Args:
        image_size: pixels of a side; 64 or fewer keeps more resolution at the start.
        width: factor on all channels.

    >>> MobileNetV2(width=0.25, classes=10, image_size=32)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(self, norm: str = "bn", classes: int = 1000, image_size: int = 224, width: float = 1.0) -> None:
        small = image_size <= 64
        channels = round_channels(32 * width)
        stem = unit(3, channels, 3, norm, nn.ReLU6, stride=1 if small else 2)
        blocks: list[nn.Module] = [nn.Sequential(*stem)]
        for expansion, base, count, first_stride in STAGES:
            outputs = round_channels(base * width)
            for position in range(count):
                # Small images keep their resolution in the first stage that would halve it.
                stride = first_stride if position == 0 and not (small and base == 24) else 1
                blocks.append(InvertedResidual(channels, outputs, stride, expansion, norm))
                channels = outputs
        last = round_channels(1280 * max(1.0, width))
        blocks.append(nn.Sequential(*unit(channels, last, 1, norm, nn.ReLU6)))
        classifier = weighted(nn.Linear(last, classes), norm)
        super().__init__((3, image_size, image_size), blocks, dropout=nn.Dropout(0.2), classifier=classifier)
