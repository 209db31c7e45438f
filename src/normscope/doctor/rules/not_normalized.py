"""NS608: a module that is named a normalizer but does not normalize."""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.doctor.neighbours import LAYERS, reach, reads
from normscope.doctor.rule import Certainty, Findings, Rule, Subject
from normscope.graph.interpreter import run
from normscope.graph.ir import Graph, Node
from normscope.graph.recognise import name_of
from normscope.operators.normalizer import normalizers

_CALLED = re.compile(r"norm|standardi|whiten|z_?score", re.IGNORECASE)
_PATH = re.compile(r"norm|standardi|whiten|z_?score|^(bn|ln|gn)\d*$", re.IGNORECASE)
_INVERSE = re.compile(r"(?:^|_)(?:de|un|inv|inverse)_?(?:norm|standardi|whiten)|(?:De|Un|Inv|Inverse)_?(?:[Nn]orm|S|W)")
_REDUCTIONS = ("mean", "var", "std", "var_mean", "std_mean", "sum", "linalg_vector_norm", "norm", "amax", "amin")
_STATISTICS = re.compile(r"mean|std|var|sigma|deviation", re.IGNORECASE)
_SAME = ("to", "_to_copy", "contiguous", "clone", "view", "reshape", "permute", "transpose", "flatten", "type_as")
#: The root mean square of a normalized tensor is within this factor of one; norms are equal if they vary by this share
#: of what the entries do; means are zero up to this share of the size.
FAR, EQUAL, ZERO = 3.0, 1e-2, 0.05


def candidates(subject: Subject) -> Iterator[tuple[str, list[Node]]]:
    """Yield the modules that are named normalizers, use statistics, and are not recognized as normalizers.

    Yields:
        The graph node of the output of a module, before its scale and shift, and all its nodes.
    """
    graph, depends, users = subject.graph, subject.graph.moving, subject.graph.users()
    known = {s.owner for s in subject.sites() if normalizers()[s.kind].verified}
    owned: dict[str, list[Node]] = {}
    for node in graph:
        if node.owner:
            owned.setdefault(node.owner, []).append(node)
    for path, nodes in owned.items():
        kind, last = nodes[0].owner_type, path.rpartition(".")[2]
        if not (_CALLED.search(kind) or _PATH.search(last)) or _INVERSE.search(kind) or _INVERSE.search(last):
            continue
        if path in known or any(name_of(n) in LAYERS or "softmax" in n.op for n in nodes):
            continue
        names = {n.name for n in nodes}
        if not _has_statistics(graph, nodes):
            continue
        ends = [n for n in nodes if n.name in depends and any(u not in names for u in users[n.name])]
        starts = {s for n in nodes for s in n.inputs() if s in depends and s not in names}
        if len(ends) == 1 and len(starts) == 1:
            yield _without_affine(graph, ends[0]).name, nodes


def _has_statistics(graph: Graph, nodes: list[Node]) -> bool:
    """Return whether some nodes reduce a tensor that depends on the input, or read a buffer named like a statistic."""
    for node in nodes:
        if name_of(node) in _REDUCTIONS and any(n in graph.moving for n in node.inputs()):
            return True
        if any(graph[n].op == "buffer" and _STATISTICS.search(graph[n].target) for n in node.inputs()):
            return True
    return False


def _without_affine(graph: Graph, node: Node) -> Node:
    """Return the node before a learned scale and shift."""
    back = reads(graph)
    while True:
        sources = [n for n in node.inputs() if n in graph.moving]
        others = [n for n in node.inputs() if n not in graph.moving]
        learned = bool(others) and any(graph[n].op == "parameter" for n in reach(others, back))
        plain = name_of(node) in _SAME or (name_of(node) in ("add", "sub", "mul", "div") and learned)
        if len(sources) != 1 or not plain or graph[sources[0]].owner != node.owner:
            return node
        node = graph[sources[0]]


