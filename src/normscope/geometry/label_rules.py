"""What each operation says about the labels of the channels it reads and gives."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from normscope.geometry.function import LARGEST_EPS
from normscope.geometry.labelling import Label, Labelling, Normed, Raw, Step, called, labelled_inputs, rule, unknown
from normscope.geometry.labels import NOTHING, Gain, largest, unique

_LAYOUT = (
    *("view", "reshape", "_unsafe_view", "flatten", "unflatten", "permute", "transpose", "t", "squeeze", "unsqueeze"),
    *("expand", "slice", "select", "split", "split_with_sizes", "chunk", "unbind", "narrow", "repeat", "movedim"),
    *("repeat_interleave", "roll", "flip", "index_select", "pixel_shuffle", "channel_shuffle", "swapaxes", "expand_as"),
    *("view_as", "reshape_as", "index", "numpy_T", "mT", "diagonal", "tile"),
)
_SAME = (
    *("contiguous", "clone", "to", "_to_copy", "alias", "detach", "detach_copy", "dropout", "type_as", "float"),
    *("double", "lift_fresh_copy", "alias_copy", "neg"),
)
_NONLINEAR = (
    *("gelu", "silu", "tanh", "sigmoid", "exp", "softplus", "elu", "selu", "celu", "hardtanh", "hardswish", "mish"),
    *("hardsigmoid", "log", "log_sigmoid", "relu6", "sin", "cos", "erf", "softsign", "clamp", "softshrink", "log1p"),
    "clamp_min",
)


@rule(*_LAYOUT)
def layout(walk: Labelling, step: Step) -> Any:
    """Move the labels as the entries; a view of a parameter stays one."""
    (state,) = labelled_inputs(step)[:1]
    raw = isinstance(state, Raw)

    def swap(value: Any) -> Any:
        if isinstance(value, list):
            return [swap(item) for item in value]
        if not isinstance(value, Raw | Label):
            return value
        found = value.index if isinstance(value, Raw) else value.labels
        return found.contiguous() if "view" in step.node.op else found  # repeated labels are not stored twice

    def wrap(found: Any) -> Any:
        if isinstance(found, tuple | list):
            return [wrap(item) for item in found]
        return replace(state, index=found) if raw else Label(found)

    return wrap(called(step.node.op, {name: swap(value) for name, value in step.arguments.items()}))


@rule("cat", "stack", "concat", "concatenate", "hstack", "vstack")
def joined(walk: Labelling, step: Step) -> Any:
    """Join labels; parameters and constants among them are labelled entry by entry."""
    arguments = {n: [walk.of(t) for t in v] if isinstance(v, list) else v for n, v in step.arguments.items()}
    return Label(called(step.node.op, arguments))


@rule("pad", "constant_pad_nd", "zero_pad2d")
def padded(walk: Labelling, step: Step) -> Any:
    """Pad with entries that are zero, which any scale leaves so."""
    labels = walk.of(labelled_inputs(step)[0])
    if step["value"] or step["mode"] not in (None, "constant"):
        walk.labels.stop(labels)
    return Label(torch.nn.functional.pad(labels - NOTHING, list(step["pad"])) + NOTHING)


@rule(*_SAME)
def same(walk: Labelling, step: Step) -> Any:
    """Keep what comes in."""
    return labelled_inputs(step)[0]


@rule("relu", "leaky_relu", "abs", "prelu", "rrelu", "threshold")
def homogeneous(walk: Labelling, step: Step) -> Any:
    """``f(c x) = c f(x)`` for positive c: scales pass, mixtures do not."""
    first, *rest = labelled_inputs(step)
    labels = walk.of(first)
    walk.labels.bend(labels)
    for state in rest:  # a trained slope
        walk.labels.fix(walk.of(state))
    return Label(labels)


@rule("glu")
def gated(walk: Labelling, step: Step) -> Any:
    """``a sigmoid(b)`` of the two halves of an axis: the scale of the first half passes."""
    first, second = walk.of(labelled_inputs(step)[0]).chunk(2, int(-1 if step["dim"] is None else step["dim"]))
    walk.labels.relate(first, second)
    walk.labels.stop(second)
    for half in (first, second):
        walk.labels.bend(half)
    return Label(first)


@rule(*_NONLINEAR)
def nonlinear(walk: Labelling, step: Step) -> Any:
    """No scale passes; which channel it is does. A clamp by a stabilizer is the identity where it is not reached."""
    labels = walk.of(labelled_inputs(step)[0])
    least = step["min"]
    if isinstance(least, float | int) and 0 < least <= LARGEST_EPS and step["max"] is None:
        return Label(labels)
    walk.labels.stop(labels)
    walk.labels.bend(labels)
    return Label(labels)


@rule("softmax", "_softmax", "log_softmax", "_log_softmax", "sparsemax")
def softmax(walk: Labelling, step: Step) -> Any:
    """No scale passes, and nothing is known of the channels behind it. It does not see what is common to all."""
    labels = walk.of(labelled_inputs(step)[0])
    if bool((labels != walk.labels.first(labels, (int(step["dim"]),))).any()):
        walk.labels.summed.update(unique(labels))
    walk.labels.stop(labels)
    walk.labels.bend(labels)
    return Label(torch.zeros_like(labels))


@rule("add", "sub", "rsub")
def added(walk: Labelling, step: Step) -> Any:
    """Both summands have the scale of the sum; a small number added is a stabilizer."""
    other = step["other"]
    if isinstance(other, float | int):
        state = labelled_inputs(step)[0]
        if isinstance(state, Raw) and step.node.op.startswith("aten.add.") and other > LARGEST_EPS:
            return replace(state, offset=state.offset + other)
        labels = walk.of(state)
        if other and not 0 < other <= LARGEST_EPS:
            walk.labels.stop(labels)
        return Label(labels)
    a, b = torch.broadcast_tensors(walk.of(step["self"]), walk.of(other))
    walk.labels.tie(a, b)
    for one, whole in ((walk.of(step["self"]), a), (walk.of(other), b)):
        if one.shape != whole.shape and one.numel() > 1:
            walk.labels.tie(one, whole)
    return Label(torch.where(a == NOTHING, b, a))


@rule("mul")
def multiplied(walk: Labelling, step: Step) -> Any:
    """Scales add; a parameter that multiplies channels is a gain."""
    return _scaled(walk, step, step["self"], step["other"])


@rule("div")
def divided(walk: Labelling, step: Step) -> Any:
    """Scales are subtracted."""
    if step["rounding_mode"] is not None:
        return unknown(walk, step)
    other = step["other"]
    if not isinstance(other, Label | Raw | Tensor):
        return step["self"] if isinstance(step["self"], Label) else Label(walk.of(step["self"]))
    return _scaled(walk, step, step["self"], other, -1.0)


def _scaled(walk: Labelling, step: Step, one: Any, other: Any, sign: float = 1.0) -> Label:
    """Return the labels of a product or quotient of two tensors."""
    a, b = walk.of(one), walk.of(other)
    out = walk.labels.combine(a, b, sign)
    varied = [t for t in (a, b) if t.shape == out.shape]
    for mine in (a, b):
        wide = mine.expand(out.shape)
        if (mine.numel() > 1 and mine.shape[-1:] == out.shape[-1:]) or mine.shape == out.shape:
            walk.labels.relate(wide, out, fixed=False)
    for state, rest in ((one, b), (other, a)):
        if isinstance(state, Raw) and sign > 0:
            inputs = rest.expand(out.shape)
            index = state.index.expand(out.shape)
            walk.labels.gains.append(Gain(state.parameter, index, inputs, out))
            return Label(out)
    if len(varied) == 1 and out.ndim and min(a.shape[-1:] or (1,), b.shape[-1:] or (1,)) == (1,):
        walk.labels.links.append((varied[0], out))
    plain = [t for t in (one, other) if isinstance(t, Tensor) and t.numel() > 1]
    if len(varied) == 2 or plain:
        walk.labels.bend(a)
        walk.labels.bend(b)
        walk.labels.bend(out)
    return Label(out)


@rule("pow", "square", "sqrt", "rsqrt", "reciprocal")
def powers(walk: Labelling, step: Step) -> Any:
    """A power multiplies the scale."""
    name = step.node.op.split(".")[1]
    exponent = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}.get(name, step["exponent"])
    if not isinstance(exponent, float | int):
        return unknown(walk, step)
    labels = walk.of(labelled_inputs(step)[0])
    if exponent == 2:
        walk.labels.squared.update(unique(labels))
    else:
        walk.labels.bend(labels)
    return Label(walk.labels.power(labels, float(exponent)))


def _dims(step: Step, rank: int) -> tuple[int, ...]:
    """Return the axes an operation reduces."""
    given = step["dim"]
    if given is None or given == []:
        return tuple(range(rank))
    return tuple(d % rank for d in (given if isinstance(given, list | tuple) else [given]))


def _reduced(walk: Labelling, labels: Tensor, dims: tuple[int, ...], shape: torch.Size) -> Tensor:
    """Return labels of sums over some axes: what is summed has one scale."""
    if bool((labels != walk.labels.first(labels, dims)).any()):
        walk.labels.summed.update(unique(labels))
    walk.labels.merge(labels, dims)
    return largest(labels, dims).reshape(shape)


@rule("mean", "sum", "linalg_vector_norm", "amax", "amin", "norm")
def reduced(walk: Labelling, step: Step) -> Any:
    """What is summed has one scale; the norm over channels also permits rotations."""
    labels = walk.of(labelled_inputs(step)[0])
    dims = _dims(step, labels.ndim)
    if step.node.op.split(".")[1] not in ("mean", "sum"):
        varies = bool((labels != walk.labels.first(labels, dims)).any())
        (walk.labels.squared.update if varies else walk.labels.bent.update)(unique(labels))
    return Label(_reduced(walk, labels, dims, step.shape))


@rule("var_mean", "var", "std")
def variance(walk: Labelling, step: Step) -> Any:
    """A variance has twice the scale."""
    labels = walk.of(labelled_inputs(step)[0])
    found = _reduced(walk, labels, _dims(step, labels.ndim), step.shape)
    walk.labels.squared.update(unique(labels))
    name = step.node.op.split(".")[1]
    spread = Label(found if name == "std" else walk.labels.power(found, 2.0))
    return [spread, Label(found)] if name == "var_mean" else spread


@rule(
    *("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d"),
    *("adaptive_avg_pool2d", "adaptive_max_pool2d", "upsample_nearest2d", "upsample_bilinear2d"),
    *("max_pool2d_with_indices",),
)
def pooled(walk: Labelling, step: Step) -> Any:
    """Each channel has one label over all positions, before and after."""
    labels = walk.of(labelled_inputs(step)[0])
    spatial = len(step.shape) - 2
    one = walk.labels.along(labels, tuple(range(labels.ndim - spatial, labels.ndim)))
    if "max" in step.node.op:
        walk.labels.bend(one)
    out = Label(one.expand(step.shape))
    return [out, out] if isinstance(step.value, tuple | list) else out


def channels(walk: Labelling, labels: Tensor, axis: int) -> Tensor:
    """Return one label for each place of an axis; all others are made one."""
    others = tuple(d for d in range(labels.ndim) if d != axis % labels.ndim)
    return walk.labels.along(labels, others).reshape(-1)


def with_bias(walk: Labelling, outputs: Tensor, bias: Any) -> None:
    """Tie a bias to the outputs it is added to; a fixed one fixes their scale."""
    if bias is not None:
        walk.labels.tie(outputs, walk.of(bias))


def weighted(
    walk: Labelling, step: Step, weight: Any, inputs: Tensor, groups: int = 1, *, swapped: bool = False
) -> Tensor:
    """Return labels of ``W x``: new ones for a trainable weight; else every output has the scale of what it reads."""
    labels = walk.labels
    raw = isinstance(weight, Raw) and not weight.offset
    lifts = isinstance(weight, Normed) and not swapped
    entry = weight.direction.index if lifts else weight.index if raw else walk.of(weight)
    if swapped:  # (in, out/groups, ...) -> (out, in/groups, ...)
        entry = entry.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    share = entry.shape[1]
    read = inputs.reshape(groups, share).repeat_interleave(entry.shape[0] // groups, 0)
    if groups == 1:
        read = read[:1]
    if lifts:
        return walk.lifted(weight, entry, read, step.node.name)
    if raw:
        return walk.product(weight, entry, read, step.node.name, full=groups == 1)
    outputs = labels.fresh(entry.shape[0])
    rows = labels.along(entry, tuple(range(1, entry.ndim))).reshape(-1)
    labels.merge(read, (1,))
    first = read.amax(1).expand(entry.shape[0])
    for o, (row, x) in enumerate(zip(rows.tolist(), first.tolist(), strict=True)):
        labels.equation([(int(outputs[o]), 1.0), (max(row, 0), -1.0), (max(x, 0), -1.0)])
    labels.bend(read)
    labels.bend(outputs)
    return outputs


@rule("linear")
def linear(walk: Labelling, step: Step) -> Any:
    """``W x + b`` over the last axis."""
    inputs = channels(walk, walk.of(step["input"]), -1)
    outputs = weighted(walk, step, step["weight"], inputs)
    with_bias(walk, outputs, step["bias"])
    return Label(outputs.expand(step.shape))


@rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "convolution")
def convolution(walk: Labelling, step: Step) -> Any:
    """A convolution over channels."""
    spatial = len(step.shape) - 2
    inputs = channels(walk, walk.of(step["input"]), -1 - spatial)
    swapped = bool(step["transposed"]) or "transpose" in step.node.op
    outputs = weighted(walk, step, step["weight"], inputs, int(step["groups"] or 1), swapped=swapped)
    with_bias(walk, outputs, step["bias"])
    return Label(outputs.reshape(-1, *(1,) * spatial).expand(step.shape))


@rule("addmm")
def affine_product(walk: Labelling, step: Step) -> Any:
    """``b + x W`` with the outputs of W last."""
    inputs = channels(walk, walk.of(step["mat1"]), -1)
    outputs = weighted(walk, step, _transposed(walk, step["mat2"]), inputs)
    with_bias(walk, outputs, step["self"])
    return Label(outputs.expand(step.shape))


def _transposed(walk: Labelling, state: Any) -> Any:
    """Return a matrix with its axes exchanged."""
    return replace(state, index=state.index.mT) if isinstance(state, Raw) else Label(walk.of(state).mT)


@rule("embedding")
def embedding(walk: Labelling, step: Step) -> Any:
    """Rows of a table: every row has the channels of the output."""
    weight = step["weight"]
    if not isinstance(weight, Raw):
        return Label(walk.of(weight)[:1].expand(step.shape))
    # A table is a weight whose inputs are one-hot, on which nothing acts.
    inputs = torch.zeros(1, weight.index.shape[0], dtype=torch.int64)
    outputs = walk.product(weight, weight.index.mT, inputs, step.node.name)
    return Label(outputs.expand(step.shape))


@rule("matmul", "bmm", "mm")
def product(walk: Labelling, step: Step) -> Any:
    """A weight times channels, inner products of queries and keys, or averages of values."""
    one = step["self"]
    other = step["other"] if "other" in step.arguments else step["mat2"]
    if isinstance(other, Raw) and other.index.ndim == 2:
        inputs = channels(walk, walk.of(one), -1)
        return Label(weighted(walk, step, _transposed(walk, other), inputs).expand(step.shape))
    a, b = walk.of(one), walk.of(other)
    if a.ndim < 2 or b.ndim < 2:
        return unknown(walk, step)
    varied = bool((a != a[..., :1]).any()) or bool((b != b[..., :1, :]).any())
    if not varied:  # y[n, m] = sum_c a[n, c] b[c, m] with one label along c
        if isinstance(other, Label) and b.shape[-1] > 1:
            walk.labels.averaged.append(torch.unique(b[..., 0, :].reshape(-1, b.shape[-1]), dim=0))
        found = walk.labels.combine(a[..., :1], b[..., :1, :])
        return Label(found.expand(step.shape))
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left = walk.labels.along(a, (-2,)).expand(*batch, 1, a.shape[-1])[..., 0, :]
    right = walk.labels.along(b, (-1,)).expand(*batch, b.shape[-2], 1)[..., 0]
    return Label(inner_products(walk, left, right)[..., None, None].expand(step.shape))


def inner_products(walk: Labelling, left: Tensor, right: Tensor) -> Tensor:
    """Return labels of inner products over the last axis, and note queries and keys."""
    labels = walk.labels
    whole = torch.cat([left, right], -1).reshape(-1, 2 * left.shape[-1])
    heads, where = torch.unique(whole, dim=0, return_inverse=True)
    made = labels.fresh(len(heads))
    for head, label in zip(heads.tolist(), made.tolist(), strict=True):
        size = len(head) // 2
        for q, k in zip(head[:size], head[size:], strict=True):
            labels.equation([(max(q, 0), 1.0), (max(k, 0), 1.0), (label, -1.0)])
            labels.kin.join(max(q, 0), max(k, 0))
    size = left.shape[-1]
    labels.attention.append((heads[:, :size], heads[:, size:]))
    return made[where].reshape(left.shape[:-1])


@rule("scaled_dot_product_attention")
def attention(walk: Labelling, step: Step) -> Any:
    """Inner products of queries and keys, then averages of values over positions."""
    labels = walk.labels
    query, key, value = (walk.of(step[n]) for n in ("query", "key", "value"))
    if step["enable_gqa"]:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    q, k, v = (labels.along(t, (-2,))[..., 0, :] for t in (query, key, value))
    labels.stop(inner_products(walk, *torch.broadcast_tensors(q, k)))
    labels.averaged.append(torch.unique(v.reshape(-1, v.shape[-1]), dim=0))
    return Label(v[..., None, :].expand(step.shape))
