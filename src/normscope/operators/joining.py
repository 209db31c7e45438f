"""Concatenation and splitting."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.operators.expression import Expr
from normscope.operators.layout import kept_axes, reshaped
from normscope.operators.registry import Call, expressions, rule

#: Joins along a fixed axis.
_FIXED = {"hstack": 1, "vstack": 0, "row_stack": 0, "dstack": 2, "column_stack": 1}


@rule("cat", "concat", "concatenate", "stack", *_FIXED)
def concat(call: Call) -> Expr:
    """Concatenate or stack tensors."""
    parts, shape, name = list(call.first), call.shape, call.name
    if name in _FIXED:  # each part gets the axes that it would have alone
        axis, join = min(_FIXED[name], len(shape) - 1), getattr(torch, name)
        parts = [reshaped(call, p, join([torch.empty(p.shape, device="meta")]).shape) for p in parts]
    else:
        axis = int(call.get("dim", 0)) % len(shape)
    if name == "stack":
        parts = [reshaped(call, p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in parts]
    parts = [p for p in parts if len(p.shape) == len(shape)]  # cat skips empty vectors
    return side_by_side(parts, axis, call)


def side_by_side(parts: Sequence[Any], axis: int, call: Call) -> Expr:
    """Return the concatenation of expressions and constants along an axis."""
    exprs = expressions(list(parts))
    sizes = [p.shape[axis] for p in parts]
    shape = (*exprs[0].shape[:axis], sum(sizes), *exprs[0].shape[axis + 1 :])
    constant = None
    if len(exprs) < len(parts):
        filled = [p.detach() if isinstance(p, Tensor) else torch.zeros(p.shape) for p in parts]
        constant = torch.cat([z.to(torch.float64) for z in filled], axis)
    gaps = [isinstance(p, Expr) for p in parts]
    shapes = [tuple(p.shape) for p in parts]

    def apply(*tensors: Tensor) -> Tensor:
        supply = iter(tensors)
        filled = [next(supply) if g else tensors[0].new_zeros(s) for g, s in zip(gaps, shapes, strict=True)]
        return torch.cat(filled, axis)

    kind = "concat" if len(exprs) > 1 else "embedding"
    return call.linear(kind, apply, exprs, shape=shape, bias=constant, axes=kept_axes(exprs[0], [axis]), axis=axis)


@rule("split", "split_with_sizes", "chunk", "unbind", "tensor_split", "unsafe_split", "unsafe_chunk", "hsplit",
      "vsplit", "dsplit", "unsafe_split_with_sizes", "split_copy", "split_with_sizes_copy", "unbind_copy")  # fmt: skip
def split(call: Call) -> Any:
    """Split a tensor along an axis."""
    x = call.first
    name = call.name
    dim = {"hsplit": min(1, len(x.shape) - 1), "vsplit": 0, "dsplit": 2}.get(name, int(call.get("dim", 0)))
    dim %= len(x.shape)
    sizes = [1 if "unbind" in name else value.shape[dim] for value in call.value]
    if sum(sizes) != x.shape[dim] or not call.only_first_depends:  # pieces that overlap
        return call.opaque("overlapping pieces have no rule")
    starts = itertools.accumulate(sizes, initial=0)
    return [piece(call, x, dim, start, v.shape) for start, v in zip(starts, call.value, strict=False)]


def piece(call: Call, x: Expr, dim: int, start: int, shape: Sequence[int]) -> Expr:
    """Return the entries of x from a start along an axis, which is dropped if the shape has one axis less."""
    shape, drop = tuple(shape), len(shape) < len(x.shape)
    size = 1 if drop else shape[dim]

    def apply(z: Tensor) -> Tensor:
        return z.narrow(dim, start, size).reshape(shape)

    axes = kept_axes(x, [dim], drop=drop)
    return call.linear("contraction", apply, [x], shape=shape, axes=axes, coordinate=True)
