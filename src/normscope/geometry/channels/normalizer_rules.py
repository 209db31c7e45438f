"""How normalizers and recurrent layers propagate channel labels."""

from typing import Any

import torch
from torch import Tensor

from normscope.geometry.channels.labels import ChannelGain, FixedBatchNorm
from normscope.geometry.channels.network import (
    LabelledNetwork,
    NormalizedWeight,
    ParameterView,
    TensorLabels,
    rule,
    unknown,
)
from normscope.geometry.channels.rules import along_channels, channels, weighted
from normscope.operators.registry import Call


def _affine(net: LabelledNetwork, call: Call, plain: Tensor) -> Tensor:
    """Return the labels of channels after the affine part of a normalizer, which multiplies by gamma and adds beta."""
    labels, gamma, beta = net.labels, call.get("weight"), call.get("bias")
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
    return outputs


def _normalized(net: LabelledNetwork, inputs: Tensor) -> Tensor:
    """Return new labels of normalized channels: kin to the inputs, not scalable."""
    outputs = net.labels.new(*inputs.shape)
    net.labels.forbid_scaling(outputs)
    net.labels.make_kin(inputs, outputs)
    return outputs


def _results(call: Call, labels: Tensor) -> Any:
    """Return the results of a normalizer: the labels of the first, statistics as they are."""
    out = TensorLabels(labels.expand(call.shape))
    return [out, *call.value[1:]] if isinstance(call.value, tuple | list) else out


@rule("batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "instance_norm")
def batch_norm(net: LabelledNetwork, call: Call) -> Any:
    """Normalize each channel: its scale is undone, or passes where the statistics are fixed."""
    inputs = channels(net, net.labels_of(call["input"]), 1)
    net.labels.forbid_mixing(inputs)
    mean, var = call.get("running_mean"), call.get("running_var")
    fixed = isinstance(mean, Tensor) and not any(call.get(flag) for flag in ("training", "use_input_stats"))
    if call.node.name in net.function.statistics:
        net.labels.statistics.append((*net.function.statistics[call.node.name], inputs))
    if fixed:
        outputs = _with_fixed_statistics(net, call, inputs, mean, var)
    else:
        plain = _normalized(net, inputs)
        net.labels.forbid_mixing(plain)
        outputs = _affine(net, call, plain)
    return _results(call, along_channels(outputs, call))


def _with_fixed_statistics(net: LabelledNetwork, call: Call, inputs: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """Return the labels of channels after a BatchNorm with fixed statistics, an affine map."""
    gamma, beta = call.get("weight"), call.get("bias")
    labels = net.labels
    if not (isinstance(gamma, ParameterView) and isinstance(beta, ParameterView)):
        labels.forbid_scaling(inputs)
        return inputs
    outputs = labels.new(len(inputs))
    labels.make_kin(inputs, outputs)
    inverse = (var + call["eps"]).rsqrt()
    labels.fixed_batch_norms.append(
        FixedBatchNorm(gamma.parameter, beta.parameter, mean * inverse, inverse, inputs, outputs)
    )
    return outputs


@rule("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")
def layer_norm(net: LabelledNetwork, call: Call) -> Any:
    """Normalize all channels together: their common scale is undone."""
    source = net.labels_of(call["input"])
    rank = len(call["normalized_shape"])
    inputs = net.labels.collapsed(source, tuple(range(source.ndim - rank))).reshape(-1)
    net.labels.merge(inputs[None], (1,))
    net.labels.squared.update(inputs.tolist())
    plain = _normalized(net, inputs)
    net.labels.links.append((inputs, plain))
    if rank != 1:
        net.labels.forbid_mixing(inputs)
    if "layer" in call.node.op:
        net.labels.summed.update(inputs.tolist())
        if rank == 1 and not isinstance(call.get("weight"), Tensor):
            beta = call.get("bias")
            net.labels.centred.append((plain, beta.parameter if isinstance(beta, ParameterView) else ""))
    return _results(call, _affine(net, call, plain).reshape(call.shape[-rank:]))


@rule("group_norm", "native_group_norm")
def group_norm(net: LabelledNetwork, call: Call) -> Any:
    """Normalize the channels of each group together: their common scale is undone."""
    inputs = channels(net, net.labels_of(call["input"]), 1)
    groups = call.get("num_groups") or call["group"]
    net.labels.merge(inputs.reshape(groups, -1), (1,))
    net.labels.forbid_mixing(inputs)
    net.labels.summed.update(inputs.tolist())
    return _results(call, along_channels(_affine(net, call, _normalized(net, inputs)), call))


@rule("_weight_norm", "_weight_norm_interface")
def weight_norm(net: LabelledNetwork, call: Call) -> Any:
    """``g v/||v||``: each vector's scale is undone, its gain stays."""
    v, g = call["v"], call["g"]
    direction, gain = net.labels_of(v), net.labels_of(g)
    dim = int(call.get("dim") or 0)
    others = tuple(d for d in range(direction.ndim) if d != dim)
    net.labels.merge(direction, others)
    net.labels.forbid_mixing(direction)
    trainable = isinstance(v, ParameterView) and isinstance(g, ParameterView) and dim == 0 and not v.offset + g.offset
    out = NormalizedWeight(gain.expand(call.shape), v, g) if trainable else TensorLabels(gain.expand(call.shape))
    return [out, out] if isinstance(call.value, tuple | list) else out


@rule("lstm", "gru", "rnn_tanh")
def recurrent(net: LabelledNetwork, call: Call) -> Any:
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


def _cell(net: LabelledNetwork, call: Call, own: list[Any], inputs: Tensor) -> Tensor:
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
