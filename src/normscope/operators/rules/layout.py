"""Operations that move or copy entries: reshapes, permutations, slices, padding, concatenation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.graph.interpreter import literals
from normscope.operators.expression import Expr, LinearOp, linear
from normscope.operators.registry import Call, expressions, rule

aten = torch.ops.aten


def _first(call: Call) -> Expr:
    """Return the first argument of an operation."""
    return next(iter(call.arguments.values()))


@rule(
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as",
    "_reshape_alias", "ravel",
)  # fmt: skip
def reshape(call: Call) -> Expr:
    """Keep the entries in row-major order under another shape."""
    shape = call.shape
    return call.linear("isometry", lambda x: x.reshape(shape), [_first(call)], reshape=True)


@rule(
    "contiguous", "clone", "alias", "detach", "lift_fresh_copy", "lift_fresh", "lift", "dropout", "feature_dropout",
    "alpha_dropout", "feature_alpha_dropout", "native_dropout", "type_as", "positive", "_conj", "resolve_conj",
    "identity", "bernoulli", "wait_tensor",
)  # fmt: skip
def same(call: Call) -> Expr:
    """Leave the tensor as it is (dropout: in evaluation)."""
    active = "dropout" in call.node.op and bool(call.get("train", False)) and float(call.get("p", 0.0)) > 0
    if active or "bernoulli" in call.node.op:
        return call.opaque("random in this mode: its constant depends on the draw")
    return _first(call)


@rule("to", "_to_copy", "float", "double", "half", "bfloat16")
def cast(call: Call) -> Expr:
    """Leave real values as they are; a cast to integers is a step function."""
    first = call.value if isinstance(call.value, Tensor) else call.value[0]
    if not first.dtype.is_floating_point:
        return call.opaque(f"a cast to {first.dtype} is discontinuous", known=True)
    return _first(call)


def permutation(call: Call, order: Sequence[int]) -> Expr:
    """Permute axes: output axis i is input axis ``order[i]``."""
    order = list(order)
    return call.linear("isometry", lambda x: x.permute(order), [_first(call)], axes=order.index)


@rule("permute")
def permute(call: Call) -> Expr:
    """Permute axes."""
    x = _first(call)
    return permutation(call, [d % len(x.shape) for d in call["dims"]])


@rule("transpose", "swapaxes")
def transpose(call: Call) -> Expr:
    """Exchange two axes."""
    rank = len(_first(call).shape)
    dims = [v % rank for k, v in call.arguments.items() if isinstance(v, int) and not isinstance(v, bool)][:2]
    order = list(range(rank))
    order[dims[0]], order[dims[1]] = dims[1], dims[0]
    return permutation(call, order)


@rule("t", "numpy_T", "mT", "matrix_H", "adjoint")
def transposed(call: Call) -> Expr:
    """Exchange the last two axes (``T``: reverse all)."""
    order = list(range(len(_first(call).shape)))
    if "numpy_T" in call.node.op:
        order.reverse()
    elif len(order) > 1:
        order[-2:] = order[:-3:-1]
    return permutation(call, order)


@rule("movedim")
def movedim(call: Call) -> Expr:
    """Move axes."""
    rank = len(_first(call).shape)
    order = torch.movedim(torch.empty((0,) * rank), call["source"], call["destination"]).ndim
    names = torch.arange(rank)
    moved = torch.movedim(torch.zeros([int(i) + 2 for i in names]), call["source"], call["destination"]).shape
    return permutation(call, [s - 2 for s in moved][:order])


def _kept(x: Expr, dims: Sequence[int]) -> Callable[[int], int | None]:
    """Return the axis map of an operation that acts along ``dims`` only and keeps the rank."""
    acts = {d % len(x.shape) for d in dims}
    return lambda axis: None if axis in acts else axis


@rule("roll", "flip", "fliplr", "flipud")
def rearranged(call: Call) -> Expr:
    """Permute entries along some axes."""
    dims = call.get("dims", [])
    return call.linear("isometry", _bound(call), [_first(call)], axes=_kept(_first(call), dims) if dims else None)


@rule("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", "rot90")
def shuffled(call: Call) -> Expr:
    """Permute entries between channels and space."""
    return call.linear("isometry", _bound(call), [_first(call)])


def _bound(call: Call) -> Callable[..., Tensor]:
    """Return the operation as a function of its one tensor argument, all others fixed."""
    from normscope.graph.interpreter import resolve

    function = resolve(call.node.op)
    tainted = call.tainted()[0]
    rest = {k: literals(v) for k, v in call.arguments.items() if k != tainted}

    def apply(x: Tensor) -> Tensor:
        constants = {
            k: v.to(x.dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in rest.items()
        }
        return _call_named(function, tainted, x, constants)

    return apply


def _call_named(function: Any, name: str, x: Tensor, rest: dict[str, Any]) -> Tensor:
    """Call an operation by argument names, positional ones first as its schema has them."""
    arguments = function._schema.arguments
    args = [x if a.name == name else rest.get(a.name) for a in arguments if not a.kwarg_only]
    kwargs = {a.name: rest[a.name] for a in arguments if a.kwarg_only and rest.get(a.name) is not None}
    return function(*args, **kwargs)


@rule("slice", "narrow", "index_select")
def slices(call: Call) -> Expr:
    """Take some entries along one axis."""
    x = _first(call)
    kind = "nonnegative" if "index_select" in call.node.op else "contraction"
    if call.tainted() != [next(iter(call.arguments))]:
        return call.opaque("an index that depends on the input is discontinuous", known=True)
    return call.linear(kind, _bound(call), [x], axes=_kept(x, [call.get("dim", 0)]), coordinate=True)


@rule("select")
def select(call: Call) -> Expr:
    """Take one index along one axis."""
    x = _first(call)
    dim = call["dim"] % len(x.shape)
    return call.linear(
        "contraction",
        _bound(call),
        [x],
        axes=lambda axis: None if axis == dim else axis - (axis > dim),
        coordinate=True,
    )


@rule("gather", "take", "take_along_dim", "index", "_unsafe_index", "index.Tensor", "diagonal", "unfold", "im2col",
      "masked_select")  # fmt: skip
def copies(call: Call) -> Expr:
    """Copy entries to other places, some perhaps several times."""
    if call.tainted() != [next(iter(call.arguments))]:
        return call.opaque("an index that depends on the input is discontinuous", known=True)
    function = _bound(call)
    return call.linear("nonnegative", function, [_first(call)], coordinate=True)


@rule("expand", "expand_as", "repeat", "tile", "repeat_interleave", "broadcast_to")
def repeats(call: Call) -> Expr:
    """Repeat entries."""
    x, shape = _first(call), call.shape
    if "expand" in call.node.op or "broadcast" in call.node.op:
        return broadcast(x, shape, call)
    return call.linear("nonnegative", _bound(call), [x], coordinate=True)


def broadcast(x: Expr, shape: Sequence[int], call: Call) -> Expr:
    """Return the expression broadcast to a shape."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    lead = len(shape) - len(x.shape)
    padded = (1,) * lead + x.shape

    def axes(axis: int) -> int | None:
        return axis + lead if padded[axis + lead] == shape[axis + lead] else None

    op = LinearOp(
        "nonnegative", lambda z: z.expand(shape), None, {"coordinate": True}, axes, call.node.owner, call.weight_name
    )
    return linear(op, [x], shape)


