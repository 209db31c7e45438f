"""How each operation propagates channel labels from its inputs to its outputs."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from normscope.geometry.channels.labels import NOTHING, ChannelGain, largest, unique
from normscope.geometry.channels.network import (
    LabelledNetwork,
    NormalizedWeight,
    ParameterView,
    TensorLabels,
    labelled_inputs,
    rule,
    unknown,
)
from normscope.geometry.function import LARGEST_EPS
from normscope.graph.interpreter import resolve
from normscope.operators.registry import Call, call_by_name

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
def layout(net: LabelledNetwork, call: Call) -> Any:
    """Rearrange the labels like the entries; a view of a parameter stays a view."""
    (state,) = labelled_inputs(call)[:1]
    raw = isinstance(state, ParameterView)

    def swap(value: Any) -> Any:
        if isinstance(value, list):
            return [swap(item) for item in value]
        if not isinstance(value, ParameterView | TensorLabels):
            return value
        found = value.index if isinstance(value, ParameterView) else value.labels
        return found.contiguous() if "view" in call.node.op else found  # repeated labels are not stored twice

    def wrap(found: Any) -> Any:
        if isinstance(found, tuple | list):
            return [wrap(item) for item in found]
        return replace(state, index=found) if raw else TensorLabels(found)

    return wrap(call_by_name(resolve(call.node.op), {name: swap(value) for name, value in call.arguments.items()}))


@rule("cat", "stack", "concat", "concatenate", "hstack", "vstack")
def joined(net: LabelledNetwork, call: Call) -> Any:
    """Concatenate labels; parameters and constants are labelled entry by entry."""
    arguments = {n: [net.labels_of(t) for t in v] if isinstance(v, list) else v for n, v in call.arguments.items()}
    return TensorLabels(call_by_name(resolve(call.node.op), arguments))


@rule("pad", "constant_pad_nd", "zero_pad2d")
def padded(net: LabelledNetwork, call: Call) -> Any:
    """Pad with zeros, which every scale leaves unchanged."""
    labels = net.first_labels(call)
    if call.get("value") or call.get("mode") not in (None, "constant"):
        net.labels.forbid_scaling(labels)
    return TensorLabels(torch.nn.functional.pad(labels - NOTHING, list(call["pad"])) + NOTHING)


@rule(*_SAME)
def same(net: LabelledNetwork, call: Call) -> Any:
    """Pass the labels on."""
    return labelled_inputs(call)[0]


@rule("relu", "leaky_relu", "abs", "prelu", "rrelu", "threshold")
def homogeneous(net: LabelledNetwork, call: Call) -> Any:
    """``f(c x) = c f(x)`` for positive c: scales pass, mixtures do not."""
    first, *rest = labelled_inputs(call)
    labels = net.labels_of(first)
    net.labels.forbid_mixing(labels)
    for state in rest:  # a trained slope
        net.labels.fix(net.labels_of(state))
    return TensorLabels(labels)


@rule("glu")
def gated(net: LabelledNetwork, call: Call) -> Any:
    """``a sigmoid(b)`` of the two halves of an axis: the scale of the first half passes."""
    first, second = net.first_labels(call).chunk(2, int(call.get("dim", -1)))
    net.labels.make_kin(first, second)
    net.labels.forbid_scaling(second)
    net.labels.forbid_mixing(first, second)
    return TensorLabels(first)


@rule(*_NONLINEAR)
def nonlinear(net: LabelledNetwork, call: Call) -> Any:
    """Scales do not pass, channels stay themselves. A clamp from below by a stabilizer counts as the identity."""
    labels = net.first_labels(call)
    least = call.get("min")
    if isinstance(least, float | int) and 0 < least <= LARGEST_EPS and call.get("max") is None:
        return TensorLabels(labels)
    net.labels.forbid_scaling(labels)
    net.labels.forbid_mixing(labels)
    return TensorLabels(labels)


@rule("softmax", "_softmax", "log_softmax", "_log_softmax", "sparsemax")
def softmax(net: LabelledNetwork, call: Call) -> Any:
    """Scales do not pass, and its outputs are fixed. It ignores a shift common to all channels."""
    labels = net.first_labels(call)
    if bool((labels != net.labels.first(labels, (int(call.get("dim")),))).any()):
        net.labels.summed.update(unique(labels))
    net.labels.forbid_scaling(labels)
    net.labels.forbid_mixing(labels)
    return TensorLabels(torch.zeros_like(labels))


@rule("add", "sub", "rsub")
def added(net: LabelledNetwork, call: Call) -> Any:
    """Both summands have the scale of the sum; a small constant counts as a stabilizer."""
    other = call["other"]
    if isinstance(other, float | int):
        state = labelled_inputs(call)[0]
        if isinstance(state, ParameterView) and call.node.op.startswith("aten.add.") and other > LARGEST_EPS:
            return replace(state, offset=state.offset + other)
        labels = net.labels_of(state)
        if other and not 0 < other <= LARGEST_EPS:
            net.labels.forbid_scaling(labels)
        return TensorLabels(labels)
    a, b = torch.broadcast_tensors(net.labels_of(call["self"]), net.labels_of(other))
    net.labels.tie(a, b)
    for one, whole in ((net.labels_of(call["self"]), a), (net.labels_of(other), b)):
        if one.shape != whole.shape and one.numel() > 1:
            net.labels.tie(one, whole)
    return TensorLabels(torch.where(a == NOTHING, b, a))


@rule("mul")
def multiplied(net: LabelledNetwork, call: Call) -> Any:
    """Scales add; a parameter that multiplies channels is a gain."""
    return _scaled(net, call, call["self"], call["other"])


@rule("div")
def divided(net: LabelledNetwork, call: Call) -> Any:
    """Scales are subtracted."""
    if call.get("rounding_mode") is not None:
        return unknown(net, call)
    other = call["other"]
    if not isinstance(other, TensorLabels | ParameterView | Tensor):
        return call["self"] if isinstance(call["self"], TensorLabels) else TensorLabels(net.labels_of(call["self"]))
    return _scaled(net, call, call["self"], other, -1.0)


def _scaled(net: LabelledNetwork, call: Call, one: Any, other: Any, sign: float = 1.0) -> TensorLabels:
    """Return the labels of a product or quotient of two tensors."""
    a, b = net.labels_of(one), net.labels_of(other)
    out = net.labels.combine(a, b, sign)
    varied = [t for t in (a, b) if t.shape == out.shape]
    for mine in (a, b):
        wide = mine.expand(out.shape)
        if (mine.numel() > 1 and mine.shape[-1:] == out.shape[-1:]) or mine.shape == out.shape:
            net.labels.make_kin(wide, out, fixed=False)
    for state, rest in ((one, b), (other, a)):
        if isinstance(state, ParameterView) and sign > 0:
            inputs = rest.expand(out.shape)
            index = state.index.expand(out.shape)
            net.labels.gains.append(ChannelGain(state.parameter, index, inputs, out))
            return TensorLabels(out)
    if len(varied) == 1 and out.ndim and min(a.shape[-1:] or (1,), b.shape[-1:] or (1,)) == (1,):
        net.labels.links.append((varied[0], out))
    plain = [t for t in (one, other) if isinstance(t, Tensor) and t.numel() > 1]
    if len(varied) == 2 or plain:
        net.labels.forbid_mixing(a, b, out)
    return TensorLabels(out)


@rule("pow", "square", "sqrt", "rsqrt", "reciprocal")
def powers(net: LabelledNetwork, call: Call) -> Any:
    """A power multiplies the scale."""
    name = call.name
    exponent = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}.get(name, call.get("exponent"))
    if not isinstance(exponent, float | int):
        return unknown(net, call)
    labels = net.first_labels(call)
    if exponent == 2:
        net.labels.squared.update(unique(labels))
    else:
        net.labels.forbid_mixing(labels)
    return TensorLabels(net.labels.power(labels, float(exponent)))


def _dims(call: Call, rank: int) -> tuple[int, ...]:
    """Return the axes an operation reduces."""
    given = call.get("dim")
    if given is None or given == []:
        return tuple(range(rank))
    return tuple(d % rank for d in (given if isinstance(given, list | tuple) else [given]))


def _reduced(net: LabelledNetwork, labels: Tensor, dims: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    """Return labels of sums over some axes: all summands have the same scale."""
    if bool((labels != net.labels.first(labels, dims)).any()):
        net.labels.summed.update(unique(labels))
    net.labels.merge(labels, dims)
    return largest(labels, dims).reshape(shape)


@rule("mean", "sum", "linalg_vector_norm", "amax", "amin", "norm")
def reduced(net: LabelledNetwork, call: Call) -> Any:
    """All summands have the same scale; a norm over channels also permits rotations."""
    labels = net.first_labels(call)
    dims = _dims(call, labels.ndim)
    if call.name not in ("mean", "sum"):
        varies = bool((labels != net.labels.first(labels, dims)).any())
        (net.labels.squared.update if varies else net.labels.unmixable.update)(unique(labels))
    return TensorLabels(_reduced(net, labels, dims, call.shape))


@rule("var_mean", "var", "std")
def variance(net: LabelledNetwork, call: Call) -> Any:
    """A variance has twice the scale."""
    labels = net.first_labels(call)
    found = _reduced(net, labels, _dims(call, labels.ndim), call.shape)
    net.labels.squared.update(unique(labels))
    name = call.name
    spread = TensorLabels(found if name == "std" else net.labels.power(found, 2.0))
    return [spread, TensorLabels(found)] if name == "var_mean" else spread


@rule(
    *("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d"),
    *("adaptive_avg_pool2d", "adaptive_max_pool2d", "upsample_nearest2d", "upsample_bilinear2d"),
    *("max_pool2d_with_indices",),
)
def pooled(net: LabelledNetwork, call: Call) -> Any:
    """Each channel has one label over all positions, before and after."""
    labels = net.first_labels(call)
    spatial = len(call.shape) - 2
    one = net.labels.collapsed(labels, tuple(range(labels.ndim - spatial, labels.ndim)))
    if "max" in call.node.op:
        net.labels.forbid_mixing(one)
    out = TensorLabels(one.expand(call.shape))
    return [out, out] if isinstance(call.value, tuple | list) else out


def channels(net: LabelledNetwork, labels: Tensor, axis: int) -> Tensor:
    """Return one label per channel of an axis; labels along all other axes become one channel."""
    others = tuple(d for d in range(labels.ndim) if d != axis % labels.ndim)
    return net.labels.collapsed(labels, others).reshape(-1)


def along_channels(labels: Tensor, call: Call) -> Tensor:
    """Return one label per channel as the labels of a result whose channels stand along its second axis."""
    return labels.reshape(-1, *(1,) * (len(call.shape) - 2)).expand(call.shape)


def with_bias(net: LabelledNetwork, outputs: Tensor, bias: Any) -> None:
    """Tie a bias to the outputs it is added to; a fixed one fixes their scale."""
    if bias is not None:
        net.labels.tie(outputs, net.labels_of(bias))


def weighted(
    net: LabelledNetwork, call: Call, weight: Any, inputs: Tensor, groups: int = 1, *, transposed: bool = False
) -> Tensor:
    """Return labels of ``W x``: new ones for a trainable weight; otherwise each output has the scale of its inputs."""
    labels = net.labels
    trainable = isinstance(weight, ParameterView) and not weight.offset
    normalized = isinstance(weight, NormalizedWeight) and not transposed
    entry = weight.direction.index if normalized else weight.index if trainable else net.labels_of(weight)
    if transposed:  # (in, out/groups, ...) -> (out, in/groups, ...)
        entry = entry.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    share = entry.shape[1]
    read = inputs.reshape(groups, share).repeat_interleave(entry.shape[0] // groups, 0)
    if groups == 1:
        read = read[:1]
    if normalized:
        return net.normalized_product(weight, entry, read, call.node.name)
    if trainable:
        return net.product(weight, entry, read, call.node.name, full=groups == 1)
    outputs = labels.new(entry.shape[0])
    rows = labels.collapsed(entry, tuple(range(1, entry.ndim))).reshape(-1)
    labels.merge(read, (1,))
    first = read.amax(1).expand(entry.shape[0])
    for o, (row, x) in enumerate(zip(rows.tolist(), first.tolist(), strict=True)):
        labels.equation([(int(outputs[o]), 1.0), (max(row, 0), -1.0), (max(x, 0), -1.0)])
    labels.forbid_mixing(read, outputs)
    return outputs


@rule("linear")
def linear(net: LabelledNetwork, call: Call) -> Any:
    """``W x + b`` over the last axis."""
    inputs = channels(net, net.labels_of(call["input"]), -1)
    outputs = weighted(net, call, call.get("weight"), inputs)
    with_bias(net, outputs, call.get("bias"))
    return TensorLabels(outputs.expand(call.shape))


@rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "convolution")
def convolution(net: LabelledNetwork, call: Call) -> Any:
    """A convolution over channels."""
    spatial = len(call.shape) - 2
    inputs = channels(net, net.labels_of(call["input"]), -1 - spatial)
    transposed = bool(call.get("transposed")) or "transpose" in call.node.op
    outputs = weighted(net, call, call.get("weight"), inputs, int(call.get("groups") or 1), transposed=transposed)
    with_bias(net, outputs, call.get("bias"))
    return TensorLabels(along_channels(outputs, call))


@rule("addmm")
def affine_product(net: LabelledNetwork, call: Call) -> Any:
    """``b + x W`` with the outputs of W last."""
    inputs = channels(net, net.labels_of(call["mat1"]), -1)
    outputs = weighted(net, call, _transposed(net, call["mat2"]), inputs)
    with_bias(net, outputs, call["self"])
    return TensorLabels(outputs.expand(call.shape))


def _transposed(net: LabelledNetwork, state: Any) -> Any:
    """Return a matrix with its axes exchanged."""
    return (
        replace(state, index=state.index.mT)
        if isinstance(state, ParameterView)
        else TensorLabels(net.labels_of(state).mT)
    )


@rule("embedding")
def embedding(net: LabelledNetwork, call: Call) -> Any:
    """Rows of a table: every row has the channels of the output."""
    weight = call.get("weight")
    if not isinstance(weight, ParameterView):
        return TensorLabels(net.labels_of(weight)[:1].expand(call.shape))
    # A table is a weight with one-hot inputs, which no symmetry changes.
    inputs = torch.zeros(1, weight.index.shape[0], dtype=torch.int64)
    outputs = net.product(weight, weight.index.mT, inputs, call.node.name)
    return TensorLabels(outputs.expand(call.shape))


@rule("matmul", "bmm", "mm")
def product(net: LabelledNetwork, call: Call) -> Any:
    """A weight times channels, inner products of queries and keys, or averages of values."""
    one = call["self"]
    other = call["other"] if "other" in call.arguments else call["mat2"]
    if isinstance(other, ParameterView) and other.index.ndim == 2:
        inputs = channels(net, net.labels_of(one), -1)
        return TensorLabels(weighted(net, call, _transposed(net, other), inputs).expand(call.shape))
    a, b = net.labels_of(one), net.labels_of(other)
    if a.ndim < 2 or b.ndim < 2:
        return unknown(net, call)
    varied = bool((a != a[..., :1]).any()) or bool((b != b[..., :1, :]).any())
    if not varied:  # y[n, m] = sum_c a[n, c] b[c, m] with one label along c
        if isinstance(other, TensorLabels) and b.shape[-1] > 1:
            net.labels.averaged.append(torch.unique(b[..., 0, :].reshape(-1, b.shape[-1]), dim=0))
        found = net.labels.combine(a[..., :1], b[..., :1, :])
        return TensorLabels(found.expand(call.shape))
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left = net.labels.collapsed(a, (-2,)).expand(*batch, 1, a.shape[-1])[..., 0, :]
    right = net.labels.collapsed(b, (-1,)).expand(*batch, b.shape[-2], 1)[..., 0]
    return TensorLabels(inner_products(net, left, right)[..., None, None].expand(call.shape))


def inner_products(net: LabelledNetwork, left: Tensor, right: Tensor) -> Tensor:
    """Return labels of inner products over the last axis, and record queries and keys."""
    labels = net.labels
    whole = torch.cat([left, right], -1).reshape(-1, 2 * left.shape[-1])
    heads, where = torch.unique(whole, dim=0, return_inverse=True)
    made = labels.new(len(heads))
    for head, label in zip(heads.tolist(), made.tolist(), strict=True):
        size = len(head) // 2
        for q, k in zip(head[:size], head[size:], strict=True):
            labels.equation([(max(q, 0), 1.0), (max(k, 0), 1.0), (label, -1.0)])
            labels.kin.join(max(q, 0), max(k, 0))
    size = left.shape[-1]
    labels.attention.append((heads[:, :size], heads[:, size:]))
    return made[where].reshape(left.shape[:-1])


@rule("scaled_dot_product_attention")
def attention(net: LabelledNetwork, call: Call) -> Any:
    """Inner products of queries and keys, then averages of values over positions."""
    labels = net.labels
    query, key, value = (net.labels_of(call[n]) for n in ("query", "key", "value"))
    if call.get("enable_gqa"):
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    q, k, v = (labels.collapsed(t, (-2,))[..., 0, :] for t in (query, key, value))
    labels.forbid_scaling(inner_products(net, *torch.broadcast_tensors(q, k)))
    labels.averaged.append(torch.unique(v.reshape(-1, v.shape[-1]), dim=0))
    return TensorLabels(v[..., None, :].expand(call.shape))
