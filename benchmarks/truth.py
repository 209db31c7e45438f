"""The tightest interval known of a convolution's norm: a long Lanczos run in float64 on torch's own convolution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.layers import Layer
from normscope.linalg.lanczos import lanczos_norm
from normscope.operators.linear_map import LinearMap

#: Chance that the upper end of an interval is wrong.
DELTA = 1e-9


@dataclass(frozen=True)
class Interval:
    """An attained value and an upper bound that holds with probability ``1 - DELTA``."""

    lower: float
    upper: float


def convolution_map(layer: Layer, weight: Tensor) -> LinearMap:
    """Return conv2d with its adjoint, float64."""
    kernel = weight.double()
    out = (layer.size + 2 * layer.padding - layer.kernel) // layer.stride + 1
    extra = (layer.size + 2 * layer.padding - layer.kernel) % layer.stride
    return LinearMap(
        lambda x: F.conv2d(x[None], kernel, None, layer.stride, layer.padding, 1, layer.groups)[0],
        lambda y: F.conv_transpose2d(y[None], kernel, None, layer.stride, layer.padding, extra, layer.groups)[0],
        (layer.channels, layer.size, layer.size),
        (layer.shape[0], out, out),
    )


def true_norm(layer: Layer, weight: Tensor, *, steps: int) -> Interval:
    """Return the interval: singular values of a matrix where windows do not overlap, else a long Lanczos run."""
    if layer.is_matrix:
        matrices = weight.double().reshape(layer.groups, layer.shape[0] // layer.groups, -1)
        norm = float(torch.linalg.matrix_norm(matrices, ord=2).max())
        return Interval(norm * (1 - 1e-13), norm * (1 + 1e-13))
    # The start differs from those of Normscope, so that the two runs are independent.
    run = lanczos_norm(
        convolution_map(layer, weight), tolerance=1e-6, delta=DELTA, max_steps=steps, seed=12345, reorthogonalise=False
    )
    return Interval(run.lower, run.probable)
