"""What networks for images share: convolutions with their normalizer, and the end of a classifier."""

from collections.abc import Iterable

import torch
from torch import nn

from normscope.zoo.networks.normalizers import normalizer, weighted


def convolution(inputs: int, outputs: int, size: int, stride: int, norm: str, groups: int = 1) -> nn.Conv2d:
    """Return a square convolution that keeps the resolution up to ``stride``, without bias.

    >>> convolution(3, 8, 3, 2, "none")
    Conv2d(3, 8, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), bias=False)
    """
    layer = nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, groups=groups, bias=False)
    return weighted(layer, norm)


def unit(
    inputs: int,
    outputs: int,
    size: int,
    norm: str,
    activation: type[nn.Module] | None = None,
    *,
    stride: int = 1,
    groups: int = 1,
) -> list[nn.Module]:
    """Return a convolution, its normalizer and, if asked for, an activation.

    >>> [type(layer).__name__ for layer in unit(3, 8, 3, "bn", nn.ReLU)]
    ['Conv2d', 'BatchNorm2d', 'ReLU']
    """
    layers = [convolution(inputs, outputs, size, stride, norm, groups), normalizer(norm, outputs, 2)]
    return layers if activation is None else [*layers, activation()]


class ImageClassifier(nn.Module):
    """Features of an image, their mean over all pixels, and further layers in the order they are given.

    Args:
        input_shape: shape of one image.
        features: the layers from images to features (N, C, H, W), in a row.
        **rest: the layers after the mean, by their names in the state dict.

    >>> ImageClassifier((3, 8, 8), unit(3, 4, 3, "bn"), head=nn.Linear(4, 2))(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 2])
    """

    def __init__(self, input_shape: tuple[int, ...], features: Iterable[nn.Module], **rest: nn.Module) -> None:
        super().__init__()
        self.input_shape = input_shape
        self.features = nn.Sequential(*features)
        for name, layer in rest.items():
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, C, H, W) to logits (N, classes)."""
        features, *rest = self.children()
        y = features(x).mean(dim=(2, 3))
        for layer in rest:
            y = layer(y)
        return y
