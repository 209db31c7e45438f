"""NS305: a normalizer that sums squares in half precision."""

from collections.abc import Container

import torch

from normscope.doctor.neighbours import between
from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, place_of
from normscope.graph.ir import Graph
from normscope.graph.recognise import name_of
from normscope.operators.site import Site

#: Reductions whose squares are computed before, in half precision; torch's norm and variance work in float32.
_REDUCTIONS = ("mean", "sum")
_HALF = ("float16", "bfloat16")


def _reduced(graph: Graph, site: Site, reductions: Container[str]) -> list[str]:
    """Return the precisions of some reductions inside a written-out normalizer; none if the graph lacks it."""
    if not {site.node, site.source} <= {n.name for n in graph}:
        return []
    inside = (graph[name] for name in sorted(between(graph, [site.source], site.node)))
    return [n.dtype for n in inside if name_of(n) in reductions]


def widened(graph: Graph, site: Site) -> bool:
    """Return whether a written-out normalizer reduces in float32 or wider."""
    reduced = _reduced(graph, site, (*_REDUCTIONS, "var", "std", "norm", "linalg_vector_norm"))
    return bool(reduced) and not any(dtype in _HALF for dtype in reduced)


def planned_graph(subject: Subject) -> Graph | None:
    """Return the graph in the planned precision, or the captured one if no half precision is planned."""
    if subject.dtype not in (torch.float16, torch.bfloat16):
        return subject.graph
    if not any(s.written_out for s in subject.sites()) or subject.planned is None:
        return None
    return subject.planned.graph


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield every normalizer that is written out and does not widen its input first."""
    graph = planned_graph(subject)
    if graph is None:
        return
    for site in subject.sites():
        reduced = _reduced(graph, site, _REDUCTIONS) if site.written_out else []
        dtype = next((dtype for dtype in reduced if dtype in _HALF), "")
        if dtype:
            short = dtype == "float16"
            yield rule.finding(
                place_of(site),
                f"{site.kind} sums squares in {dtype}: "
                + ("entries above 256 overflow" if short else "only two digits of the mean square are left"),
                {"dtype": dtype},
                severity=None if short else Severity.INFO,
            )


_NORM = (
    "class Norm(nn.Module):\n"
    "    def forward(self, x):\n"
    "        y = {}\n"
    "        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)){}\n\n\n"
    "model = nn.Sequential(nn.Linear(8, 8), Norm()).half()\n"
    "options = {{'input_shape': (8,)}}"
)

RULE = Rule(
    code="NS305",
    title="normalizer reduces in half precision",
    certainty=Certainty.PROVED,
    statement="256^2 > 65504",
    why="torch's own normalizers convert half precision to float32 internally. A normalizer written by hand does so "
    "only if its code does: in float16 the square of 256 is infinite and the output zero or NaN; in bfloat16 the mean "
    "has two significant digits.",
    effect="NaN or zeros as soon as activations grow, as they do in deep networks",
    fix="convert first: x = x.float(), normalize, then .to(dtype); or use nn.RMSNorm or nn.LayerNorm",
    example=_NORM.format("x", ""),
    good=_NORM.format("x.float()", ".to(x.dtype)"),
    threads=("pytorch/pytorch/pull/133085", "skyzh/tiny-llm/pull/18"),
)
