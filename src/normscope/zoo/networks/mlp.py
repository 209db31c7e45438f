"""Fully connected ReLU networks, among them the papers' ten-layer network."""

import itertools
from collections.abc import Sequence

import torch
from torch import nn

from normscope.zoo.networks.normalizers import normalizer, weighted


class MLP(nn.Module):
    r"""A chain :math:`x \mapsto W_L g(N_{L-1}(W_{L-1} \cdots g(N_1(W_1 x))))`, ReLU g, normalizers N_i, no ReLU last.

    Args:
        sizes: features of the input, of each hidden layer, and of the output.
        norm: one of :data:`normscope.zoo.networks.normalizers.NORMS`, between each hidden linear layer and its ReLU.
        input_shape: shape of one example; it is flattened. The default is a vector.

    >>> MLP([4, 8, 2], norm="bn")(torch.zeros(3, 4)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self, sizes: Sequence[int], norm: str = "none", bias: bool = True, input_shape: tuple[int, ...] | None = None
    ) -> None:
        super().__init__()
        if len(sizes) < 2:
            raise ValueError(f"Expected sizes to have at least the input and output features, got {list(sizes)}.")
        self.input_shape = tuple(input_shape or (sizes[0],))
        blocks: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes[:-1]):
            linear = weighted(nn.Linear(inputs, outputs, bias=bias), norm)
            blocks.append(nn.Sequential(linear, normalizer(norm, outputs, 1), nn.ReLU()))
        self.hidden = nn.Sequential(*blocks)
        self.head = weighted(nn.Linear(sizes[-2], sizes[-1], bias=bias), norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map examples (N, ...) to (N, outputs)."""
        return self.head(self.hidden(x.flatten(1)))


def _shape_of(in_features: int) -> tuple[int, ...]:
    """Return the image shape of the known data set with this many values, or the shape of a vector."""
    return {3072: (3, 32, 32), 784: (1, 28, 28), 64: (1, 8, 8)}.get(in_features, (in_features,))


def relu10(
    norm: str = "none",
    width: int = 512,
    depth: int = 10,
    in_features: int = 3072,
    classes: int = 10,
    bias: bool = True,
) -> MLP:
    """Return the papers' network: ``depth`` linear layers, each but the last followed by a normalizer and ReLU.

    Args:
        norm: the normalizer.
        width: features of each hidden layer.
        depth: number of linear layers.
        in_features: 3072 for CIFAR-10 images, 784 for MNIST, 64 for digits.
        classes: outputs of the last layer.
        bias: whether linear layers have one.

    >>> sum(isinstance(m, nn.Linear) for m in relu10(width=8, in_features=64).modules())
    10
    """
    if depth < 1:
        raise ValueError(f"Expected depth >= 1, got {depth}.")
    return MLP([in_features, *[width] * (depth - 1), classes], norm, bias, _shape_of(in_features))


def mlp(
    norm: str = "none",
    hidden: Sequence[int] = (256, 128),
    in_features: int = 784,
    classes: int = 10,
    bias: bool = True,
) -> MLP:
    """Return a multilayer perceptron with the given hidden sizes.

    Args:
        norm: the normalizer.
        hidden: features of each hidden layer.
        in_features: values of one example.
        classes: outputs.
        bias: whether linear layers have one.

    >>> mlp(hidden=(5,), in_features=4, classes=2).head
    Linear(in_features=5, out_features=2, bias=True)
    """
    return MLP([in_features, *hidden, classes], norm, bias, _shape_of(in_features))
