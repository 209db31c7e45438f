"""NS219: statistics over time in an otherwise causal network."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.doctor.neighbours import RECURRENT, ancestors, outputs_of
from normscope.doctor.rule import Certainty, Findings, Rule, Subject, place_of
from normscope.graph.interpreter import run
from normscope.graph.ir import Graph, Node
from normscope.graph.recognise import name_of
from normscope.operators.site import Site

#: Fewest time steps, and smallest relative difference of values that counts.
FEWEST, CHANGED = 8, 1e-5
_ATTENTION = ("softmax", "_softmax", "scaled_dot_product_attention")


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield the normalizers that are the only reason why earlier outputs depend on later inputs."""
    captured = subject.captured
    if captured.graph.batch != "dynamic" or len(captured.example) != 1:
        return
    x = captured.example[0] if subject.batch is None else subject.batch[0]
    axes = {2: (1,), 3: (1, 2)}.get(x.ndim, ())
    for axis in axes:
        steps = x.shape[axis]
        over = [s for s in subject.sites() if _spans_time(s, steps) and _remembers(subject.graph, s)]
        if steps >= FEWEST and over and x.shape[0] > 1:
            for site in _culprits(subject, x, axis, over):
                yield rule.finding(
                    place_of(site),
                    f"earlier outputs depend on the last of {steps} time steps only through the statistics of "
                    f"{site.kind}, which are computed over time: without it the network is causal",
                    {"steps": steps},
                )


def _spans_time(site: Site, steps: int) -> bool:
    """Return whether the groups of a normalizer may contain all time steps."""
    return site.spread is not None and steps in site.shape[1:] and site.spread.size % steps == 0


def _remembers(graph: Graph, site: Site) -> bool:
    """Return whether a layer before a normalizer mixes time steps; otherwise the network is not meant to be causal."""
    for node in ancestors(graph, site.source):
        if name_of(node) in (*RECURRENT, *_ATTENTION):
            return True
        if name_of(node) == "conv1d" and len(node.inputs()) > 1 and (graph[node.inputs()[1]].shape or (1,))[-1] > 1:
            return True
    return False


def _culprits(subject: Subject, x: Tensor, axis: int, over: list[Site]) -> list[Site]:
    """Return the normalizers that pass a change of the last step on to earlier ones, if nothing else does.

    One sample is run together with a copy that has another last step. If a normalizer changes earlier steps, its change
    is undone, so that the next normalizer is judged on its own.
    """
    captured, steps = subject.captured, x.shape[axis]
    other = x[:1].clone()
    other.narrow(axis, steps - 1, 1).copy_(x[1:2].narrow(axis, steps - 1, 1))
    ends = {(s.end or s.node): s for s in over}
    clean: dict[str, set[int]] = {}
    found: list[Site] = []

    def visit(node: Node, value: Any, values: Mapping[str, Any]) -> Tensor | None:
        if not isinstance(value, Tensor) or value.ndim < 2 or value.shape[0] != 2 or not value.is_floating_point():
            return None
        clean[node.name] = {a for a in range(1, value.ndim) if value.shape[a] == steps and not _early(value, a)}
        site = ends.get(node.name)
        kept = set() if site is None else clean.get(site.source, set()) - clean[node.name]
        if site is None or not kept or clean[node.name]:
            return None
        (along, *_) = sorted(kept)
        found.append(site)
        mended = value.clone()
        mended[1:].narrow(along, 0, steps - 1).copy_(value[:1].narrow(along, 0, steps - 1))
        clean[node.name] = {along}
        return mended

    with torch.no_grad():
        run(captured.graph, captured.tensors, [torch.cat([x[:1], other])], visit)
    outputs = outputs_of(captured.graph)
    return found if outputs and all(clean.get(name) for name in outputs) else []


def _early(value: Tensor, axis: int) -> bool:
    """Return whether two samples differ before their last step along an axis."""
    first, second = (value[i : i + 1].narrow(axis, 0, value.shape[axis] - 1) for i in (0, 1))
    return bool((first - second).abs().max() > CHANGED * first.abs().max().clamp_min(1e-30))


_CAUSAL = (
    "class Causal(nn.Conv1d):\n"
    "    def forward(self, x):\n"
    "        return super().forward(nn.functional.pad(x, (2, 0)))\n\n\n"
    "model = nn.Sequential({}, nn.ReLU(), Causal(8, 2, 3))\n"
    "data = torch.randn(16, 4, 20)"
)

RULE = Rule(
    code="NS219",
    title="statistics over time in a causal network",
    certainty=Certainty.MEASURED,
    why="Causal convolutions, unidirectional recurrent layers and masked attention keep later inputs from earlier "
    "outputs. A normalizer with statistics over time (GroupNorm or InstanceNorm of sequences, LayerNorm over the whole "
    "sequence) lets them through. The rule replaces the last time step of a sample: it reports the normalizer if "
    "earlier outputs change and would not change without it.",
    effect="training sees the future; in streaming, where there is none, results are worse than offline",
    fix="normalize each time step by itself (LayerNorm over channels), or use BatchNorm or cumulative statistics",
    example=_CAUSAL.format("Causal(4, 8, 3), nn.GroupNorm(1, 8)"),
    good=_CAUSAL.format("Causal(4, 8, 3, bias=False), nn.BatchNorm1d(8)"),
    needs=("program", "data"),
    threads=("espnet/espnet/issues/5900",),
)
