"""Tensors put side by side, and cut into pieces."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.operators.expression import Expr, LinearOp, linear
from normscope.operators.layout import _first, reshaped
from normscope.operators.registry import Call, expressions, rule

#: Joins along a fixed axis, and the least number of axes their parts are brought to.
_FIXED = {"hstack": (1, 1), "vstack": (0, 2), "row_stack": (0, 2), "dstack": (2, 3), "column_stack": (1, 2)}


@rule("cat", "concat", "concatenate", "stack", *_FIXED)
def concat(call: Call) -> Expr:
    """Put tensors side by side."""
    parts: list[Any] = list(_first(call))  # type: ignore[call-overload]
    shape = call.shape
    name = call.name
    if name in _FIXED:
        axis = min(_FIXED[name][0], len(shape) - 1)
        parts = [_grown(call, p, name) for p in parts]
    else:
        axis = int(call.get("dim", 0)) % len(shape)
    if name == "stack":
        parts = [reshaped(call, p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in parts]
    parts = [p for p in parts if len(p.shape) == len(shape)]  # cat skips empty vectors
    return side_by_side(parts, axis, call)


def _grown(call: Call, part: Any, name: str) -> Any:
    """Return a part of a join along a fixed axis with the axes it needs."""
    probe = torch.empty(tuple(part.shape), device="meta")
    if name == "column_stack":
        grown = probe.unsqueeze(-1) if probe.ndim == 1 else torch.atleast_2d(probe)
    else:
        grown = (torch.atleast_1d, torch.atleast_2d, torch.atleast_3d)[_FIXED[name][1] - 1](probe)
    return reshaped(call, part, tuple(grown.shape))


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
    op = LinearOp(
        kind, apply, constant, {"axis": axis}, lambda a: None if a == axis else a, call.node.owner, call.weight_name
    )
    return linear(op, exprs, shape)


@rule("split", "split_with_sizes", "chunk", "unbind", "tensor_split", "unsafe_split", "unsafe_chunk", "hsplit",
      "vsplit", "dsplit", "unsafe_split_with_sizes", "split_copy", "split_with_sizes_copy", "unbind_copy")  # fmt: skip
def split(call: Call) -> Any:
    """Cut a tensor into pieces along an axis."""
    x = _first(call)
    name = call.name
    dim = {"hsplit": min(1, len(x.shape) - 1), "vsplit": 0, "dsplit": 2}.get(name, int(call.get("dim", 0)))
    dim %= len(x.shape)
    drops = "unbind" in name
    sizes = [1 if drops else value.shape[dim] for value in call.value]
    if sum(sizes) != x.shape[dim] or call.tainted() != [next(iter(call.arguments))]:  # pieces that overlap
        return call.opaque_all("overlapping pieces have no rule")
    pieces, start = [], 0
    for value, size in zip(call.value, sizes, strict=True):
        pieces.append(_piece(call, x, dim, start, size, tuple(value.shape), drops))
        start += size
    return pieces


def _piece(call: Call, x: Expr, dim: int, start: int, size: int, shape: tuple[int, ...], drops: bool) -> Expr:
    def apply(z: Tensor) -> Tensor:
        return z.narrow(dim, start, size).reshape(shape)

    def axes(axis: int) -> int | None:
        return None if axis == dim else axis - (drops and axis > dim)

    return call.linear("contraction", apply, [x], shape=shape, axes=axes, coordinate=True)
