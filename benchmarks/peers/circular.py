"""The norm with circular padding, exactly: the symbol at every frequency of the map, and its singular values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from benchmarks.layers import Layer
from benchmarks.peers.base import Peer, Stage


def symbols(layer: Layer, weight: Tensor) -> Tensor:
    """Return the symbol of the kernel on the frequencies of the map, ``(groups, frequencies, Cout/g, Cin/g)``.

    Conjugate frequencies have the same singular values, so half of them are enough.
    """
    transform = torch.fft.rfft2(weight, s=(layer.size, layer.size))
    grouped = transform.reshape(layer.groups, -1, *transform.shape[1:])
    return grouped.flatten(3).permute(0, 3, 1, 2)


class Circular(Peer):
    """Exact for circular padding; for zero padding it is close, and no bound by itself."""

    name = "circular"
    origin = "FFT and SVD on the circular map, float32 (method of Sedghi et al. 2019, our code)"
    distribution: ClassVar[str | None] = None
    claim = "neither"
    cumulative = False
    usual = "exact"

    def refuses(self, layer: Layer) -> str:
        """Apply at stride 1."""
        return "stride 1 only" if layer.stride > 1 else ""

    def stages(self, layer: Layer, weight: Tensor) -> Iterator[Stage]:
        """Yield the value."""
        yield Stage("exact", lambda: float(torch.linalg.svdvals(symbols(layer, weight))[..., 0].max()))
