"""NS601: units whose input never leaves the flat part of their activation."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.doctor.modules import listed_channels
from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, place_of
from normscope.graph.interpreter import call
from normscope.graph.ir import Node, Ref
from normscope.operators.site import Site

#: Share of dead units in a layer that is worth a warning, and the fewest samples to judge by.
SHARE, FEWEST = 0.2, 32
_POINTS = 33
#: Relative widening of an interval of one point: a constant input does not make the activation flat.
_AROUND = 1e-3


def flat_on(node: Node, low: Tensor, high: Tensor) -> Tensor:
    """Return for each interval whether an elementwise activation is constant on it (around it, if it is a point)."""
    steps = torch.linspace(0, 1, _POINTS, dtype=torch.float64).unsqueeze(1)
    low, high = low.double(), high.double()
    around = torch.where(low == high, _AROUND * low.abs().clamp_min(_AROUND), 0.0)
    points = low - around + steps * (high - low + 2 * around)
    first = next((a.name for a in node.args if isinstance(a, Ref)), "")
    try:
        values = call(node, {first: points}, torch.float64)
    except (RuntimeError, LookupError, TypeError):  # it has other inputs, or is not elementwise
        return torch.zeros(low.shape, dtype=torch.bool)
    if not isinstance(values, Tensor) or values.shape != points.shape:
        return torch.zeros(low.shape, dtype=torch.bool)
    return (values == values[:1]).all(0)


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield layers with units that are provably dead for every input, then those that are dead on the data."""
    yield from _by_proof(rule, subject)
    if subject.seen is None or subject.seen.samples < FEWEST:
        return
    owners = {a.atom.name: a.atom.owner for a in subject.program.atoms}
    for name, seen in subject.seen.before_activations.items():
        if not seen.moments.count or seen.moments.low.numel() < 2:
            continue
        dead = flat_on(subject.graph[name], seen.moments.low.cpu(), seen.moments.high.cpu())
        where = f"units are constant on all {subject.seen.samples} samples"
        why = "their input stays where the activation is flat"
        yield from _findings(rule, owners.get(name) or name, dead, where, why, {"samples": subject.seen.samples})


def _by_proof(rule: Rule, subject: Subject) -> Findings:
    """Yield normalizers whose scale and shift keep some channels in the flat part of the next activation.

    A centred group of n entries has normalized entries of at most ``sqrt(n - 1)``, so channel c lies within
    ``beta_c +- |gamma_c| sqrt(n - 1)`` whatever the input.
    """
    graph = subject.graph
    users = graph.users()
    for site in subject.sites():
        reach = _reach(site)
        following = [graph[u] for u in users.get(site.node, ())]
        if reach is None or len(following) != 1 or site.written_out:
            continue
        node = following[0]
        if node.shape != graph[site.node].shape or len(node.inputs()) != 1:
            continue
        where = "channels are constant for every input"
        why = "the scale and shift of this normalizer keep them where the activation after it is flat"
        fix = "raise the shift of these channels (or their scale, if it is zero), re-initialize them, or prune them"
        dead = flat_on(node, *reach)
        yield from _findings(rule, place_of(site), dead, where, why, fix=fix, certainty=Certainty.PROVED)


def _findings(
    rule: Rule, place: str, dead: Tensor, where: str, why: str, evidence: Mapping[str, int] | None = None, **rest: Any
) -> Findings:
    """Yield the finding for one layer, if any of its units is dead."""
    which, of = dead.nonzero().flatten().tolist(), dead.numel()
    if which:
        yield rule.finding(
            place,
            f"{len(which)} of {of} {where} ({listed_channels(which)}): {why}",
            {"dead": len(which), "of": of, **(evidence or {}), "channels": ", ".join(map(str, which))},
            severity=Severity.WARNING if len(which) >= SHARE * of else Severity.INFO,
            **rest,
        )


def _reach(site: Site) -> tuple[Tensor, Tensor] | None:
    """Return the interval that contains each channel after a normalizer for every input."""
    if site.gamma is None or site.beta is None or site.gamma.numel() < 2:
        return None
    gamma, beta = site.gamma.detach().double().flatten().cpu(), site.beta.detach().double().flatten().cpu()
    if site.spread is None:
        farthest = torch.zeros_like(gamma).masked_fill(gamma != 0, math.inf)
    else:
        n = site.spread.size
        farthest = gamma.abs() * math.sqrt(max(n - 1 if site.spread.centered else n, 0) / site.spread.factor)
    wide = farthest.clamp(max=1e300)
    return beta - wide, beta + wide


_NET = (
    "model = nn.Sequential(nn.Linear(8, 8), nn.{}(), nn.Linear(8, 2)).eval()\n"
    "model[0].bias.data[:3] = -100.0\n"
    "data = torch.randn(64, 8)"
)

RULE = Rule(
    code="NS601",
    title="dead units",
    certainty=Certainty.MEASURED,
    statement="normscope Proposition BN-7",
    why="A unit whose input never leaves the flat part of its activation passes no gradient and carries no signal: it "
    "cannot recover by itself and wastes capacity of its layer.",
    effect="lost capacity: these units pass no signal and no gradient",
    fix="lower the learning rate or raise the shift of its normalizer; re-initialize the unit; use a leaky activation",
    example=_NET.format("ReLU"),
    good=_NET.format("LeakyReLU"),
    threads=("Yang7879/3D-RecGAN/issues/6",),
)
