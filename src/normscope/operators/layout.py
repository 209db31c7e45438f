"""Operations that do not change entries: reshapes, permutations, repetition; and sums and factors of expressions."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.graph.interpreter import as_floating, literals, resolve
from normscope.operators.expression import Expr, LinearOp, linear
from normscope.operators.registry import Call, rule


def _first(call: Call) -> Expr:
    return next(iter(call.arguments.values()))


def only_first(call: Call) -> bool:
    """Return whether the first argument, and no other, depends on the network input."""
    return call.tainted() == [next(iter(call.arguments))]


@rule(
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as",
    "_reshape_alias", "ravel", "atleast_1d", "atleast_2d", "atleast_3d", "view_copy", "unsqueeze_copy", "squeeze_copy",
)  # fmt: skip
def reshape(call: Call) -> Expr:
    """Keep the entries in row-major order under another shape."""
    if "dtype" in call.node.op:
        return call.opaque("the bits of a tensor reinterpreted as another type")
    return reshaped(call, _first(call), call.shape)


def reshaped(call: Call, x: Any, shape: Sequence[int]) -> Any:
    """Return an expression or a constant under another shape."""
    shape = tuple(shape)
    if isinstance(x, Tensor):
        return x.reshape(shape)
    op = LinearOp("isometry", lambda z: z.reshape(shape), None, {"reshape": True}, None, call.node.owner)
    return x if x.shape == shape else linear(op, [x], shape)


@rule(
    "contiguous", "clone", "alias", "detach", "lift_fresh_copy", "lift_fresh", "lift", "dropout", "feature_dropout",
    "alpha_dropout", "feature_alpha_dropout", "native_dropout", "type_as", "positive", "_conj", "resolve_conj",
    "identity", "bernoulli", "wait_tensor", "conj", "resolve_neg", "real", "detach_copy", "alias_copy",
)  # fmt: skip
def same(call: Call) -> Any:
    """Leave the tensor as it is (dropout: in evaluation)."""
    training = call.get("train", False) in (True, None)  # a native dropout that is told nothing drops
    active = "dropout" in call.node.op and training and float(call.get("p", 0.5)) > 0
    if active or "bernoulli" in call.node.op:
        reason = "random in this mode: its constant depends on the draw"
        return call.with_rest(call.opaque(reason), reason)
    if not isinstance(_first(call), Expr):
        return call.value
    return call.with_rest(_first(call), "the mask of a dropout")


@rule("to", "_to_copy", "float", "double", "half", "bfloat16", "_cast_Float", "_cast_Double", "_cast_Half")
def cast(call: Call) -> Expr:
    """Leave real values as they are; a cast to integers is a step function."""
    first = call.value if isinstance(call.value, Tensor) else call.value[0]
    named = getattr(torch, call.node.dtype, first.dtype)  # the value itself is computed wider
    if not named.is_floating_point or named.itemsize < 2:
        return call.opaque(f"a cast to {str(named)[6:]} is discontinuous", known=True)
    return _first(call)


def permuted(call: Call, x: Any, order: Sequence[int]) -> Any:
    """Return an expression or a constant with its axes permuted: output axis i is input axis ``order[i]``."""
    order = list(order)
    if order == sorted(order):
        return x
    if isinstance(x, Tensor):
        return x.permute(order)
    shape = tuple(x.shape[i] for i in order)
    return call.linear("isometry", lambda z: z.permute(order), [x], shape=shape, axes=order.index)


@rule("permute", "permute_copy")
def permute(call: Call) -> Expr:
    """Permute axes."""
    x = _first(call)
    return permuted(call, x, [d % len(x.shape) for d in call["dims"]])


@rule("transpose", "swapaxes", "swapdims", "transpose_copy")
def transpose(call: Call) -> Expr:
    """Exchange two axes."""
    rank = len(_first(call).shape)
    if rank == 0:
        return _first(call)
    dims = [v % rank for k, v in call.arguments.items() if isinstance(v, int) and not isinstance(v, bool)][:2]
    order = list(range(rank))
    order[dims[0]], order[dims[1]] = dims[1], dims[0]
    return permuted(call, _first(call), order)


@rule("t", "numpy_T", "mT", "matrix_H", "adjoint", "mH", "t_copy")
def transposed(call: Call) -> Expr:
    """Exchange the last two axes (``T``: reverse all)."""
    order = list(range(len(_first(call).shape)))
    if "numpy_T" in call.node.op:
        order.reverse()
    elif len(order) > 1:
        order[-2:] = order[:-3:-1]
    return permuted(call, _first(call), order)


@rule("movedim", "moveaxis")
def movedim(call: Call) -> Expr:
    """Move axes."""
    rank = len(_first(call).shape)
    numbered = torch.empty([i + 2 for i in range(rank)], device="meta")
    moved = torch.movedim(numbered, call["source"], call["destination"]).shape
    return permuted(call, _first(call), [s - 2 for s in moved])


def _kept(x: Expr, dims: Sequence[int]) -> Callable[[int], int | None]:
    """Return the axis map of an operation that acts along ``dims`` only and keeps the rank."""
    acts = {d % len(x.shape) for d in dims}
    return lambda axis: None if axis in acts else axis


@rule("roll", "flip", "fliplr", "flipud", "fft_fftshift", "fft_ifftshift")
def rearranged(call: Call) -> Expr:
    """Permute entries along some axes."""
    dims = call.get("dims", [])
    return call.linear("isometry", _bound(call), [_first(call)], axes=_kept(_first(call), dims) if dims else None)


@rule("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", "rot90", "col2im")
def shuffled(call: Call) -> Expr:
    """Permute entries between channels and space, or add up overlapping windows."""
    return call.linear("nonnegative" if call.name == "col2im" else "isometry", _bound(call), [_first(call)])


#: Arguments that change what torch calls a gradient and not what is computed: with them it is no adjoint.
_OF_GRADIENTS = ("padding_idx", "scale_grad_by_freq", "sparse", "sparse_grad")


def _bound(call: Call) -> Callable[..., Tensor]:
    """Return the operation as a function of its one tensor argument, all others fixed."""
    function = resolve(call.node.op)
    tainted = call.tainted()[0]
    rest = {k: literals(v) for k, v in call.arguments.items() if k not in (tainted, *_OF_GRADIENTS)}

    def apply(x: Tensor) -> Tensor:
        constants = {k: as_floating(v, x.dtype) for k, v in rest.items()}
        return _call_named(function, tainted, x, constants)

    return apply


def _call_named(function: Any, name: str, x: Any, rest: dict[str, Any]) -> Tensor:
    """Call an operation by argument names, positional ones first as its schema has them."""
    arguments = function._schema.arguments
    args = [x if a.name == name else rest.get(a.name, a.default_value) for a in arguments if not a.kwarg_only]
    kwargs = {a.name: rest[a.name] for a in arguments if a.kwarg_only and rest.get(a.name) is not None}
    return function(*args, **kwargs)


@rule("expand", "expand_as", "repeat", "tile", "repeat_interleave", "broadcast_to", "expand_copy")
def repeats(call: Call) -> Expr:
    """Repeat entries."""
    x, shape = _first(call), call.shape
    if not isinstance(x, Expr):
        return call.value
    if "expand" in call.node.op or "broadcast" in call.node.op:
        return broadcast(x, shape, call)
    if not only_first(call):
        return call.opaque("the number of repetitions depends on the input", known=True)
    return call.linear("nonnegative", _bound(call), [x], coordinate=True)


def broadcast(x: Any, shape: Sequence[int], call: Call) -> Any:
    """Return an expression or a constant broadcast to a shape."""
    shape = tuple(shape)
    if isinstance(x, Tensor):
        return x.expand(shape)
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


@rule("broadcast_tensors", "meshgrid")
def broadcast_all(call: Call) -> list[Any]:
    """Broadcast several tensors to one shape; a grid repeats each along the axes of the others."""
    parts = list(_first(call))  # type: ignore[call-overload]
    found: list[Any] = []
    for i, (part, value) in enumerate(zip(parts, call.value, strict=True)):
        if not isinstance(part, Expr):
            found.append(value)
        elif "meshgrid" in call.node.op:
            axis = 1 - i if call.get("indexing", "ij") == "xy" and i < 2 and len(parts) > 1 else i
            side = tuple(part.numel if k == axis else 1 for k in range(len(parts)))
            found.append(broadcast(reshaped(call, part, side), value.shape, call))
        else:
            found.append(broadcast(part, value.shape, call))
    return found


def scaled(call: Call, x: Expr, scale: Tensor, bias: Tensor | None = None) -> Expr:
    """Multiply entrywise by constants that broadcast to the output shape."""
    shape = call.shape
    x = broadcast(x, shape, call)
    scale = scale.detach()
    if not bool(torch.isfinite(scale).all()):
        return call.opaque("a factor is infinite or not a number", known=True)

    def apply(z: Tensor) -> Tensor:
        return z * scale.to(z)

    return call.linear("diagonal", apply, [x], bias=bias, scale=scale, shape=shape)


def of_norm(call: Call, apply: Callable[..., Tensor], x: Expr, norm: float, shape: Sequence[int]) -> Expr:
    """Return a linear map of which a bound on the norm is known: a contraction, then a factor."""
    shape = tuple(shape)
    scale = torch.tensor(norm, dtype=torch.float64)
    inner = call.linear("contraction", lambda z: apply(z) / norm, [x], shape=shape)
    return call.linear("diagonal", lambda z: z * norm, [inner], scale=scale, shape=shape)


def add_terms(call: Call, terms: Sequence[Expr], bias: Tensor | None = None) -> Expr:
    """Return the sum of expressions of one shape, plus a constant."""
    if len(terms) == 1 and bias is None:
        return terms[0]
    if len(terms) == 1:
        return call.linear("isometry", lambda z: z, list(terms), bias=bias, reshape=True)
    return call.linear("sum", added, list(terms), bias=bias)


def added(*tensors: Tensor) -> Tensor:
    """Return the sum of tensors of one shape."""
    return functools.reduce(torch.add, tensors)


@rule("copy")
def copy(call: Call) -> Any:
    """Return the source in the shape of the target."""
    source = call["src"]
    return broadcast(source, call.shape, call) if isinstance(source, Expr) else call.value


@rule("fill")
def fill(call: Call) -> Any:
    """Return a constant, or one number everywhere: nothing of the tensor itself is left."""
    value = call["value"]
    return broadcast(value, call.shape, call) if isinstance(value, Expr) else call.value


@rule("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
      "zeros", "ones", "full", "empty", "sym_size", "size", "arange", "shape", "_shape_as_tensor", "sym_numel",
      "numel", "dim", "is_floating_point", "new_empty_strided", "sym_stride", "stride")  # fmt: skip
def shape_only(call: Call) -> Any:
    """Return the value itself: it depends on the shape of the input alone."""
    if isinstance(call.get("fill_value"), Expr):
        return broadcast(call["fill_value"], call.shape, call)
    return call.value