@rule("constant_pad_nd", "pad", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
      "replication_pad2d", "replication_pad3d")  # fmt: skip
def pad(call: Call) -> Expr:
    """Extend a tensor by zeros, a constant, or copies of its entries."""
    x = _first(call)
    mode = call.get("mode", "constant")
    if "reflection" in call.node.op:
        mode = "reflect"
    elif "replication" in call.node.op:
        mode = "replicate"
    amounts = list(call.get("pad", call.get("padding")))
    dims = range(len(x.shape) - len(amounts) // 2, len(x.shape))
    bias = None
    extra: dict[str, Any] = {}
    if mode == "constant":
        value = float(call.get("value", 0.0))
        if value:
            bias = F.pad(torch.zeros(x.shape), amounts, value=value)
        kind = "contraction"  # negative amounts crop
    else:
        kind = "nonnegative"
        pairs = [(amounts[2 * i], amounts[2 * i + 1]) for i in range(len(amounts) // 2)][::-1]
        extra["pad_mode"] = (mode, pairs, list(x.shape[-len(pairs) :]))
    return call.linear(
        kind,
        lambda z: F.pad(z, amounts, mode=mode),
        [x],
        bias=bias,
        axes=_kept(x, list(dims)),
        coordinate=True,
        **extra,
    )


@rule("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack")
def concat(call: Call) -> Expr:
    """Put tensors side by side."""
    parts: list[Any] = list(next(iter(call.arguments.values())))
    shape = call.shape
    name = call.node.op.split(".")[1]
    if name in ("hstack", "vstack", "dstack"):
        axis = {"hstack": 1 if len(shape) > 1 else 0, "vstack": 0, "dstack": 2}[name]
    else:
        axis = int(call.get("dim", 0)) % len(shape)
    if name == "stack":
        parts = [_unsqueezed(p, axis, call) for p in parts]
    parts = [p for p in parts if isinstance(p, Expr) or p.ndim == len(shape)]  # cat skips legacy empty tensors
    return side_by_side(parts, axis, call)


def side_by_side(parts: Sequence[Any], axis: int, call: Call) -> Expr:
    """Return the concatenation of expressions and constants along an axis."""
    exprs = expressions(list(parts))
    sizes = [p.shape[axis] for p in parts]
    total = sum(sizes)
    shape = (*exprs[0].shape[:axis], total, *exprs[0].shape[axis + 1 :])
    constant = None
    if len(exprs) < len(parts):
        zeros = [p if isinstance(p, Tensor) else torch.zeros(p.shape) for p in parts]
        common = torch.promote_types(torch.float32, torch.float32)
        constant = torch.cat([z.to(common) for z in zeros], axis)
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


def _unsqueezed(part: Any, axis: int, call: Call) -> Any:
    """Return a part of a stack with its new axis."""
    if isinstance(part, Tensor):
        return part.unsqueeze(axis)
    shape = (*part.shape[:axis], 1, *part.shape[axis:])
    op = LinearOp("isometry", lambda z: z.reshape(shape), None, {"reshape": True}, None, call.node.owner)
    return linear(op, [part], shape)


@rule("split", "split_with_sizes", "chunk", "unbind", "tensor_split", "unsafe_split", "unsafe_chunk")
def split(call: Call) -> list[Expr]:
    """Cut a tensor into pieces along an axis."""
    x = _first(call)
    dim = int(call.get("dim", 0)) % len(x.shape)
    drops = "unbind" in call.node.op
    pieces, start = [], 0
    for value in call.value:
        size = 1 if drops else value.shape[dim]
        pieces.append(_piece(call, x, dim, start, size, tuple(value.shape), drops))
        start += size
    return pieces


def _piece(call: Call, x: Expr, dim: int, start: int, size: int, shape: tuple[int, ...], drops: bool) -> Expr:
    """Return one piece of a split."""

    def apply(z: Tensor) -> Tensor:
        return z.narrow(dim, start, size).reshape(shape)

    def axes(axis: int) -> int | None:
        return None if axis == dim else axis - (drops and axis > dim)

    return call.linear("contraction", apply, [x], shape=shape, axes=axes, coordinate=True)


@rule("tril", "triu")
def triangle(call: Call) -> Expr:
    """Keep a triangle of the last two axes."""
    x = _first(call)
    ones = torch.ones(x.shape[-2:], dtype=torch.float64)
    diagonal = int(call.get("diagonal", 0))
    mask = ones.tril(diagonal) if "tril" in call.node.op else ones.triu(diagonal)
    return scaled(call, x, mask)


def scaled(call: Call, x: Expr, scale: Tensor, bias: Tensor | None = None) -> Expr:
    """Multiply entrywise by constants that broadcast to the output shape."""
    shape = call.shape
    x = broadcast(x, shape, call)
    scale = scale.detach()

    def apply(z: Tensor) -> Tensor:
        return z * scale.to(z)

    return call.linear("diagonal", apply, [x], bias=bias, scale=scale, shape=shape)


@rule("masked_fill", "where", "masked_fill.Scalar")
def masked(call: Call) -> Expr:
    """Choose entrywise by a mask that does not depend on the input."""
    if "where" in call.node.op:
        keep, yes, no = call["condition"], call["self"], call["other"]
    else:
        keep, yes, no = call["mask"], call["value"], call["self"]
    if isinstance(keep, Expr):
        return call.opaque("a choice by a comparison of input-dependent values may be discontinuous")
    keep = keep.to(torch.bool)
    terms = []
    bias = torch.zeros((), dtype=torch.float64)
    for mask, part in ((keep, yes), (~keep, no)):
        if isinstance(part, Expr):
            terms.append(scaled(call, part, mask.to(torch.float64)))
        else:
            value = torch.as_tensor(part, dtype=torch.float64)
            bias = torch.where(mask, value, bias)
    return add_terms(call, terms, bias if bool((bias != 0).any()) else None)


def add_terms(call: Call, terms: Sequence[Expr], bias: Tensor | None = None) -> Expr:
    """Return the sum of expressions of one shape, plus a constant."""
    if len(terms) == 1 and bias is None:
        return terms[0]
    if len(terms) == 1:
        return call.linear("isometry", lambda z: z, list(terms), bias=bias, reshape=True)

    def apply(*tensors: Tensor) -> Tensor:
        total = tensors[0]
        for tensor in tensors[1:]:
            total = total + tensor
        return total

    return call.linear("sum", apply, list(terms), bias=bias)


@rule("slice_scatter", "select_scatter")
def scatter(call: Call) -> Expr:
    """Overwrite a part of a tensor with another."""
    base, source = call["self"], call["src"]
    shape, name = call.shape, call.node.op.split(".")[1]
    dim = int(call.get("dim", 0))
    if name == "select_scatter":
        index: dict[str, Any] = {"dim": dim, "index": call["index"]}
    else:
        index = {"dim": dim, "start": call.get("start"), "end": call.get("end"), "step": call.get("step", 1)}
    function = getattr(aten, name).default
    inside = tuple(source.shape)
    terms, bias = [], torch.zeros(shape, dtype=torch.float64)
    if isinstance(base, Expr):
        mask = function(torch.ones(shape, dtype=torch.float64), torch.zeros(inside, dtype=torch.float64), **index)
        terms.append(scaled(call, base, mask))
    else:
        bias = function(base.to(torch.float64).expand(shape), torch.zeros(inside, dtype=torch.float64), **index)
    if isinstance(source, Expr):
        terms.append(call.linear("embedding", lambda z: function(z.new_zeros(shape), z, **index), [source]))
    else:
        bias = bias + function(torch.zeros(shape, dtype=torch.float64), source.to(torch.float64), **index)
    return add_terms(call, terms, bias if bool((bias != 0).any()) else None)


@rule("copy")
def copy(call: Call) -> Any:
    """Return the source in the shape of the target."""
    source = call["src"]
    return broadcast(source, call.shape, call) if isinstance(source, Expr) else call.value


@rule("fill")
def fill(call: Call) -> Any:
    """Return a constant: nothing of the input is left."""
    return call.value if not isinstance(call["value"], Expr) else call.opaque("fill with an input-dependent value")


@rule("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
      "zeros", "ones", "full", "empty", "sym_size", "size", "arange", "shape")  # fmt: skip
def shape_only(call: Call) -> Any:
    """Return the value itself: it depends on the shape of the input alone."""
    return call.value


def numel(shape: Sequence[int]) -> int:
    """Return the number of entries of a shape."""
    return math.prod(shape)


def repeats_heads(call: Call, x: Expr, heads: int) -> Expr:
    """Repeat each key or value head for the query heads that share it (grouped-query attention)."""
    times = heads // x.shape[-3]
    shape = (*x.shape[:-3], heads, *x.shape[-2:])
    where = len(x.shape) - 3
    op = LinearOp(
        "nonnegative",
        lambda z: z.repeat_interleave(times, -3),
        None,
        {"coordinate": True},
        lambda a: None if a == where else a,
        call.node.owner,
    )
    return linear(op, [x], shape)
