"""Rotate residual streams so that no channel is an outlier: the same function with weights that quantize better."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from normscope.geometry.candidates.matrices import ChannelFrame, MatrixFamily, centred_basis, matrix_groups
from normscope.geometry.certificate import verify
from normscope.geometry.channels.labelling import label_channels
from normscope.geometry.channels.labels import EntrywiseParameter
from normscope.geometry.channels.network import LabelledNetwork, TensorLabels
from normscope.geometry.function import ModelFunction
from normscope.graph.ir import Node


@dataclass(frozen=True, eq=False)
class Rotation:
    """One residual stream after an orthogonal change of its channels."""

    width: int  #: its number of channels
    parameters: tuple[str, ...]  #: what changed
    before: float  #: largest over median channel (root mean square over the data) before
    after: float  #: the same after
    state: dict[str, Tensor] = field(repr=False)  #: the new parameters


def spread_matrix(width: int, *, centred: bool = False, seed: int = 0) -> Tensor:
    """Return an orthogonal matrix that spreads every channel over all: Hadamard with random signs, or random.

    >>> bool(torch.allclose(spread_matrix(8).abs(), torch.full((8, 8), 8**-0.5, dtype=torch.float64)))
    True
    """
    generator = torch.Generator().manual_seed(seed)
    if centred:
        basis = centred_basis(width)
        q, _ = torch.linalg.qr(torch.randn(width - 1, width - 1, generator=generator, dtype=torch.float64))
        return basis @ q @ basis.mT + 1.0 / width
    if width & (width - 1) == 0:
        signs = torch.randint(0, 2, (width,), generator=generator) * 2 - 1
        hadamard = torch.ones(1, 1, dtype=torch.float64)
        while len(hadamard) < width:
            hadamard = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), hadamard)  # Sylvester's, of 1s and -1s
        return hadamard * signs / width**0.5
    return torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0]


def folded(family: MatrixFamily, point: Mapping[str, Tensor]) -> tuple[MatrixFamily, dict[str, Tensor]] | str:
    """Return the family and parameters with every gain of the space moved into the weights that read it.

    Returns:
        Both, or why it cannot be done.
    """
    moved = dict(point)
    uses = Counter(product.parameter for product in family.labels.products)
    for frame, sites in zip(family.frames, family.sites, strict=True):
        if not frame.gains:
            continue
        if len(frame.gains) > 1:
            return "there are two gains in a row"
        name, index = frame.gains[0]
        offset = family.labels.offsets.get(name, 0.0)
        gain = moved[name].reshape(-1)[index] + offset
        if bool((gain == gain[0]).all()) and float(gain[0]) != 0:
            continue
        if bool((gain == 0).any()):
            return f"{name} has zeros"
        for site, rows, columns in sites:
            value = moved[site.parameter].clone()
            if isinstance(site, EntrywiseParameter):
                value[..., rows] /= gain
            elif columns and uses[site.parameter] > 1:
                return f"{site.parameter} is used in several places, so {name} cannot be moved into it"
            else:
                wide = gain.reshape(1, -1, *(1,) * (site.index.ndim - 2))
                for places in columns:
                    value.view(-1)[site.index[:, places]] *= wide
            moved[site.parameter] = value
        moved[name] = moved[name].clone()
        moved[name].view(-1)[index] = 1.0 - offset
    return replace(family, frames=tuple(ChannelFrame(f.labels, (), f.dual) for f in family.frames)), moved


def rotate(function: ModelFunction, seed: int = 0) -> tuple[list[Rotation], list[str]]:
    """Rotate every residual stream that allows it.

    Args:
        function: the model; its parameters are not changed.
        seed: of the rotation.

    Returns:
        What was rotated, and why other streams were not.
    """
    net = label_channels(function)
    labels = net.labels
    exact = function.exact()
    done: list[Rotation] = []
    reasons: list[str] = []
    point: dict[str, Tensor] = dict(function.point)
    candidates = [g for g in matrix_groups(function, labels) if g.kind == "rotation"]
    if not candidates:
        reasons.append("no residual stream is read only by RMSNorms or LayerNorms before linear layers")
    for group in candidates:
        family = group.family
        assert isinstance(family, MatrixFamily)
        plain = folded(family, point)
        if isinstance(plain, str):
            reasons.append(f"the stream of {group.parameters[0]}: {plain}")
            continue
        family, moved = plain
        here = replace(exact, tensors={**exact.tensors, **moved})
        if not verify(here, [replace(group, family=family)], seed):
            reasons.append(f"the stream of {group.parameters[0]}: something other than the normalizers reads it")
            continue
        matrix = spread_matrix(family.width, centred=family.algebra == "centred", seed=seed)
        turned = {**moved, **family.apply(moved, matrix)}
        before, after = (channel_ratio(net, family.frames[0], p) for p in (point, turned))
        changed = tuple(name for name in turned if not torch.equal(turned[name], point[name]))
        point = turned
        done.append(Rotation(family.width, changed, before, after, {name: point[name] for name in changed}))
    return done, reasons


def channels(net: LabelledNetwork, frame: ChannelFrame, point: Mapping[str, Tensor]) -> list[Tensor]:
    """Return every tensor of a stream of a labelled network at some parameters, channels last."""
    wanted = frame.labels
    found: list[Tensor] = []

    def visit(node: Node, value: Any, values: Any) -> None:
        state = net.states.get(node.name)
        if (
            not isinstance(state, TensorLabels)
            or not isinstance(value, Tensor)
            or state.labels.shape[-1:] != (len(wanted),)
        ):
            return
        if net.labels.channels(state.labels.reshape(-1, len(wanted))[0]) == wanted:
            found.append(value.detach())

    with torch.no_grad():
        net.function.outputs(point, visit)
    return found


def channel_ratio(net: LabelledNetwork, frame: ChannelFrame, point: Mapping[str, Tensor]) -> float:
    """Return the largest over the median root mean square of the channels of a stream, the worst of its tensors."""
    worst = 1.0
    for value in channels(net, frame, point):
        size = value.reshape(-1, value.shape[-1]).square().mean(0).sqrt()
        worst = max(worst, float(size.max() / size.median().clamp_min(1e-300)))
    return worst
