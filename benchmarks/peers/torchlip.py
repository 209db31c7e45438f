"""deel-torchlip: the factor its 1-Lipschitz convolutions divide a kernel by, read as a bound on the kernel's norm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from benchmarks.layers import Layer
from benchmarks.peers.base import Peer, Stage


class Torchlip(Peer):
    r"""``SpectralConv2d`` scales :math:`W / \sigma(W)` by a coefficient ``c`` of the geometry to get a 1-Lipschitz map.

    So :math:`\sigma(W) / c` is what it takes for the norm; the package has no function for the norm of a layer.
    """

    name = "torchlip"
    origin = "deel-torchlip: reshaped kernel (by SVD) over compute_lconv_coef"
    distribution: ClassVar[str | None] = "deel-torchlip"
    claim = "neither"
    cumulative = False
    usual = "exact"

    def refuses(self, layer: Layer) -> str:
        """Apply without groups, as its convolutions do."""
        return "no groups" if layer.groups > 1 else ""

    def stages(self, layer: Layer, weight: Tensor) -> Iterator[Stage]:
        """Yield the value."""
        from deel.torchlip.utils.lconv_norm import compute_lconv_coef

        def bound() -> float:
            shape = (1, layer.channels, layer.size, layer.size)
            steps, kernel = (layer.stride, layer.stride), (layer.kernel, layer.kernel)
            coefficient = float(compute_lconv_coef(kernel, shape, steps, "zeros"))
            return float(torch.linalg.matrix_norm(weight.flatten(1), ord=2)) / coefficient

        yield Stage("exact", bound)
