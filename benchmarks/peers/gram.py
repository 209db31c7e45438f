"""Gram iteration on the circular symbol: an upper bound for circular padding from matrix products alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from benchmarks.layers import Layer
from benchmarks.peers.base import Peer, Stage
from benchmarks.peers.circular import symbols


class Gram(Peer):
    r"""At every frequency :math:`\sigma \le \|(G^* G)^{2^{t-1}}\|_F^{2^{-t}}`, each product rescaled to stay finite."""

    name = "Gram circular"
    origin = "Gram iteration on the circular symbol, float32 (method of Delattre et al. 2023, our code)"
    distribution: ClassVar[str | None] = None
    claim = "neither"
    cumulative = True
    usual = "5"

    def refuses(self, layer: Layer) -> str:
        """Apply at stride 1."""
        return "stride 1 only" if layer.stride > 1 else ""

    def stages(self, layer: Layer, weight: Tensor) -> Iterator[Stage]:
        """Yield one squaring more at a time."""
        matrix, log_scale, power = torch.empty(0), torch.zeros(1, dtype=torch.float64), 1

        def square() -> float:
            nonlocal matrix, log_scale, power
            if power == 1:
                matrix = symbols(layer, weight)
                log_scale = torch.zeros(matrix.shape[:-2], dtype=torch.float64)
            length = torch.linalg.matrix_norm(matrix, keepdim=True)
            matrix = matrix / length
            log_scale = 2.0 * (log_scale + length[..., 0, 0].double().log())
            matrix = matrix.mH @ matrix
            power *= 2
            logs = (torch.linalg.matrix_norm(matrix).double().log() + log_scale) / power
            return math.exp(float(logs.max()))

        for step in range(1, 16):
            yield Stage(str(step), square)
