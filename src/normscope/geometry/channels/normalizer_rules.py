"""How normalizers and recurrent layers propagate channel labels."""

from typing import Any

import torch
from torch import Tensor

from normscope.geometry.channels.labels import ChannelGain, FixedBatchNorm
from normscope.geometry.channels.network import (
    LabelledCall,
    LabelledNetwork,
    NormalizedWeight,
    ParameterView,
    TensorLabels,
    rule,
    unknown,
)
from normscope.geometry.channels.rules import channels, weighted


def _affine(net: LabelledNetwork, plain: Tensor, gamma: Any, beta: Any, axis: int, shape: torch.Size) -> TensorLabels:
    """Return the labels after the affine part of a normalizer, which multiplies by gamma and adds beta."""
    labels = net.labels
    outputs = plain
    if isinstance(gamma, ParameterView):
        scale = net.labels_of(gamma).reshape(-1)
        outputs = labels.combine(plain, scale)
        labels.make_kin(plain, outputs)
        labels.make_kin(scale, outputs)
        labels.gains.append(ChannelGain(gamma.parameter, gamma.index.reshape(-1), plain, outputs))
    elif isinstance(gamma, Tensor):
        labels.forbid_mixing(plain)
    if beta is not None:
        labels.tie(outputs, net.labels_of(beta).reshape(-1))
    place = [1] * len(shape)
    place[axis % len(shape)] = -1
    return TensorLabels(outputs.reshape(place).expand(shape))


def _normalized(net: LabelledNetwork, inputs: Tensor) -> Tensor:
    """Return new labels of normalized channels: kin to the inputs, not scalable."""
    outputs = net.labels.new(*inputs.shape)
    net.labels.forbid_scaling(outputs)
    net.labels.make_kin(inputs, outputs)
    return outputs


