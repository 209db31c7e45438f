r"""The network of the paper: unit weight vectors, a factor :math:`1/\sqrt m` per layer, a plain linear output."""

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from normscope.core.errors import InputError

#: Activations a network can be built with.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "relu": nn.ReLU,
    "identity": nn.Identity,
}


class UnitRowLinear(nn.Module):
    r"""A linear layer whose weight vectors are made unit vectors and divided by :math:`\sqrt m`.

    Args:
        inputs: fan-in.
        outputs: ``m``.
        normalize: divide each weight vector by its norm; without it the layer is plain, for comparison.

    >>> layer = UnitRowLinear(3, 4)
    >>> round(layer.effective_weight().norm().item(), 5)
    1.0
    """

    def __init__(self, inputs: int, outputs: int, *, normalize: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.normalize = normalize
        bound = 1.0 / math.sqrt(inputs)
        nn.init.uniform_(self.weight, -bound, bound)

    def effective_weight(self) -> Tensor:
        """Return the matrix the layer applies."""
        weight = self.weight
        if self.normalize:
            weight = weight / torch.linalg.vector_norm(weight, dim=1, keepdim=True)
        return weight / math.sqrt(len(weight))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        return nn.functional.linear(x, self.effective_weight())

    def extra_repr(self) -> str:
        """Return the sizes, for printing."""
        outputs, inputs = self.weight.shape
        return f"{inputs}, {outputs}, normalize={self.normalize}"


class WeightNormNetwork(nn.Sequential):
    r""":math:`f(x) = A\, \phi(\tfrac{1}{\sqrt m} \hat V_L \cdots \phi(\tfrac{1}{\sqrt m} \hat V_1 x))`.

    Args:
        inputs: dimension of the input.
        width: ``m``, of every hidden layer.
        depth: ``L``, the number of hidden layers.
        outputs: how many numbers it predicts.
        activation: a key of :data:`ACTIVATIONS`.
        normalize: without it, the same network with plain weights, for comparison.
        seed: of the uniform initialization; ``None`` draws from torch's global generator.

    Raises:
        InputError: if a size is below one or the activation is unknown.

    >>> network = WeightNormNetwork(8, width=16, depth=3, seed=0)
    >>> network(torch.ones(2, 8)).shape
    torch.Size([2, 1])
    """

    def __init__(
        self,
        inputs: int,
        *,
        width: int,
        depth: int,
        outputs: int = 1,
        activation: str = "tanh",
        normalize: bool = True,
        seed: int | None = None,
    ) -> None:
        if min(inputs, width, depth, outputs) < 1:
            raise InputError(f"Expected sizes of at least 1, got {inputs}, {width}, {depth} and {outputs}.")
        if activation not in ACTIVATIONS:
            raise InputError(f"Unknown activation {activation!r}. Choose from: {', '.join(ACTIVATIONS)}.")
        layers: list[nn.Module] = []
        for k in range(depth):
            layers += [
                UnitRowLinear(inputs if k == 0 else width, width, normalize=normalize),
                ACTIVATIONS[activation](),
            ]
        super().__init__(*layers, nn.Linear(width, outputs, bias=False))
        if seed is not None:
            uniform_(self, torch.Generator().manual_seed(seed))

    @property
    def output(self) -> nn.Linear:
        """The output layer."""
        return cast(nn.Linear, self[-1])

    @property
    def hidden(self) -> list[UnitRowLinear]:
        """The hidden layers, first to last."""
        return [layer for layer in self if isinstance(layer, UnitRowLinear)]


def uniform_(network: nn.Module, generator: torch.Generator, scale: float = 1.0) -> None:
    r"""Draw every matrix uniformly from :math:`\pm` ``scale`` :math:`/\sqrt{\text{fan-in}}`, in place.

    >>> network = WeightNormNetwork(4, width=8, depth=1)
    >>> uniform_(network, torch.Generator().manual_seed(0), scale=2.0)
    """
    with torch.no_grad():
        for parameter in network.parameters():
            bound = scale / math.sqrt(parameter.shape[-1])
            drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_((2.0 * drawn - 1.0) * bound)
