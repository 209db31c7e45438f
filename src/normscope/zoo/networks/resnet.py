"""Residual networks with projection shortcuts: ResNet-18, 34 and 50, for 224x224 and for 32x32 images."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from normscope.zoo.networks.layers import convolution, unit
from normscope.zoo.networks.normalizers import normalizer, weighted


def projection(inputs: int, outputs: int, stride: int, norm: str) -> nn.Module | None:
    """Return the shortcut that fits ``inputs`` to ``outputs`` channels, or None where the identity does."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(*unit(inputs, outputs, 1, norm, stride=stride))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut around them."""

    expansion = 1
    shortcut = staticmethod(projection)

    def __init__(self, inputs: int, planes: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, planes, 3, stride, norm)
        self.bn1 = normalizer(norm, planes, 2)
        self.conv2 = convolution(planes, planes, 3, 1, norm)
        self.bn2 = normalizer(norm, planes, 2)
        self.downsample = self.shortcut(inputs, planes, stride, norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut around them; stride and groups are in the 3x3."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int, norm: str, groups: int = 1) -> None:
        super().__init__()
        outputs = planes * self.expansion
        self.conv1 = convolution(inputs, planes, 1, 1, norm)
        self.bn1 = normalizer(norm, planes, 2)
        self.conv2 = convolution(planes, planes, 3, stride, norm, groups)
        self.bn2 = normalizer(norm, planes, 2)
        self.conv3 = convolution(planes, outputs, 1, 1, norm)
        self.bn3 = normalizer(norm, outputs, 2)
        self.downsample = projection(inputs, outputs, stride, norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """Stem, four stages of residual blocks, average pool, linear layer.

    The stem is a 7x7 convolution with stride 2 and a max pool; images of 64 pixels or fewer get a 3x3 convolution
    with stride 1 and no pool. Parameter names are the usual ones, so that public checkpoints fit. The defaults are
    ResNet-18: 20 normalizers, 11,689,512 parameters.

    Args:
        blocks: blocks in each of the four stages; (3, 4, 6, 3) in ResNet-34 and ResNet-50.
        bottleneck: whether blocks are bottlenecks, as in ResNet-50, or basic blocks.

    >>> ResNet(width=4, classes=3, image_size=32)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 3])
    """

    layer1: nn.Sequential
    layer2: nn.Sequential
    layer3: nn.Sequential
    layer4: nn.Sequential

    def __init__(
        self,
        norm: str = "bn",
        classes: int = 1000,
        image_size: int = 224,
        width: int = 64,
        blocks: Sequence[int] = (2, 2, 2, 2),
        bottleneck: bool = False,
    ) -> None:
        super().__init__()
        block: type[BasicBlock | Bottleneck] = Bottleneck if bottleneck else BasicBlock
        small = image_size <= 64
        self.input_shape = (3, image_size, image_size)
        self.conv1 = convolution(3, width, 3 if small else 7, 1 if small else 2, norm)
        self.bn1 = normalizer(norm, width, 2)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        channels = width
        for index, count in enumerate(blocks):
            planes = width * 2**index
            stage: list[nn.Module] = []
            for position in range(count):
                stage.append(block(channels, planes, 2 if index > 0 and position == 0 else 1, norm))
                channels = planes * block.expansion
            self.add_module(f"layer{index + 1}", nn.Sequential(*stage))
        self.fc = weighted(nn.Linear(channels, classes), norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, 3, H, W) to logits (N, classes)."""
        y = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        y = self.layer4(self.layer3(self.layer2(self.layer1(y))))
        return self.fc(F.adaptive_avg_pool2d(y, 1).flatten(1))
