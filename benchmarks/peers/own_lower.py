"""Normscope's own attained value alone: the same work as power iteration and ARPACK do, a value from below."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from benchmarks.layers import Layer
from benchmarks.peers.base import Peer, Stage
from normscope.linalg.convolution_geometry import convolution_axes, zero_padded_map
from normscope.linalg.lanczos import attained_norm, lanczos_norm
from normscope.operators.linear_map import LinearMap


class OwnLower(Peer):
    """Lanczos in float32 without an upper side; the quotient at its vector is recomputed in float64."""

    name = "normscope lower"
    origin = "normscope's Lanczos from below alone, float32, the value recomputed in float64"
    distribution: ClassVar[str | None] = None
    claim = "lower"
    cumulative = False
    usual = "48"

    def refuses(self, layer: Layer) -> str:
        """Apply to every convolution but one that is several matrices, whose largest norm is another thing."""
        return "several matrices" if layer.is_matrix and layer.groups > 1 else ""

    def stages(self, layer: Layer, weight: Tensor) -> Iterator[Stage]:
        """Yield more and more steps, each time from the start."""
        sides = [layer.size] * 2, [layer.kernel] * 2, [layer.stride] * 2, [layer.padding] * 2, [1, 1]
        axes = convolution_axes(*sides)

        def acting(dtype: torch.dtype) -> LinearMap:
            if layer.is_matrix:  # windows that do not overlap: the kernel as a matrix has the norm
                return LinearMap.from_matrix(weight.flatten(1).to(dtype))
            return zero_padded_map(weight.to(dtype), axes, layer.groups)

        def value(steps: int) -> float:
            fast = acting(torch.float32)
            small = fast if fast.domain_dimension <= fast.range_dimension else fast.transpose
            run = lanczos_norm(small, tolerance=0.0, max_steps=steps, reorthogonalise=False)
            exact = acting(torch.float64)
            wide = exact if exact.domain_dimension <= exact.range_dimension else exact.transpose
            return attained_norm(wide, run.vector.to(torch.float64).reshape(wide.domain_shape))

        for steps in (8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 200):
            yield Stage(str(steps), partial(value, steps))
