"""The largest singular value by ARPACK, the convolution and its adjoint given as a linear operator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor
from torch.nn import functional as F

from benchmarks.layers import Layer
from benchmarks.peers.base import Peer, Stage


class Arpack(Peer):
    """Implicitly restarted Lanczos on the Gram operator: a Ritz value, below the norm up to rounding."""

    name = "ARPACK"
    origin = "scipy.sparse.linalg.eigsh on conv2d and its adjoint, float64"
    distribution: ClassVar[str | None] = "scipy"
    claim = "lower"
    cumulative = False
    usual = "1e-02"

    def refuses(self, layer: Layer) -> str:
        """Apply to every convolution."""
        return ""

    def stages(self, layer: Layer, weight: Tensor) -> Iterator[Stage]:
        """Yield smaller and smaller tolerances on the eigenvalue."""
        kernel = weight.double()
        shape = (1, layer.channels, layer.size, layer.size)
        extra = (layer.size + 2 * layer.padding - layer.kernel) % layer.stride

        def gram(vector: np.ndarray) -> np.ndarray:
            x = torch.from_numpy(np.ascontiguousarray(vector).reshape(shape))
            y = F.conv2d(x, kernel, None, layer.stride, layer.padding, 1, layer.groups)
            z = F.conv_transpose2d(y, kernel, None, layer.stride, layer.padding, extra, layer.groups)
            return z.reshape(-1).numpy()

        size = math.prod(shape)
        operator = LinearOperator((size, size), matvec=gram, dtype=np.float64)

        def solve(tolerance: float) -> float:
            start = np.random.default_rng(0).standard_normal(size)
            try:
                values = eigsh(operator, k=1, which="LA", tol=tolerance, v0=start, return_eigenvectors=False)
            except ArpackNoConvergence as error:
                values = error.eigenvalues
            return math.sqrt(float(values[-1]))

        for tolerance in (1e-1, 1e-2, 1e-3, 1e-4):
            yield Stage(f"{tolerance:.0e}", partial(solve, tolerance))
