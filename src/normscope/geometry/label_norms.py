"""What normalizers and recurrent layers say about the labels of the channels they read and give."""

from typing import Any

import torch
from torch import Tensor

from normscope.geometry.label_rules import channels, weighted
from normscope.geometry.labelling import Label, Labelling, Normed, Raw, Step, rule, unknown
from normscope.geometry.labels import Frozen, Gain


def _affine(walk: Labelling, plain: Tensor, gamma: Any, beta: Any, axis: int, shape: torch.Size) -> Label:
    """Return the labels behind a normalizer: those of its scale, tied to its shift; none without a scale."""
    labels = walk.labels
    outputs = plain
    if isinstance(gamma, Raw):
        scale = walk.of(gamma).reshape(-1)
        outputs = labels.combine(plain, scale)
        labels.relate(plain, outputs)
        labels.relate(scale, outputs)
        labels.gains.append(Gain(gamma.parameter, gamma.index.reshape(-1), plain, outputs))
    elif isinstance(gamma, Tensor):
        labels.bend(plain)
    if beta is not None:
        labels.tie(outputs, walk.of(beta).reshape(-1))
    place = [1] * len(shape)
    place[axis % len(shape)] = -1
    return Label(outputs.reshape(place).expand(shape))


def _normalized(walk: Labelling, inputs: Tensor) -> Tensor:
    """Return new labels of normalized channels: kin to the inputs, without scale."""
    outputs = walk.labels.fresh(*inputs.shape)
    walk.labels.stop(outputs)
    walk.labels.relate(inputs, outputs)
    return outputs


@rule("batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "instance_norm")
def batch_norm(walk: Labelling, step: Step) -> Any:
    """Each channel by itself: its scale is undone, or kept where the statistics are fixed."""
    inputs = channels(walk, walk.of(step["input"]), 1)
    walk.labels.bend(inputs)
    mean, var = step["running_mean"], step["running_var"]
    fixed = isinstance(mean, Tensor) and not any(step[flag] for flag in ("training", "use_input_stats"))
    if step.node.name in walk.function.statistics:
        walk.labels.statistics.append((*walk.function.statistics[step.node.name], inputs))
    if fixed:
        out = _frozen(walk, step, inputs, mean, var)
    else:
        plain = _normalized(walk, inputs)
        walk.labels.bend(plain)
        out = _affine(walk, plain, step["weight"], step["bias"], 1, step.shape)
    return [out, *step.value[1:]] if isinstance(step.value, tuple | list) else out


def _frozen(walk: Labelling, step: Step, inputs: Tensor, mean: Tensor, var: Tensor) -> Label:
    """Return the labels behind a BatchNorm with fixed statistics, an affine map."""
    gamma, beta = step["weight"], step["bias"]
    labels = walk.labels
    if isinstance(gamma, Raw) and isinstance(beta, Raw):
        outputs = labels.fresh(len(inputs))
        labels.relate(inputs, outputs)
        inverse = (var + step["eps"]).rsqrt()
        labels.frozen.append(Frozen(gamma.parameter, beta.parameter, mean * inverse, inverse, inputs, outputs))
    else:
        outputs = inputs
        labels.stop(inputs)
    return Label(outputs.reshape(-1, *(1,) * (len(step.shape) - 2)).expand(step.shape))


@rule("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")
def layer_norm(walk: Labelling, step: Step) -> Any:
    """All normalized channels together: their common scale is undone."""
    source = walk.of(step["input"])
    rank = len(step["normalized_shape"])
    inputs = walk.labels.along(source, tuple(range(source.ndim - rank))).reshape(-1)
    walk.labels.merge(inputs[None], (1,))
    walk.labels.squared.update(inputs.tolist())
    if "layer" in step.node.op:
        walk.labels.summed.update(inputs.tolist())
    plain = _normalized(walk, inputs)
    walk.labels.links.append((inputs, plain))
    if rank != 1:
        walk.labels.bend(inputs)
    last = torch.Size([*step.shape[: len(step.shape) - rank], len(inputs)])
    out = _affine(walk, plain, step["weight"], step["bias"], -1, last)
    if "layer" in step.node.op and rank == 1 and not isinstance(step["weight"], Tensor):
        walk.labels.centred.append((plain, step["bias"].parameter if isinstance(step["bias"], Raw) else ""))
    out = Label(out.labels.reshape(step.shape))
    return [out, *step.value[1:]] if isinstance(step.value, tuple | list) else out


@rule("group_norm", "native_group_norm")
def group_norm(walk: Labelling, step: Step) -> Any:
    """The channels of a group together."""
    inputs = channels(walk, walk.of(step["input"]), 1)
    groups = step["num_groups"] or step["group"]
    walk.labels.merge(inputs.reshape(groups, -1), (1,))
    walk.labels.bend(inputs)
    walk.labels.summed.update(inputs.tolist())
    plain = _normalized(walk, inputs)
    out = _affine(walk, plain, step["weight"], step["bias"], 1, step.shape)
    return [out, *step.value[1:]] if isinstance(step.value, tuple | list) else out


@rule("_weight_norm", "_weight_norm_interface")
def weight_norm(walk: Labelling, step: Step) -> Any:
    """``g v/||v||``: each vector's scale is undone, its gain stays."""
    v, g = step["v"], step["g"]
    direction, gain = walk.of(v), walk.of(g)
    dim = int(step["dim"] or 0)
    others = tuple(d for d in range(direction.ndim) if d != dim)
    walk.labels.merge(direction, others)
    walk.labels.bend(direction)
    lifts = isinstance(v, Raw) and isinstance(g, Raw) and dim == 0 and not v.offset + g.offset
    out = Normed(gain.expand(step.shape), v, g) if lifts else Label(gain.expand(step.shape))
    return [out, out] if isinstance(step.value, tuple | list) else out


@rule("lstm", "gru", "rnn_tanh")
def recurrent(walk: Labelling, step: Step) -> Any:
    """No scale passes; the units of a layer may be exchanged, each with its gates."""
    inputs = channels(walk, walk.of(step["input"]), -1)
    weights = list(step["params"])
    size, ways = 4 if step["has_biases"] else 2, 2 if step["bidirectional"] else 1
    if len(weights) != size * ways * step["num_layers"]:  # the outputs are projected
        return unknown(walk, step)
    units: list[Tensor] = []
    for layer in range(step["num_layers"]):
        own = [weights[i * size : (i + 1) * size] for i in range(layer * ways, (layer + 1) * ways)]
        units += [_cell(walk, step, way, inputs) for way in own]
        inputs = torch.cat(units[-ways:])
    first, *last = step.value
    states = torch.stack(units)[:, None] if first.ndim == 3 else torch.stack(units)
    return [Label(inputs.expand(first.shape)), *(Label(states.expand(v.shape)) for v in last)]


def _cell(walk: Labelling, step: Step, own: list[Any], inputs: Tensor) -> Tensor:
    """Return the labels of a recurrent layer's units."""
    labels = walk.labels
    width = own[1].index.shape[1]
    units = labels.fresh(width)
    labels.stop(units)
    labels.bend(units)
    gates = own[0].index.shape[0] // width
    for weight, read in zip(own[:2], (inputs, units), strict=True):
        outputs = weighted(walk, step, weight, read)
        labels.stop(outputs)
        labels.bend(outputs)
        labels.relate(outputs, units.repeat(gates))
    for bias in own[2:]:
        entry = walk.of(bias)
        labels.stop(entry)
        labels.relate(entry, units.repeat(gates))
    return units