@rule("batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "instance_norm")
def batch_norm(net: LabelledNetwork, call: LabelledCall) -> Any:
    """Normalize each channel: its scale is undone, or passes where the statistics are fixed."""
    inputs = channels(net, net.labels_of(call["input"]), 1)
    net.labels.forbid_mixing(inputs)
    mean, var = call["running_mean"], call["running_var"]
    fixed = isinstance(mean, Tensor) and not any(call[flag] for flag in ("training", "use_input_stats"))
    if call.node.name in net.function.statistics:
        net.labels.statistics.append((*net.function.statistics[call.node.name], inputs))
    if fixed:
        out = _frozen(net, call, inputs, mean, var)
    else:
        plain = _normalized(net, inputs)
        net.labels.forbid_mixing(plain)
        out = _affine(net, plain, call["weight"], call["bias"], 1, call.shape)
    return [out, *call.value[1:]] if isinstance(call.value, tuple | list) else out


def _frozen(net: LabelledNetwork, call: LabelledCall, inputs: Tensor, mean: Tensor, var: Tensor) -> TensorLabels:
    """Return the labels after a BatchNorm with fixed statistics, an affine map."""
    gamma, beta = call["weight"], call["bias"]
    labels = net.labels
    if isinstance(gamma, ParameterView) and isinstance(beta, ParameterView):
        outputs = labels.new(len(inputs))
        labels.make_kin(inputs, outputs)
        inverse = (var + call["eps"]).rsqrt()
        labels.fixed_batch_norms.append(
            FixedBatchNorm(gamma.parameter, beta.parameter, mean * inverse, inverse, inputs, outputs)
        )
    else:
        outputs = inputs
        labels.forbid_scaling(inputs)
    return TensorLabels(outputs.reshape(-1, *(1,) * (len(call.shape) - 2)).expand(call.shape))


@rule("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")
def layer_norm(net: LabelledNetwork, call: LabelledCall) -> Any:
    """Normalize all channels together: their common scale is undone."""
    source = net.labels_of(call["input"])
    rank = len(call["normalized_shape"])
    inputs = net.labels.collapsed(source, tuple(range(source.ndim - rank))).reshape(-1)
    net.labels.merge(inputs[None], (1,))
    net.labels.squared.update(inputs.tolist())
    if "layer" in call.node.op:
        net.labels.summed.update(inputs.tolist())
    plain = _normalized(net, inputs)
    net.labels.links.append((inputs, plain))
    if rank != 1:
        net.labels.forbid_mixing(inputs)
    last = torch.Size([*call.shape[: len(call.shape) - rank], len(inputs)])
    out = _affine(net, plain, call["weight"], call["bias"], -1, last)
    if "layer" in call.node.op and rank == 1 and not isinstance(call["weight"], Tensor):
        net.labels.centred.append((plain, call["bias"].parameter if isinstance(call["bias"], ParameterView) else ""))
    out = TensorLabels(out.labels.reshape(call.shape))
    return [out, *call.value[1:]] if isinstance(call.value, tuple | list) else out


@rule("group_norm", "native_group_norm")
def group_norm(net: LabelledNetwork, call: LabelledCall) -> Any:
    """Normalize the channels of each group together: their common scale is undone."""
    inputs = channels(net, net.labels_of(call["input"]), 1)
    groups = call["num_groups"] or call["group"]
    net.labels.merge(inputs.reshape(groups, -1), (1,))
    net.labels.forbid_mixing(inputs)
    net.labels.summed.update(inputs.tolist())
    plain = _normalized(net, inputs)
    out = _affine(net, plain, call["weight"], call["bias"], 1, call.shape)
    return [out, *call.value[1:]] if isinstance(call.value, tuple | list) else out


@rule("_weight_norm", "_weight_norm_interface")
def weight_norm(net: LabelledNetwork, call: LabelledCall) -> Any:
    """``g v/||v||``: each vector's scale is undone, its gain stays."""
    v, g = call["v"], call["g"]
    direction, gain = net.labels_of(v), net.labels_of(g)
    dim = int(call["dim"] or 0)
    others = tuple(d for d in range(direction.ndim) if d != dim)
    net.labels.merge(direction, others)
    net.labels.forbid_mixing(direction)
    trainable = isinstance(v, ParameterView) and isinstance(g, ParameterView) and dim == 0 and not v.offset + g.offset
    out = NormalizedWeight(gain.expand(call.shape), v, g) if trainable else TensorLabels(gain.expand(call.shape))
    return [out, out] if isinstance(call.value, tuple | list) else out


@rule("lstm", "gru", "rnn_tanh")
def recurrent(net: LabelledNetwork, call: LabelledCall) -> Any:
    """Scales do not pass; the units of a layer may be permuted, each with its gates."""
    inputs = channels(net, net.labels_of(call["input"]), -1)
    weights = list(call["params"])
    size, ways = 4 if call["has_biases"] else 2, 2 if call["bidirectional"] else 1
    if len(weights) != size * ways * call["num_layers"]:  # the outputs are projected
        return unknown(net, call)
    units: list[Tensor] = []
    for layer in range(call["num_layers"]):
        own = [weights[i * size : (i + 1) * size] for i in range(layer * ways, (layer + 1) * ways)]
        units += [_cell(net, call, way, inputs) for way in own]
        inputs = torch.cat(units[-ways:])
    first, *last = call.value
    states = torch.stack(units)[:, None] if first.ndim == 3 else torch.stack(units)
    return [TensorLabels(inputs.expand(first.shape)), *(TensorLabels(states.expand(v.shape)) for v in last)]


def _cell(net: LabelledNetwork, call: LabelledCall, own: list[Any], inputs: Tensor) -> Tensor:
    """Return the labels of a recurrent layer's units."""
    labels = net.labels
    width = own[1].index.shape[1]
    units = labels.new(width)
    labels.forbid_scaling(units)
    labels.forbid_mixing(units)
    gates = own[0].index.shape[0] // width
    for weight, read in zip(own[:2], (inputs, units), strict=True):
        outputs = weighted(net, call, weight, read)
        labels.forbid_scaling(outputs)
        labels.forbid_mixing(outputs)
        labels.make_kin(outputs, units.repeat(gates))
    for bias in own[2:]:
        entry = net.labels_of(bias)
        labels.forbid_scaling(entry)
        labels.make_kin(entry, units.repeat(gates))
    return units
