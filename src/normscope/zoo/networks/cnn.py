"""A plain convolutional network."""

from torch import nn

from normscope.zoo.networks.layers import ImageClassifier
from normscope.zoo.networks.normalizers import normalizer, weighted


class CNN(ImageClassifier):
    """Three convolutions (3x3, then two of stride 2), each with normalizer and ReLU, average pool, linear layer.

    >>> import torch
    >>> CNN(channels=1, image_size=8, width=4)(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 10])
    >>> sorted(name for name, _ in CNN(norm="wn").head.named_parameters())
    ['bias', 'parametrizations.weight.original0', 'parametrizations.weight.original1']
    """

    def __init__(
        self, norm: str = "bn", classes: int = 10, channels: int = 3, image_size: int = 32, width: int = 32
    ) -> None:
        layers: list[nn.Module] = []
        inputs = channels
        for index in range(3):
            outputs = width * 2**index
            convolution = nn.Conv2d(inputs, outputs, 3, stride=1 if index == 0 else 2, padding=1)
            layers += [weighted(convolution, norm), normalizer(norm, outputs, 2), nn.ReLU()]
            inputs = outputs
        head = weighted(nn.Linear(inputs, classes), norm)
        super().__init__((channels, image_size, image_size), layers, head=head)
