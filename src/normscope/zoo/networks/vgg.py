"""VGG-11: plain 3x3 convolutions and max pools."""

import torch
from torch import nn

from normscope.zoo.networks.normalizers import WEIGHT_NORMS, normalizer, weighted

#: Channels of the eight convolutions; 0 is a max pool.
CHANNELS = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)


class VGG(nn.Module):
    """VGG-11; with 1000 classes and 224 pixels it has 132,863,336 parameters without normalizers.

    Convolution, normalizer and ReLU eight times with max pools between, then the classifier: three layers of 4096 for
    large images, and one linear layer for images of 64 pixels or fewer.

    Args:
        image_size: pixels of a side; more than 64 selects the large classifier.

    >>> VGG(width=4)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(self, norm: str = "bn", classes: int = 10, image_size: int = 32, width: int = 64) -> None:
        super().__init__()
        if image_size < 32:
            raise ValueError(f"Expected image_size >= 32 (five max pools halve it), got {image_size}.")
        self.input_shape = (3, image_size, image_size)
        layers: list[nn.Module] = []
        channels = 3
        for relative in CHANNELS:
            if relative == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            outputs = relative * width // 64
            layers.append(weighted(nn.Conv2d(channels, outputs, 3, padding=1), norm))
            if norm not in ("none", *WEIGHT_NORMS):  # public checkpoints without normalizers number layers this way
                layers.append(normalizer(norm, outputs, 2))
            layers.append(nn.ReLU())
            channels = outputs
        self.features = nn.Sequential(*layers)
        if image_size <= 64:
            self.avgpool = nn.AdaptiveAvgPool2d(1)
            self.classifier = nn.Sequential(weighted(nn.Linear(channels, classes), norm))
        else:
            self.avgpool = nn.AdaptiveAvgPool2d(7)
            self.classifier = nn.Sequential(
                weighted(nn.Linear(49 * channels, 64 * width), norm),
                nn.ReLU(),
                nn.Dropout(),
                weighted(nn.Linear(64 * width, 64 * width), norm),
                nn.ReLU(),
                nn.Dropout(),
                weighted(nn.Linear(64 * width, classes), norm),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, 3, H, W) to logits (N, classes)."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))
