"""Random choices and random tensors from one seed, and functions with tensors of their own as modules."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Item = TypeVar("Item")
#: Shape of one sample, without the batch axis.
Shape = tuple[int, ...]


class Draw:
    """A source of choices and float64 tensors that depends on its seed alone; the global generators stay put.

    >>> Draw(3).tensor(2).tolist() == Draw(3).tensor(2).tolist()
    True
    """

    def __init__(self, seed: int) -> None:
        self._choices = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)

    def choice(self, items: Sequence[Item]) -> Item:
        """Return one of some items."""
        return self._choices.choice(items)

    def integer(self, low: int, high: int) -> int:
        """Return a whole number from low to high, both included."""
        return self._choices.randint(low, high)

    def number(self, low: float = -2.0, high: float = 2.0) -> float:
        """Return a number from an interval."""
        return self._choices.uniform(low, high)

    def chance(self, probability: float = 0.5) -> bool:
        """Return true with a probability."""
        return self._choices.random() < probability

    def scale(self, low: float = -1.0, high: float = 1.0) -> float:
        """Return a positive number whose decimal logarithm is uniform."""
        return float(10.0 ** self._choices.uniform(low, high))

    def permutation(self, n: int) -> list[int]:
        """Return the numbers below n in a random order."""
        return self._choices.sample(range(n), n)

    def tensor(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Return a float64 tensor of normal entries."""
        return torch.randn(shape, generator=self._generator, dtype=torch.float64) * scale

    def mask(self, *shape: int, share: float = 0.5) -> Tensor:
        """Return a boolean tensor with about a share of true entries."""
        return torch.rand(shape, generator=self._generator) < share

    def indices(self, below: int, *shape: int) -> Tensor:
        """Return an integer tensor."""
        return torch.randint(below, shape, generator=self._generator)

    def eps(self) -> float:
        """Return a stabilizer from 1e-12 to 1e-1."""
        return self.scale(-12.0, -1.0)

    def gamma(self, *shape: int) -> Tensor:
        """Return a scale as normalizers have it: near one, or of any sign, some entries perhaps zero."""
        if self.chance(0.3):
            return 1.0 + self.tensor(*shape, scale=0.1)
        gamma = self.tensor(*shape, scale=self.scale(-0.5, 0.5))
        return gamma * self.mask(*shape, share=0.8) if self.chance(0.3) else gamma


class Function(nn.Module):
    """A function of the module itself and its inputs, with named tensors: finite floating ones are parameters.

    Args:
        name: shown when the module is printed.
        function: called as ``function(self, *inputs)``.
        **tensors: kept as parameters (floating, finite) or buffers (masks too), modules as submodules.

    >>> Function("shift", lambda m, x: x + m.b, b=torch.ones(2))(torch.zeros(1, 2)).tolist()
    [[1.0, 1.0]]
    """

    def __init__(self, name: str, function: Callable[..., Any], **tensors: Any) -> None:
        super().__init__()
        self.name, self.function = name, function
        for key, value in tensors.items():
            if isinstance(value, nn.Module):
                self.add_module(key, value)
            elif isinstance(value, Tensor) and value.is_floating_point() and bool(value.isfinite().all()):
                self.register_parameter(key, nn.Parameter(value))
            else:
                self.register_buffer(key, value)

    def forward(self, *inputs: Tensor) -> Any:
        """Call the function."""
        return self.function(self, *inputs)

    def extra_repr(self) -> str:
        """Return the name."""
        return self.name


def randomized(module: nn.Module, draw: Draw, scale: float | None = None) -> nn.Module:
    """Return a module in float64 with random parameters, and random running statistics.

    >>> randomized(nn.Linear(2, 2), Draw(0)).weight.dtype
    torch.float64
    """
    module = module.double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            size = (scale or draw.scale(-0.7, 0.5)) / max(1.0, parameter[0].numel() ** 0.5 if parameter.ndim else 1.0)
            is_scale = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(draw.gamma(*parameter.shape) if is_scale else draw.tensor(*parameter.shape, scale=size))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(draw.tensor(*buffer.shape))
            elif name.endswith("running_var"):
                buffer.copy_(10.0 ** draw.tensor(*buffer.shape))
    return module
