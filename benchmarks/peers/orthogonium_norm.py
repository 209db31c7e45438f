"""orthogonium: Gram iteration on the kernel for zero padding."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from benchmarks.layers import Layer
from benchmarks.peers.base import Peer, Stage


class Orthogonium(Peer):
    """``get_conv_sv``: an upper bound at stride 1; groups are multiplied, which is meant for its own layers only."""

    name = "orthogonium"
    origin = "orthogonium get_conv_sv (Delattre et al. 2024), float32; its docstring limits it to its own layers"
    distribution: ClassVar[str | None] = "orthogonium"
    claim = "upper"
    cumulative = False
    usual = "3"

    def refuses(self, layer: Layer) -> str:
        """Apply to every convolution, as it does itself."""
        return ""

    def stages(self, layer: Layer, weight: Tensor) -> Iterator[Stage]:
        """Yield 2, 3, ... iterations; the kernel doubles with each."""
        from orthogonium.layers.conv.singular_values import get_conv_sv

        conv = layer.module(weight)

        def norm(count: int) -> float:
            with torch.no_grad():
                return float(get_conv_sv(conv, count, return_stab_rank=False, imsize=layer.size))

        for count in range(2, 12):
            yield Stage(str(count), partial(norm, count))
