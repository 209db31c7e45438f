"""Four reshapes of the kernel, each an upper bound times the square root of the window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from benchmarks.layers import Layer
from benchmarks.peers.base import Peer, Stage


class FantasticFour(Peer):
    """The least of four matrix norms times the square root of the window; a stride only takes outputs away."""

    name = "fantastic four"
    origin = "four reshapes of the kernel, by SVD (method of Singla and Feizi 2021, our code)"
    distribution: ClassVar[str | None] = None
    claim = "upper"
    cumulative = False
    usual = "exact"

    def refuses(self, layer: Layer) -> str:
        """Apply to every convolution."""
        return ""

    def stages(self, layer: Layer, weight: Tensor) -> Iterator[Stage]:
        """Yield the value."""

        def bound() -> float:
            parts = weight.reshape(layer.groups, -1, *weight.shape[1:])  # groups, out, in, height, width
            groups, out, into, height, width = parts.shape
            matrices = (
                parts.permute(0, 1, 3, 2, 4).reshape(groups, out * height, into * width),
                parts.permute(0, 1, 4, 2, 3).reshape(groups, out * width, into * height),
                parts.reshape(groups, out, into * height * width),
                parts.permute(0, 1, 3, 4, 2).reshape(groups, out * height * width, into),
            )
            norms = torch.stack([torch.linalg.svdvals(m)[..., 0] for m in matrices])
            return float(norms.amin(0).max()) * (height * width) ** 0.5

        yield Stage("exact", bound)
