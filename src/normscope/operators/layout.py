"""Operations that only move entries (reshape, permute, repeat), and sums and multiples of expressions."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.operators.expression import AxisMap, Expr
from normscope.operators.registry import Call, rule


@rule(
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as",
    "_reshape_alias", "ravel", "atleast_1d", "atleast_2d", "atleast_3d", "view_copy", "unsqueeze_copy", "squeeze_copy",
)  # fmt: skip
def reshape(call: Call) -> Expr:
    """Keep the entries in row-major order under another shape."""
    if "dtype" in call.node.op:
        return call.opaque("the bits of a tensor reinterpreted as another type")
    return reshaped(call, call.first, call.shape)


def reshaped(call: Call, x: Any, shape: Sequence[int]) -> Any:
    """Return an expression or a constant under another shape."""
    shape = tuple(shape)
    if isinstance(x, Tensor) or x.shape == shape:
        return x.reshape(shape) if isinstance(x, Tensor) else x
    return call.linear("isometry", lambda z: z.reshape(shape), [x], shape=shape, reshape=True)


@rule(
    "contiguous", "clone", "alias", "detach", "lift_fresh_copy", "lift_fresh", "lift", "dropout", "feature_dropout",
    "alpha_dropout", "feature_alpha_dropout", "native_dropout", "type_as", "positive", "_conj", "resolve_conj",
    "identity", "bernoulli", "wait_tensor", "conj", "resolve_neg", "real", "detach_copy", "alias_copy",
)  # fmt: skip
def same(call: Call) -> Any:
    """Leave the tensor as it is (dropout: in evaluation)."""
    training = call.get("train", False) in (True, None)  # a native dropout without the argument is active
    active = "dropout" in call.node.op and training and float(call.get("p", 0.5)) > 0
    if active or "bernoulli" in call.node.op:
        return call.opaque("random in this mode: its constant depends on the draw")
    if not isinstance(call.first, Expr):
        return call.value
    return call.with_rest(call.first, "the mask of a dropout")


@rule("to", "_to_copy", "float", "double", "half", "bfloat16", "_cast_Float", "_cast_Double", "_cast_Half")
def cast(call: Call) -> Expr:
    """Leave real values as they are; a cast to integers is a step function."""
    first = call.value if isinstance(call.value, Tensor) else call.value[0]
    named = getattr(torch, call.node.dtype, first.dtype)  # the value itself is computed wider
    if not named.is_floating_point or named.itemsize < 2:
        return call.opaque(f"a cast to {str(named)[6:]} is discontinuous", known=True)
    return call.first


def permuted(call: Call, x: Any, order: Sequence[int]) -> Any:
    """Return an expression or a constant with its axes permuted: output axis i is input axis ``order[i]``."""
    order = list(order)
    if order == sorted(order):
        return x
    if isinstance(x, Tensor):
        return x.permute(order)
    shape = tuple(x.shape[i] for i in order)
    return call.linear("isometry", lambda z: z.permute(order), [x], shape=shape, axes=order.index)


@rule("permute", "permute_copy", "transpose", "swapaxes", "swapdims", "transpose_copy", "t", "numpy_T", "mT", "mH",
      "matrix_H", "adjoint", "t_copy", "movedim", "moveaxis")  # fmt: skip
def permute(call: Call) -> Expr:
    """Permute axes; the order is read off a tensor whose axes all have different lengths."""
    numbered = torch.empty([axis + 2 for axis in range(len(call.first.shape))], device="meta")
    return permuted(call, call.first, [length - 2 for length in call.bound()(numbered).shape])


def kept_axes(x: Expr, dims: Sequence[int], *, drop: bool = False) -> AxisMap:
    """Return the axis map of an operation that acts along ``dims`` only, and perhaps drops them."""
    acts = {d % len(x.shape) for d in dims}
    return lambda axis: None if axis in acts else axis - drop * sum(d < axis for d in acts)


@rule("roll", "flip", "fliplr", "flipud", "fft_fftshift", "fft_ifftshift", "pixel_shuffle", "pixel_unshuffle",
      "channel_shuffle", "native_channel_shuffle", "rot90", "col2im")  # fmt: skip
def rearranged(call: Call) -> Expr:
    """Permute entries along axes, or between channels and space, or add up overlapping windows."""
    x, dims = call.first, call.get("dims", [])
    kind = "nonnegative" if call.name == "col2im" else "isometry"
    return call.linear(kind, call.bound(), [x], axes=kept_axes(x, dims) if dims else None)


@rule("expand", "expand_as", "repeat", "tile", "repeat_interleave", "broadcast_to", "expand_copy")
def repeats(call: Call) -> Expr:
    """Repeat entries."""
    x, shape = call.first, call.shape
    if not isinstance(x, Expr):
        return call.value
    if "expand" in call.node.op or "broadcast" in call.node.op:
        return broadcast(x, shape, call)
    if not call.only_first_depends:
        return call.opaque("the number of repetitions depends on the input", known=True)
    return call.linear("nonnegative", call.bound(), [x], coordinate=True)


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

    return call.linear("nonnegative", lambda z: z.expand(shape), [x], shape=shape, axes=axes, coordinate=True)


@rule("broadcast_tensors", "meshgrid")
def broadcast_all(call: Call) -> list[Any]:
    """Broadcast several tensors to one shape; a grid repeats each along the axes of the others."""
    parts = list(call.first)
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
        return call.opaque("a factor is infinite or not a number", known=True, shape=shape)

    def apply(z: Tensor) -> Tensor:
        return z * scale.to(z)

    return call.linear("diagonal", apply, [x], bias=bias, scale=scale, shape=shape)


def of_norm(call: Call, apply: Callable[..., Tensor], x: Expr, norm: float, shape: Sequence[int]) -> Expr:
    """Return a linear map with a known bound on its norm: a contraction, then a factor."""
    shape = tuple(shape)
    inner = call.linear("contraction", lambda z: apply(z) / norm, [x], shape=shape)
    return scaled(call.shaped(shape), inner, torch.tensor(norm, dtype=torch.float64))


def add_terms(call: Call, terms: Sequence[Expr], bias: Tensor | None = None) -> Expr:
    """Return the sum of expressions of one shape, plus a constant unless it is zero."""
    bias = None if bias is None or not bool((bias != 0).any()) else bias
    if len(terms) == 1:
        return terms[0] if bias is None else shifted(call, terms[0], bias)
    return call.linear("sum", added, list(terms), bias=bias)


def shifted(call: Call, x: Expr, bias: Tensor) -> Expr:
    """Return an expression plus a constant."""
    return call.linear("isometry", lambda z: z, [x], bias=bias, reshape=True)


def added(*tensors: Tensor) -> Tensor:
    """Return the sum of tensors of one shape."""
    return functools.reduce(torch.add, tensors)


@rule("copy", "fill")
def replaced(call: Call) -> Any:
    """Return the source, or one number, in the shape of the target, which it replaces."""
    source = call.arguments.get("src", call.arguments.get("value"))
    return broadcast(source, call.shape, call) if isinstance(source, Expr) else call.value


@rule("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
      "zeros", "ones", "full", "empty", "sym_size", "size", "arange", "shape", "_shape_as_tensor", "sym_numel",
      "numel", "dim", "is_floating_point", "new_empty_strided", "sym_stride", "stride")  # fmt: skip
def shape_only(call: Call) -> Any:
    """Return the value itself: it depends on the shape of the input alone."""
    if isinstance(call.get("fill_value"), Expr):
        return broadcast(call["fill_value"], call.shape, call)
    return call.value
