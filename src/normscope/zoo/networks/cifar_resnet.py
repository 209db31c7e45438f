"""ResNet-20 and its deeper siblings for 32x32 images, with shortcuts that have no parameters (option A)."""

import torch
from torch import nn
from torch.nn import functional as F

from normscope.zoo.networks.layers import convolution
from normscope.zoo.networks.normalizers import normalizer, weighted
from normscope.zoo.networks.resnet import BasicBlock


class PadShortcut(nn.Module):
    """Take every second pixel and add zero channels in equal parts before and after: a linear map of norm 1.

    >>> PadShortcut(2, 4)(torch.ones(1, 2, 4, 4))[0, :, 0, 0]
    tensor([0., 1., 1., 0.])
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.before = (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (N, inputs, H, W) to (N, outputs, H/2, W/2)."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.after))


class Block(BasicBlock):
    """Two 3x3 convolutions, each with its normalizer, around a shortcut: ``relu(x' + N(W relu(N(V x))))``."""

    @staticmethod
    def shortcut(inputs: int, outputs: int, stride: int, norm: str) -> nn.Module | None:
        """Return the shortcut without parameters, or None where the identity does."""
        return None if stride == 1 and inputs == outputs else PadShortcut(inputs, outputs)


class CifarResNet(nn.Module):
    """CIFAR ResNet of depth ``6 blocks + 2``: 20 by default, with 269,722 parameters.

    Stem, three stages of blocks, each half the size and twice the channels of the one before, average pool, linear
    layer.

    Args:
        blocks: blocks in each of the three stages.

    >>> CifarResNet(width=2)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(self, norm: str = "bn", classes: int = 10, blocks: int = 3, width: int = 16) -> None:
        super().__init__()
        self.input_shape = (3, 32, 32)
        self.conv1 = convolution(3, width, 3, 1, norm)
        self.bn1 = normalizer(norm, width, 2)
        self.layer1 = self._stage(width, width, blocks, 1, norm)
        self.layer2 = self._stage(width, 2 * width, blocks, 2, norm)
        self.layer3 = self._stage(2 * width, 4 * width, blocks, 2, norm)
        self.linear = weighted(nn.Linear(4 * width, classes), norm)

    @staticmethod
    def _stage(inputs: int, outputs: int, blocks: int, stride: int, norm: str) -> nn.Sequential:
        rest = [Block(outputs, outputs, 1, norm) for _ in range(blocks - 1)]
        return nn.Sequential(Block(inputs, outputs, stride, norm), *rest)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, 3, 32, 32) to logits (N, classes)."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.layer3(self.layer2(self.layer1(y)))
        return self.linear(y.mean(dim=(2, 3)))
