"""Pooling and interpolation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from normscope.core.value import log_of
from normscope.operators.convolution import _tuple
from normscope.operators.expression import Expr
from normscope.operators.layout import _bound, _first
from normscope.operators.nonlinear import Context, Lip, Nonlinear, Range
from normscope.operators.registry import Call, rule


def _channelwise(call: Call, x: Expr, kind: str, dims: int) -> Expr:
    """Return a linear operation on the last ``dims`` axes."""
    lead = len(x.shape) - dims
    return call.linear(kind, _bound(call), [x], axes=lambda a: a if a < lead else None)


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
      "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")  # fmt: skip
def average_pool(call: Call) -> Expr:
    """Average over windows."""
    dims = int(call.node.op.split("d.")[0][-1])
    kind = "generic" if int(call.get("divisor_override", 1)) < 0 else "nonnegative"
    return _channelwise(call, _first(call), kind, dims)


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
      "_upsample_nearest_exact2d", "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")  # fmt: skip
def interpolate(call: Call) -> Expr:
    """Interpolate with weights that are not negative."""
    x = _first(call)
    return _channelwise(call, x, "nonnegative", len(x.shape) - 2)


@rule("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def interpolate_cubic(call: Call) -> Expr:
    """Interpolate with weights of either sign."""
    return _channelwise(call, _first(call), "generic", 2)


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sample(call: Call) -> Expr:
    """Sample at fixed places: linear; at places that depend on the input it has no rule."""
    if call.tainted() != [next(iter(call.arguments))] or int(call.get("interpolation_mode", 0)) == 2:
        return call.opaque("grid sampling at input-dependent places, or bicubic: no rule")
    return call.linear("nonnegative", _bound(call), [_first(call)])


class MaxPool(Nonlinear):
    """Largest entry of each window: ``sqrt(r)``-Lipschitz if an entry lies in at most r windows."""

    def __init__(self, x: Expr, overlap: int) -> None:
        self.inputs, self.overlap = (x,), overlap

    def constant(self, context: Context) -> Lip:
        """Return the root of the overlap times the constant of the input."""
        return context.lipschitz(self.inputs[0]).scaled(log_of(math.sqrt(self.overlap)))

    def image(self, context: Context) -> Range:
        """Return the range of the input; every entry is taken at most as often as windows overlap."""
        inside = context.range(self.inputs[0])
        return Range(inside.low, inside.high, norm=inside.norm * math.sqrt(self.overlap))


def window_overlap(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Return the largest number of windows one entry of an axis lies in.

    >>> window_overlap(size=8, out=4, kernel=3, stride=2, padding=1, dilation=1)
    2
    """
    counts = [0] * size
    for window in range(out):
        for tap in range(kernel):
            place = window * stride - padding + tap * dilation
            if 0 <= place < size:
                counts[place] += 1
    return max(counts)


def adaptive_overlap(size: int, out: int) -> int:
    """Return the largest number of adaptive windows one entry of an axis lies in."""
    counts = [0] * size
    for window in range(out):
        for place in range(window * size // out, -(-(window + 1) * size // out)):
            counts[place] += 1
    return max(counts)


@rule("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices",
      "max_pool1d_with_indices")  # fmt: skip
def max_pool(call: Call) -> Any:
    """Take the largest entry of each window."""
    x = _first(call)
    dims = int(call.node.op.split("max_pool")[1][0])
    kernel = _tuple(call["kernel_size"], dims)
    stride = _tuple(call.get("stride") or kernel, dims)
    padding, dilation = _tuple(call.get("padding", 0), dims), _tuple(call.get("dilation", 1), dims)
    sizes, outs = x.shape[-dims:], call.shape[-dims:]
    overlap = math.prod(
        window_overlap(*axis) for axis in zip(sizes, outs, kernel, stride, padding, dilation, strict=True)
    )
    return _pooled(call, x, overlap)


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(call: Call) -> Any:
    """Take the largest entry of each adaptive window."""
    x = _first(call)
    dims = int(call.node.op.split("max_pool")[1][0])
    sizes: Sequence[int] = x.shape[-dims:]
    overlap = math.prod(adaptive_overlap(s, o) for s, o in zip(sizes, call.shape[-dims:], strict=True))
    return _pooled(call, x, overlap)


def _pooled(call: Call, x: Expr, overlap: int) -> Any:
    """Return the atom, beside the indices if the operation gives them."""
    atom = call.atom(MaxPool(x, overlap), call.shape)
    if isinstance(call.value, tuple | list):
        return [atom, call.opaque("the place of a maximum is discontinuous", known=True)]
    return atom
