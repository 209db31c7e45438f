"""A second run of a few samples: alone instead of in a batch, in a wider or in a narrower precision."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import NormscopeError
from normscope.doctor.infinite_derivative import may_be_singular
from normscope.doctor.neighbours import PRODUCTS, RECURRENT, reach, reads
from normscope.doctor.precision import WideRun
from normscope.graph.capture import Captured, capture
from normscope.graph.inputs import ModelInputs
from normscope.graph.interpreter import as_floating, run
from normscope.graph.ir import Graph, Node

#: Entries of each value that are kept, samples that are run alone, and relative differences that are no rounding.
KEPT, ALONE, SHARE, COARSE = 4096, 8, 1e-3, 0.05
#: Operations that join entries of the first axis on purpose: nodes of a graph, times, pairs of samples.
JOINS = (
    "linear", "addmm", "mm", *PRODUCTS, *RECURRENT, "scatter", "scatter_add", "scatter_reduce", "index_add", "index",
    "index_select", "index_put", "gather", "embedding_bag", "conv1d", "conv2d", "conv3d", "convolution", "cdist",
    "sort", "topk",
)  # fmt: skip
#: Numbers in the weights from which on a wide run must be worth its time.
LARGE = 5_000_000


class Companions:
    """Some samples of a batch, run in company and alone.

    :meth:`visit` is called at each node of the first run, :meth:`visit_alone` at each node of the second.

    Attributes:
        size: how many samples there are together; 0 if the batch is of no use.
        alone: some of them, at most half, without company; where the size is fixed, one as often as there are others.
        differ: the nodes at which they give something else alone, in order.

    Args:
        graph: what is run.
        batch: the inputs of the first run.
    """

    def __init__(self, graph: Graph, batch: Sequence[Tensor]) -> None:
        size = batch[0].shape[0] if batch and batch[0].ndim else 0
        fits = size > 1 and all(t.ndim and t.shape[0] == size for t in batch)
        self.graph, self.size, self.differ = graph, size if fits else 0, list[str]()
        self._dynamic = graph.batch == "dynamic"
        self._count = max(1, min(ALONE, size // 2)) if self._dynamic else 1
        self._start = (size - self._count + 1) // 2  # in the middle, so that samples before and behind them count
        self._kept: dict[str, Tensor] = {}
        self.alone = [t[self._start : self._start + self._count] for t in batch] if fits else []
        if not self._dynamic:
            self.alone = [t.expand(size, *t.shape[1:]).contiguous() for t in self.alone]

    def visit(self, node: Node, value: Any, values: Mapping[str, Any]) -> None:
        """Keep some entries of what these samples give."""
        if self.size and node.name not in self._kept:
            part = _part(self.graph, node, value, self.size, self._start, self._count)
            if part is not None:
                self._kept[node.name] = part

    def visit_alone(self, node: Node, value: Any, values: Mapping[str, Any]) -> None:
        """Compare what these samples give alone with what was kept."""
        size, start = (self._count, 0) if self._dynamic else (self.size, self._start)
        before = self._kept.get(node.name)
        part = None if before is None else _part(self.graph, node, value, size, start, self._count)
        if before is not None and part is not None and _differ(before, part):
            self.differ.append(node.name)

    def culprit(self) -> Node | None:
        """Return the operation in which the samples of a batch meet, if an output shows it."""
        outputs = {name for n in self.graph if n.op == "output" for name in n.inputs()}
        before = reach(outputs.intersection(self.differ), reads(self.graph))
        first = next((self.graph[name] for name in self.differ if name in before), None)
        return None if first is None else self._reduction(first)

    def _reduction(self, node: Node) -> Node:
        """Return the last operation before a node that reads samples and gives something without their axis."""
        stack, seen = [node], set[str]()
        while stack:
            for name in stack.pop().inputs():
                source = self.graph[name]
                if name not in self.graph.moving or name in seen or source.shape is None or self._of_samples(source):
                    continue
                seen.add(name)
                if any(self._of_samples(self.graph[n]) for n in source.inputs()):
                    return source
                stack.append(source)
        return node

    def _of_samples(self, node: Node) -> bool:
        return _samples(self.graph, node) is not None


def _samples(graph: Graph, node: Node) -> int | None:
    """Return the axis that holds the samples, if there is one and no second; the first where their number is fixed."""
    shape = node.shape or ()
    if graph.batch != "dynamic":
        return 0 if shape[:1] == (int(graph.batch),) else None
    return shape.index(-1) if shape.count(-1) == 1 else None


def _part(graph: Graph, node: Node, value: Any, size: int, start: int, count: int) -> Tensor | None:
    """Return some entries of what some samples have in a value, spread over it; nothing if it has none."""
    axis = _samples(graph, node)
    if axis is None or not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
        return None
    if axis >= value.ndim or value.shape[axis] % size:
        return None
    each = value.shape[axis] // size
    flat = value.detach().narrow(axis, start * each, count * each).reshape(-1)
    return flat[:: max(1, flat.numel() // KEPT)].clone()


def _differ(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are unlike by more than rounding."""
    if a.shape != b.shape:
        return False
    coarse = a.dtype.itemsize <= 2
    a, b = a.double(), b.double()
    known = torch.isfinite(a)
    if bool((~torch.isfinite(b) & known).any()):
        return True
    if not bool(known.any()):
        return False
    scale = max(float(a[known].abs().max()), float(b[known].abs().max()))
    return float((a - b)[known].abs().max()) > (COARSE if coarse else SHARE) * scale


