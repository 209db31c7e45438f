"""Power iteration on the convolution itself, its adjoint by autograd."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from benchmarks.layers import Layer
from benchmarks.peers.base import Peer, Stage


class Power(Peer):
    """Power iteration: every value is attained, so it approaches the norm from below."""

    name = "power"
    origin = "power iteration with autograd, float32 (method of lipEstimation, our code)"
    distribution: ClassVar[str | None] = None
    claim = "lower"
    cumulative = True
    usual = "50"

    def refuses(self, layer: Layer) -> str:
        """Apply to every convolution."""
        return ""

    def stages(self, layer: Layer, weight: Tensor) -> Iterator[Stage]:
        """Yield 10 iterations more at a time."""
        conv = layer.module(weight).requires_grad_(False)
        generator = torch.Generator().manual_seed(0)
        state = torch.randn(1, layer.channels, layer.size, layer.size, generator=generator)

        def iterate(count: int) -> float:
            nonlocal state
            value = 0.0
            for _ in range(count):
                x = (state / state.norm()).requires_grad_(True)
                y = conv(x)
                value = float(y.detach().norm())
                (state,) = torch.autograd.grad(y, x, grad_outputs=y.detach())
            return value

        for total in range(10, 100_000, 10):
            yield Stage(str(total), lambda: iterate(10))
