"""What torch's spectral normalization divides a convolution by: the norm of the reshaped kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.utils.parametrizations import spectral_norm

from benchmarks.layers import Layer
from benchmarks.peers.base import Peer, Stage


class TorchSpectralNorm(Peer):
    """The reshaped kernel: neither an upper nor a lower bound of the convolution's norm in general."""

    name = "torch spectral_norm"
    origin = "torch.nn.utils.parametrizations.spectral_norm, 100 power iterations"
    distribution: ClassVar[str | None] = "torch"
    claim = "neither"
    cumulative = False
    usual = "100"

    def refuses(self, layer: Layer) -> str:
        """Apply to every convolution."""
        return ""

    def stages(self, layer: Layer, weight: Tensor) -> Iterator[Stage]:
        """Yield the factor between the weight and its normalized form."""

        def factor() -> float:
            conv = spectral_norm(layer.module(weight), n_power_iterations=100)
            with torch.no_grad():
                return float(torch.linalg.vector_norm(weight) / torch.linalg.vector_norm(conv.weight))

        yield Stage("100", factor)
