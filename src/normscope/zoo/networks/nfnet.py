"""Normalizer-free residual network: standardized weights, scaled ReLU and known variances instead of normalizers."""

import math

import torch
from torch import nn
from torch.nn import functional as F

#: Makes ReLU keep unit variance of a standard normal input.
RELU_GAIN = math.sqrt(2.0 / (1.0 - 1.0 / math.pi))


class StandardizedConv2d(nn.Conv2d):
    r"""Convolution by :math:`g\,(W - \mathrm{mean}) / \sqrt{\max(n\,\mathrm{var}, \epsilon)}`, per output channel.

    n is the number of weights of an output channel, so that unit gain keeps the variance of independent inputs.

    >>> layer = StandardizedConv2d(3, 4, 3)
    >>> bool(torch.allclose(layer.standardized_weight().flatten(1).norm(dim=1), torch.ones(4), atol=1e-5))
    True
    """

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1, eps: float = 1e-4) -> None:
        super().__init__(inputs, outputs, size, stride=stride, padding=size // 2)
        self.gain = nn.Parameter(torch.ones(outputs, 1, 1, 1))
        self.eps = eps

    def standardized_weight(self) -> torch.Tensor:
        """Return the weight that is applied."""
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        count = self.weight[0].numel()
        return (self.weight - mean) * torch.rsqrt(torch.clamp(variance * count, min=self.eps)) * self.gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the convolution by the standardized weight."""
        return self._conv_forward(x, self.standardized_weight(), self.bias)


class NormalizerFreeBlock(nn.Module):
    """``x' + alpha * g * V(relu(W(relu(x / beta))))``: beta is the expected deviation, g a learned gain from zero."""

    def __init__(self, inputs: int, outputs: int, stride: int, alpha: float, beta: float) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta
        self.conv1 = StandardizedConv2d(inputs, outputs, 3, stride)
        self.conv2 = StandardizedConv2d(outputs, outputs, 3)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else StandardizedConv2d(inputs, outputs, 1, stride)
        self.skip_gain = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        scaled = F.relu(x) * (RELU_GAIN / self.beta)
        y = self.conv2(F.relu(self.conv1(scaled)) * RELU_GAIN)
        return (x if self.shortcut is None else self.shortcut(scaled)) + self.alpha * self.skip_gain * y


class NFNet(nn.Module):
    """Small normalizer-free residual network: stem, stages of blocks, ReLU, average pool, linear layer.

    Args:
        blocks: blocks in each of the three stages.
        alpha: weight of each residual branch.

    >>> NFNet(width=4)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(
        self, classes: int = 10, image_size: int = 32, width: int = 32, blocks: int = 2, alpha: float = 0.2
    ) -> None:
        super().__init__()
        self.input_shape = (3, image_size, image_size)
        self.stem = StandardizedConv2d(3, width, 3)
        layers: list[nn.Module] = []
        channels = width
        variance = 1.0
        for stage in range(3):
            outputs = width * 2**stage
            for position in range(blocks):
                stride = 2 if stage > 0 and position == 0 else 1
                layers.append(NormalizerFreeBlock(channels, outputs, stride, alpha, math.sqrt(variance)))
                # A block that changes shape starts again from unit variance, and each adds alpha squared.
                variance = (1.0 if channels != outputs else variance) + alpha**2
                channels = outputs
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, 3, H, W) to logits (N, classes)."""
        return self.head(F.relu(self.blocks(self.stem(x))).mean(dim=(2, 3)))
