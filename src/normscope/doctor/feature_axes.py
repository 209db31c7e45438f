"""Which axes of a tensor hold features: the outputs of the layer that computed it, followed through views."""

import math
from collections import ChainMap
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.doctor.neighbours import CONVOLUTIONS, LINEAR, RECURRENT
from normscope.graph.capture import Captured
from normscope.graph.interpreter import call, run
from normscope.graph.ir import Node
from normscope.graph.recognise import name_of

#: Operations that rearrange entries, or combine them in the same way for every feature.
_MOVING = (
    "view", "reshape", "_unsafe_view", "permute", "transpose", "t", "flatten", "unflatten", "unsqueeze", "squeeze",
    "expand", "movedim", "contiguous", "clone", "slice", "select", "mean", "sum", "amax", "unbind", "split", "chunk",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "max_pool1d", "max_pool2d", "max_pool2d_with_indices", "constant_pad_nd", "pad", "upsample_nearest2d",
)  # fmt: skip
#: Larger tensors are not followed.
LARGEST = 1 << 24


def feature_axes(captured: Captured) -> dict[str, frozenset[int]]:
    """Return the axes that hold features, by graph node, wherever the layer that computed them is known.

    A convolution has its features along axis 1, a linear or recurrent layer or an embedding along the last axis. A view
    is applied to numbers that differ from feature to feature, and the axes of the result along which they still differ
    hold features. An operation that keeps the shape of its input keeps its axes. The model is run once, on one sample.
    """
    found: dict[str, frozenset[int]] = {}

    def visit(node: Node, value: Any, values: Mapping[str, Any]) -> None:
        if isinstance(value, Tensor) and value.ndim:
            made_by = name_of(captured.graph[node.inputs()[0]]) if node.op == "getitem" else ""
            axes = _axes(node, value, values, found, made_by)
            if axes is not None:
                found[node.name] = axes

    with torch.no_grad():
        run(captured.graph, captured.tensors, captured.at_batch(1), visit)
    return found


def _axes(
    node: Node, value: Tensor, values: Mapping[str, Any], found: Mapping[str, frozenset[int]], made_by: str
) -> frozenset[int] | None:
    """Return the axes of one node; ``made_by`` is the operation that returned it among several results."""
    name = name_of(node)
    if name in CONVOLUTIONS:
        return frozenset({1}) if value.ndim > 2 else None
    if name in LINEAR or (node.op == "getitem" and made_by in RECURRENT):
        return frozenset({value.ndim - 1})
    known = [(source, values[source]) for source in node.inputs() if source in found and source in values]
    if name in ("matmul", "bmm", "scaled_dot_product_attention") and known:
        last = node.inputs()[2 if name == "scaled_dot_product_attention" else 1 : 3]
        axes = next((found[n] for n in last if n in found), None)  # the features of what is averaged keep their axis
        return axes if axes and max(axes) == value.ndim - 1 else None
    same = next((source for source, tensor in known if tensor.shape == value.shape), None)
    if same is not None and name not in _MOVING:
        return found[same]
    if name not in _MOVING and node.op != "getitem":
        return None
    return _carried(node, known, values, found)


def _carried(
    node: Node, known: list[tuple[str, Any]], values: Mapping[str, Any], found: Mapping[str, frozenset[int]]
) -> frozenset[int] | None:
    """Return the feature axes after a view of one tensor."""
    for source, tensor in known:
        if not isinstance(tensor, Tensor) or tensor.numel() > LARGEST:
            continue
        try:
            moved = call(node, ChainMap({source: marked(tensor.shape, found[source])}, dict(values)))
        except (RuntimeError, TypeError, IndexError, KeyError):
            return None
        moved = moved[0] if isinstance(moved, tuple | list) and moved else moved
        return varying(moved) if isinstance(moved, Tensor) else None
    return None


def marked(shape: torch.Size, axes: frozenset[int]) -> Tensor:
    """Return numbers that differ from feature to feature and nowhere else.

    >>> marked(torch.Size((2, 3)), frozenset({1})).tolist()
    [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]
    """
    kept = [n if i in axes else 1 for i, n in enumerate(shape)]
    return torch.arange(1.0, math.prod(kept) + 1).reshape(kept).expand(shape).contiguous()


def varying(x: Tensor) -> frozenset[int]:
    """Return the axes along which a tensor is not constant.

    >>> varying(torch.tensor([[1.0, 2.0], [1.0, 2.0]]))
    frozenset({1})
    """
    return frozenset(a for a in range(x.ndim) if x.shape[a] > 1 and bool((x != x.narrow(a, 0, 1)).any()))


def channel_axis(axes: frozenset[int] | None) -> int | None:
    """Return the axis that holds features, if there is exactly one.

    >>> channel_axis(frozenset({1})), channel_axis(frozenset({1, 3}))
    (1, None)
    """
    return next(iter(axes)) if axes is not None and len(axes) == 1 else None
