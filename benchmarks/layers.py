"""The convolutions of the zoo's networks: each distinct shape once, with He-normal weights that depend on a seed."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normscope.zoo import build


@dataclass(frozen=True)
class Layer:
    """One convolution on inputs of one size, square everywhere.

    Attributes:
        shape: of the kernel, ``(Cout, Cin / groups, k, k)``.
        size: pixels of a side of the input.
        stride: the stride.
        padding: zeros on each side.
        groups: channel groups.
        uses: how often each network has it.
    """

    shape: tuple[int, int, int, int]
    size: int
    stride: int
    padding: int
    groups: int
    uses: Mapping[str, int] = field(compare=False, default_factory=dict)

    @property
    def channels(self) -> int:
        """Return the input channels."""
        return self.shape[1] * self.groups

    @property
    def kernel(self) -> int:
        """Return the size of the kernel."""
        return self.shape[2]

    @property
    def is_matrix(self) -> bool:
        """Return whether windows do not overlap, so that the norm is that of a matrix."""
        return self.kernel <= self.stride and self.padding == 0

    @property
    def name(self) -> str:
        """Return channels, kernel, stride and map, e.g. ``64-128 3x3/2 @56``."""
        step = f"/{self.stride}" if self.stride > 1 else ""
        grouped = "" if self.groups == 1 else " depthwise" if self.shape[1] == 1 else f" groups {self.groups}"
        return f"{self.channels}-{self.shape[0]} {self.kernel}x{self.kernel}{step} @{self.size}{grouped}"

    def weight(self, seed: int = 0) -> Tensor:
        """Return He-normal weights, float32."""
        generator = torch.Generator().manual_seed(seed + zlib.crc32(self.name.encode()))
        fan_in = self.shape[1] * self.kernel**2
        return torch.randn(self.shape, generator=generator) * (2.0 / fan_in) ** 0.5

    def module(self, weight: Tensor) -> nn.Conv2d:
        """Return the layer as a module."""
        conv = nn.Conv2d(
            self.channels,
            self.shape[0],
            self.kernel,
            self.stride,
            self.padding,
            groups=self.groups,
            bias=False,
            dtype=weight.dtype,
        )
        with torch.no_grad():
            conv.weight.copy_(weight)
        return conv


def convolutions_of(networks: Iterable[tuple[str, dict[str, Any]]]) -> list[Layer]:
    """Return the distinct convolutions of several networks, given as name and arguments, with their counts."""
    counts: dict[Layer, Counter[str]] = {}
    for name, arguments in networks:
        with torch.device("meta"):
            network: Any = build(name, **arguments).eval()
        found: list[Layer] = []

        def note(module: nn.Conv2d, inputs: tuple[Tensor, ...], found: list[Layer] = found) -> None:
            found.append(_layer(module, inputs[0].shape[-1]))

        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_pre_hook(note)
        network(torch.zeros(1, *network.input_shape, device="meta"))
        for layer in found:
            counts.setdefault(layer, Counter())[name] += 1
    return [Layer(x.shape, x.size, x.stride, x.padding, x.groups, dict(c)) for x, c in counts.items()]


def _layer(module: nn.Conv2d, size: int) -> Layer:
    """Return the description of a module."""
    out, into, height, width = module.weight.shape
    if height != width or module.stride[0] != module.stride[1] or module.dilation != (1, 1):
        raise ValueError(f"square convolutions without dilation are compared; came {module}")
    return Layer((out, into, height, width), size, module.stride[0], int(module.padding[0]), module.groups)
