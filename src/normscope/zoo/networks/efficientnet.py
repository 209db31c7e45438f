"""EfficientNet: inverted residual blocks with SiLU and squeeze-and-excitation."""

import math

import torch
from torch import nn

from normscope.zoo.networks.layers import ImageClassifier, unit
from normscope.zoo.networks.mobilenet import round_channels
from normscope.zoo.networks.normalizers import weighted

#: Per stage of B0: expansion, channels, blocks, stride, kernel size.
STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


class SqueezeExcitation(nn.Module):
    r"""Scale each channel by a gate computed from all channel means: :math:`x \cdot s(V\,\mathrm{silu}(U \bar x))`."""

    def __init__(self, channels: int, squeezed: int, norm: str) -> None:
        super().__init__()
        self.reduce = weighted(nn.Conv2d(channels, squeezed, 1), norm)
        self.expand = weighted(nn.Conv2d(squeezed, channels, 1), norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the gated channels."""
        squeezed = nn.functional.silu(self.reduce(x.mean(dim=(2, 3), keepdim=True)))
        return x * torch.sigmoid(self.expand(squeezed))


class MBConv(nn.Module):
    """Widen, filter each channel, gate, project back without activation, add the input if it fits."""

    def __init__(self, inputs: int, outputs: int, *, expansion: int, size: int, stride: int, norm: str) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        layers = [] if expansion == 1 else unit(inputs, hidden, 1, norm, nn.SiLU)
        layers += unit(hidden, hidden, size, norm, nn.SiLU, stride=stride, groups=hidden)
        layers.append(SqueezeExcitation(hidden, max(1, inputs // 4), norm))
        layers += unit(hidden, outputs, 1, norm)
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return x + self.layers(x) if self.residual else self.layers(x)


class EfficientNet(ImageClassifier):
    """EfficientNet-B0: 5,288,548 parameters; width 1.2 and depth 1.4 at 300 pixels are B3 with 12,233,232.

    Stem, seven stages of gated blocks, 1x1 convolution, average pool, linear layer.

    Args:
        width: factor on all channels.
        depth: factor on the number of blocks, rounded up.

    >>> EfficientNet(width=0.25, classes=10, image_size=32).eval()(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(
        self, norm: str = "bn", classes: int = 1000, image_size: int = 224, width: float = 1.0, depth: float = 1.0
    ) -> None:
        channels = round_channels(32 * width)
        layers = unit(3, channels, 3, norm, nn.SiLU, stride=2)
        for expansion, base, blocks, first_stride, size in STAGES:
            outputs = round_channels(base * width)
            for position in range(math.ceil(blocks * depth)):
                stride = first_stride if position == 0 else 1
                layers.append(MBConv(channels, outputs, expansion=expansion, size=size, stride=stride, norm=norm))
                channels = outputs
        last = round_channels(1280 * width)
        layers += unit(channels, last, 1, norm, nn.SiLU)
        classifier = weighted(nn.Linear(last, classes), norm)
        super().__init__((3, image_size, image_size), layers, dropout=nn.Dropout(0.2), classifier=classifier)