def is_normalized(z: Tensor, *, divides: bool) -> bool:
    """Return whether a tensor is normalized along some of its axes; samples are along the first.

    Whatever the axes, a tensor with variance or mean square one in every group has mean square one as a whole.
    Otherwise its norms along some axes are all equal, it fills the range from -1 to 1, or, if there is no division, its
    means are zero.

    >>> is_normalized(torch.randn(64, 8), divides=True), is_normalized(9 * torch.randn(64, 8), divides=True)
    (True, False)
    """
    z = z.detach().double()
    size = float(z.square().mean().sqrt())
    if 1 / FAR <= size <= FAR or size == 0:
        return True
    if 0.99 <= float(z.abs().max()) <= 1.01:
        return True
    varied = min(1.0, float(z.var(0, correction=0).mean().sqrt()) / size)
    axes = [a for a in range(z.ndim) if z.shape[a] > 1]
    for count in range(1, len(axes) + 1):
        for group in itertools.combinations(axes, count):
            norms = z.square().sum(group).sqrt()
            if norms.numel() > 1 and float(norms.std()) <= EQUAL * varied * float(norms.mean()):
                return True
            if not divides and float(z.mean(group).abs().max()) <= ZERO * size:
                return True
    return False


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield the modules whose output on the data is not normalized."""
    yield from _sums_for_means(rule, subject)
    found = dict(candidates(subject))
    if not found or subject.batch is None:
        return
    values: dict[str, Tensor] = {}

    def visit(node: Node, value: Any, before: Mapping[str, Any]) -> None:
        if node.name in found and isinstance(value, Tensor) and value.is_floating_point():
            values[node.name] = value

    with torch.no_grad():
        run(subject.graph, subject.captured.tensors, subject.batch, visit)
    for name, value in values.items():
        divides = any(name_of(n) in ("div", "rsqrt", "reciprocal", "sqrt", "pow") for n in found[name])
        if not bool(torch.isfinite(value).all()) or value.ndim < 2 or is_normalized(value, divides=divides):
            continue
        size, mean = float(value.double().square().mean().sqrt()), float(value.double().mean())
        first = found[name][0]
        yield rule.finding(
            first.owner,
            f"this {first.owner_type} does not normalize: on the data its output, without scale and shift, has a root "
            f"mean square of {size:.3g} (mean {mean:.3g}), and its norms are not equal along any axis",
            {"root_mean_square": size, "mean": mean, "samples": subject.batched},
        )


def _sums_for_means(rule: Rule, subject: Subject) -> Findings:
    """Yield modules named RMSNorm that scale vectors to length one."""
    for site in subject.sites():
        if site.kind != "l2_norm" or site.spread is None:
            continue
        kind = subject.graph[site.node].owner_type
        scale = 1.0 if site.gamma is None else float(site.gamma.detach().double().abs().median())
        if re.search(r"rms_?norm", kind, re.IGNORECASE) and scale * FAR < site.spread.size**0.5:
            yield rule.finding(
                site.owner,
                f"this {kind} divides by the root of the sum of {site.spread.size} squares, not of their mean: its "
                f"output has a root mean square of {scale / site.spread.size**0.5:.3g}",
                {"root_mean_square": scale / site.spread.size**0.5, "entries": site.spread.size},
                certainty=Certainty.PROVED,
                fix="take the mean of the squares, or multiply by the root of the number of entries",
            )


_NORM = (
    "class FeatureNorm(nn.Module):\n"
    "    def __init__(self, mean, std):\n"
    "        super().__init__()\n"
    "        self.register_buffer('mean', mean)\n"
    "        self.register_buffer('std', std)\n\n"
    "    def forward(self, x):\n"
    "        return {}\n\n\n"
    "data = 50 + 9 * torch.randn(64, 8)\n"
    "model = nn.Sequential(FeatureNorm(data.mean(0), data.std(0)), nn.Linear(8, 2))"
)

RULE = Rule(
    code="NS608",
    title="normalizer that does not normalize",
    certainty=Certainty.MEASURED,
    statement="mean of z^2 over groups of mean square one is one",
    why="A normalizer written by hand is a formula with axes, brackets and a root. A misplaced bracket, a variance of "
    "variances, or a variance that cancels in float32 gives numbers of any size, and no error. Whatever the axes, a "
    "normalized tensor has a root mean square near one before scale and shift, or norms that are all equal.",
    effect="the layers after it see features of unexpected scale; training is slow or diverges",
    fix="compare the module with torch's own on the same input (F.layer_norm, F.batch_norm, F.instance_norm)",
    example=_NORM.format("x - self.mean / self.std  # a bracket is missing"),
    good=_NORM.format("(x - self.mean) / self.std"),
    needs=("program", "data"),
    threads=("znxlwm/UGATIT-pytorch/issues/30", "andrewliao11/gail-tf/issues/8", "k2-fsa/sherpa-onnx/pull/3857"),
    explains=("NS504",),
)