@dataclass(frozen=True)
class SecondRun:
    """Where samples that are alone give something else, and what the precision lost, as far as could be seen."""

    companions: Companions | None = None
    wide: WideRun | None = None


def again(captured: Captured, companions: Companions, batch: list[Tensor] | None) -> SecondRun:
    """Run some samples again: those of ``companions`` alone or, where they cannot be, a batch."""
    inputs = companions.alone if companions.size else batch
    if inputs is None:
        return SecondRun()
    # A wide run must be worth its time: a large network of torch's own layers alone loses nothing.
    large = sum(t.numel() for t in captured.tensors.values()) >= LARGE
    wide = WideRun(captured.graph)
    worth = not large or wide.short or any(map(may_be_singular, captured.graph))
    visits = ([wide.visit] if worth else []) + ([companions.visit_alone] if companions.size else [])
    if not _runs(captured, inputs, visits):
        return SecondRun()
    return SecondRun(companions if companions.size else None, wide if worth else None)


def _runs(captured: Captured, inputs: list[Tensor], visits: Sequence[Callable[..., None]]) -> bool:
    """Run a model, calling each of some functions at each node; return whether that was possible."""

    def visit(node: Node, value: Any, values: Mapping[str, Any]) -> None:
        for look in visits:
            look(node, value, values)

    try:
        with torch.no_grad():
            run(captured.graph, captured.tensors, inputs, visit)
    except (RuntimeError, ValueError):  # a batch of one with one value per channel
        return False
    return True


def in_precision(model: nn.Module, captured: Captured, dtype: torch.dtype) -> Captured | None:
    """Return a copy of a model captured in another precision; nothing if it cannot be copied, or not be run so."""
    try:
        inputs = ModelInputs(tuple(as_floating(captured.example, dtype)))
        return capture(copy.deepcopy(model).to(dtype), inputs, elsewhere=False)
    except (NormscopeError, RuntimeError, TypeError, ValueError):
        return None


def precision_run(captured: Captured, inputs: list[Tensor]) -> WideRun | None:
    """Return what the precision of a captured model loses on a few samples; nothing if they cannot be run."""
    wide = WideRun(captured.graph)
    few = inputs if captured.graph.batch != "dynamic" else [t[:ALONE] if t.ndim else t for t in inputs]
    dtypes = [t.dtype if t.is_floating_point() else None for t in captured.example]
    given = [as_floating(t.detach(), d) for t, d in zip(few, dtypes, strict=True)]
    return wide if _runs(captured, given, [wide.visit]) else None
