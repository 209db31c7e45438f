"""NS104: weight or spectral normalization whose scale the next normalizer of activations cancels."""

import torch
from torch import Tensor

from normscope.doctor.rule import Certainty, Findings, Rule, Subject, layer_of, place_of
from normscope.doctor.structure import NormalizedLayer, Structure, are_normalized_alike, propagated
from normscope.operators.expression import Expr
from normscope.operators.normalizer import normalizers


def channel_factor(layer: Expr) -> Tensor | None:
    """Return random positive factors, one for each output channel of a layer, or ``None`` if it has no channel axis."""
    op = layer.op
    if op is None or op.data.get("transposed"):
        return None
    if op.kind == "convolution":
        axis = len(layer.shape) - (op.data["weight"].ndim - 2) - 1
    else:
        axis = len(layer.shape) + int(op.data.get("axis", -1))
    shape = [n if i == axis else 1 for i, n in enumerate(layer.shape)]
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5


def cancels(structure: Structure, normalized: NormalizedLayer, factor: Tensor) -> bool:
    """Return whether a normalizer cancels a factor on the output of a layer, except for eps."""
    if normalized.spread.size < 2 or not structure.is_scale_invariant(normalized):
        return False
    y = torch.randn(normalized.layer.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    arrived = (propagated(normalized.layer, normalized.source, t) for t in (y, y * factor))
    return are_normalized_alike(normalized.spread, *arrived)


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield a finding for each weight or spectral normalization followed by a normalizer that cancels it."""
    for site in subject.weight_sites():
        undone = normalizers()[site.kind].symmetry
        if undone is None or undone.shift:
            continue
        for normalized in subject.structure.normalized_layers:
            if normalized.layer.op is None or normalized.layer.op.owner != layer_of(site):
                continue
            one = torch.full((1,), 2.0, dtype=torch.float64)
            factor = one if undone.per == "layer" else channel_factor(normalized.layer)
            if factor is not None and cancels(subject.structure, normalized, factor):
                after, layer = place_of(normalized.site), layer_of(site)
                yield rule.finding(
                    layer,
                    f"the scale that {site.kind} gives {layer or 'the layer'} is cancelled by {normalized.site.kind} "
                    f"{after} in training (eps aside)",
                    {"normalizer": after, "weights": site.kind},
                )
                break


RULE = Rule(
    code="NS104",
    title="weight normalization cancelled by a normalizer",
    certainty=Certainty.PROVED,
    statement="N(c x) = N(x) for c > 0, eps = 0",
    why="A normalizer of activations divides by the scale of its input, so it cancels the gain of weight normalization "
    "and the division of spectral normalization. The gain has no gradient, and the constant that spectral "
    "normalization should bound is set by the normalizer instead.",
    effect="the gain has no gradient; the bound of spectral normalization does not hold",
    fix="use one of the two: drop the parametrization, or drop the normalizer after it",
    example="model = nn.Sequential(\n"
    "    nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 8, 3, bias=False)), nn.BatchNorm2d(8)\n"
    ")",
    good="model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 8, 3)), nn.ReLU())",
    threads=("arcchang1236/CA-NoiseGAN/issues/3",),
)
