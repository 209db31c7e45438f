"""The norm of a kernel whose windows do not overlap: that of a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from benchmarks.layers import Layer
from benchmarks.peers.base import Peer, Stage


class MatrixNorm(Peer):
    """Dense singular values; rounding is not accounted for, so the value is near the norm on either side."""

    name = "matrix norm"
    origin = "torch.linalg.matrix_norm(ord=2) of the kernel as a matrix, float64"
    distribution: ClassVar[str | None] = None
    claim = "neither"
    cumulative = False
    usual = "exact"

    def refuses(self, layer: Layer) -> str:
        """Apply where windows do not overlap."""
        return "" if layer.is_matrix else "windows overlap"

    def stages(self, layer: Layer, weight: Tensor) -> Iterator[Stage]:
        """Yield the value."""
        matrices = weight.double().reshape(layer.groups, layer.shape[0] // layer.groups, -1)
        yield Stage("exact", lambda: float(torch.linalg.matrix_norm(matrices, ord=2).max()))
