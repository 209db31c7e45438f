"""RegNet-style network: bottleneck blocks with grouped 3x3 convolutions and stages of regular widths."""

from collections.abc import Sequence

from torch import nn

from normscope.zoo.networks.layers import ImageClassifier, unit
from normscope.zoo.networks.normalizers import weighted
from normscope.zoo.networks.resnet import Bottleneck


class GroupedBlock(Bottleneck):
    """1x1, grouped 3x3 and 1x1 convolutions of one width, with a shortcut around them."""

    expansion = 1


class RegNet(ImageClassifier):
    """Network of grouped convolutions, small by default.

    Stem, stages of grouped blocks that each halve the resolution, average pool, linear layer. Widths
    (24, 56, 152, 368), blocks (1, 1, 4, 7) and group 8 at 224 pixels are RegNetX-200MF.

    Args:
        image_size: pixels of a side; more than 64 halves the resolution in the stem.
        widths: channels of each stage.
        blocks: blocks of each stage.
        group: channels of one group.

    >>> import torch
    >>> RegNet(widths=(8,), blocks=(1,))(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(
        self,
        norm: str = "bn",
        classes: int = 10,
        image_size: int = 32,
        widths: Sequence[int] = (24, 56, 152),
        blocks: Sequence[int] = (1, 1, 4),
        group: int = 8,
    ) -> None:
        if any(width % group for width in widths):
            raise ValueError(f"Expected every width to be a multiple of group={group}, got widths={list(widths)}.")
        channels = 32
        layers = unit(3, channels, 3, norm, nn.ReLU, stride=1 if image_size <= 64 else 2)
        for width, count in zip(widths, blocks, strict=True):
            for position in range(count):
                layers.append(GroupedBlock(channels, width, 2 if position == 0 else 1, norm, width // group))
                channels = width
        head = weighted(nn.Linear(channels, classes), norm)
        super().__init__((3, image_size, image_size), layers, head=head)
