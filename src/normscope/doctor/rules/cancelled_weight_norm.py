"""NS104: a normalizer of weights whose gain the next normalizer of activations cancels."""

import torch
from torch import Tensor

from normscope.doctor.rule import Certainty, Findings, Rule, Subject, layer_of, place_of
from normscope.doctor.structure import Feed, Structure, are_normalized_alike, carried
from normscope.operators.expression import Expr
from normscope.operators.normalizer import normalizers


def channel_factor(layer: Expr, seed: int = 0) -> Tensor | None:
    """Return random positive factors, one for each output channel of a layer, or ``None`` if it has no such axis."""
    op = layer.op
    if op is None or op.data.get("transposed"):
        return None
    if op.kind == "convolution":
        axis = len(layer.shape) - (op.data["weight"].ndim - 2) - 1
    else:
        axis = len(layer.shape) + int(op.data.get("axis", -1))
    shape = [n if i == axis else 1 for i, n in enumerate(layer.shape)]
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5


def cancels(structure: Structure, feed: Feed, factor: Tensor) -> bool:
    """Return whether a normalizer does not notice a factor on the output of a layer, eps left aside."""
    if feed.spread.size < 2 or not structure.is_scale_invariant(feed):
        return False
    y = torch.randn(feed.layer.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return are_normalized_alike(feed.spread, *(carried(feed.layer, feed.source, t) for t in (y, y * factor)))


def look(rule: Rule, subject: Subject) -> Findings:
    """Yield a finding for each weight or spectral normalization followed by a normalizer that undoes it."""
    for site in subject.weight_sites():
        undone = normalizers()[site.kind].symmetry
        if undone is None or undone.shift:
            continue
        for feed in subject.structure.feeds:
            if feed.layer.op is None or feed.layer.op.owner != layer_of(site):
                continue
            one = torch.full((1,), 2.0, dtype=torch.float64)
            factor = one if undone.per == "layer" else channel_factor(feed.layer)
            if factor is not None and cancels(subject.structure, feed, factor):
                after, layer = place_of(feed.site), layer_of(site)
                yield rule.finding(
                    layer,
                    f"the scale that {site.kind} gives {layer or 'the layer'} is cancelled by {feed.site.kind} {after} "
                    "while training (eps aside)",
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
