"""A second run of a few samples: without the rest of their batch, or in a wider or narrower precision."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import NormscopeError
from normscope.doctor.infinite_derivative import may_be_singular
from normscope.doctor.neighbours import PRODUCTS, RECURRENT, outputs_of, reach, reads
from normscope.doctor.precision import WideRun
from normscope.graph.capture import Captured, capture
from normscope.graph.inputs import ModelInputs
from normscope.graph.interpreter import as_floating, run
from normscope.graph.ir import Graph, Node

#: Entries kept of each value, samples run alone, and relative differences beyond rounding (float32, half precision).
KEPT, ALONE, SHARE, COARSE = 4096, 8, 1e-3, 0.05
#: Operations that combine entries of the first axis on purpose: nodes of a graph, time steps, pairs of samples.
JOINS = (
    "linear", "addmm", "mm", *PRODUCTS, *RECURRENT, "scatter", "scatter_add", "scatter_reduce", "index_add", "index",
    "index_select", "index_put", "gather", "embedding_bag", "conv1d", "conv2d", "conv3d", "convolution", "cdist",
    "sort", "topk",
)  # fmt: skip
#: With this many weights, a run in float64 is only made where precision may be lost.
LARGE = 5_000_000


class CouplingTest:
    """Tests whether the samples of a batch affect each other: some of them are run within the batch, and alone.

    :meth:`visit` is called at each node of the first run, :meth:`visit_alone` at each node of the second.

    Attributes:
        size: number of samples in the batch; 0 if it cannot be used.
        alone: at most half of the samples, without the others; if the batch size is fixed, one sample repeated.
        differ: the nodes at which the values differ, in order.

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
        self._start = (size - self._count + 1) // 2  # in the middle, with other samples before and after them
        if 2 * self._start == size - self._count > 2:  # a reversed batch would have the same samples there
            self._start += 1
        self._kept: dict[str, Tensor] = {}
        self.alone = [t[self._start : self._start + self._count] for t in batch] if fits else []
        if not self._dynamic:
            self.alone = [t.expand(size, *t.shape[1:]).contiguous() for t in self.alone]

    def visit(self, node: Node, value: Any, values: Mapping[str, Any]) -> None:
        """Keep some entries of the values of these samples."""
        if self.size and node.name not in self._kept:
            part = _part(self.graph, node, value, self.size, self._start, self._count)
            if part is not None:
                self._kept[node.name] = part

    def visit_alone(self, node: Node, value: Any, values: Mapping[str, Any]) -> None:
        """Compare the values of these samples alone with those kept."""
        size, start = (self._count, 0) if self._dynamic else (self.size, self._start)
        before = self._kept.get(node.name)
        part = None if before is None else _part(self.graph, node, value, size, start, self._count)
        if before is not None and part is not None and _differ(before, part):
            self.differ.append(node.name)

    def culprit(self) -> Node | None:
        """Return the operation that couples the samples of a batch, if it changes an output."""
        before = reach(outputs_of(self.graph).intersection(self.differ), reads(self.graph))
        first = next((self.graph[name] for name in self.differ if name in before), None)
        return None if first is None else self._reduction(first)

    def _reduction(self, node: Node) -> Node:
        """Return the last operation before a node that reduces the axis of samples."""
        stack, seen = [node], set[str]()
        while stack:
            for name in stack.pop().inputs():
                source = self.graph[name]
                if name not in self.graph.moving or name in seen or source.shape is None or self._has_samples(source):
                    continue
                seen.add(name)
                if any(self._has_samples(self.graph[n]) for n in source.inputs()):
                    return source
                stack.append(source)
        return node

    def _has_samples(self, node: Node) -> bool:
        return _sample_axis(self.graph, node) is not None


def _sample_axis(graph: Graph, node: Node) -> int | None:
    """Return the axis of samples, if there is exactly one; with a fixed batch size, the first axis."""
    shape = node.shape or ()
    if graph.batch != "dynamic":
        return 0 if shape[:1] == (int(graph.batch),) else None
    return shape.index(-1) if shape.count(-1) == 1 else None


def _part(graph: Graph, node: Node, value: Any, size: int, start: int, count: int) -> Tensor | None:
    """Return some evenly spaced entries that belong to some samples, or ``None`` if the value has no such axis."""
    axis = _sample_axis(graph, node)
    if axis is None or not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
        return None
    if axis >= value.ndim or value.shape[axis] % size:
        return None
    each = value.shape[axis] // size
    flat = value.detach().narrow(axis, start * each, count * each).reshape(-1)
    return flat[:: max(1, flat.numel() // KEPT)].clone()


def _differ(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors differ by more than rounding."""
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
    """Results of a second run, as far as it was possible: coupled samples, and lost precision."""

    coupling: CouplingTest | None = None
    wide: WideRun | None = None


def run_again(captured: Captured, coupling: CouplingTest, batch: list[Tensor] | None) -> SecondRun:
    """Run some samples again: those of ``coupling`` alone or, if that is not possible, a batch."""
    inputs = coupling.alone if coupling.size else batch
    if inputs is None:
        return SecondRun()
    # A run in float64 takes time, and a large network of torch's own layers in float32 loses no precision.
    large = sum(t.numel() for t in captured.tensors.values()) >= LARGE
    wide = WideRun(captured.graph)
    worth = not large or wide.short or any(map(may_be_singular, captured.graph))
    visits = ([wide.visit] if worth else []) + ([coupling.visit_alone] if coupling.size else [])
    if not _runs(captured, inputs, visits):
        return SecondRun()
    return SecondRun(coupling if coupling.size else None, wide if worth else None)


def _runs(captured: Captured, inputs: list[Tensor], visits: Sequence[Callable[..., None]]) -> bool:
    """Run a model, calling some functions at each node, and return whether that was possible."""

    def visit(node: Node, value: Any, values: Mapping[str, Any]) -> None:
        for function in visits:
            function(node, value, values)

    try:
        with torch.no_grad():
            run(captured.graph, captured.tensors, inputs, visit)
    except (RuntimeError, ValueError):  # a batch of one with one value per channel
        return False
    return True


def captured_in(model: nn.Module, captured: Captured, dtype: torch.dtype) -> Captured | None:
    """Return a copy of a model captured in another precision, or ``None`` if it cannot be copied or run in it."""
    try:
        inputs = ModelInputs(tuple(as_floating(captured.example, dtype)))
        return capture(copy.deepcopy(model).to(dtype), inputs, elsewhere=False)
    except (NormscopeError, RuntimeError, TypeError, ValueError):
        return None


def precision_run(captured: Captured, inputs: list[Tensor]) -> WideRun | None:
    """Run a captured model on a few samples with float64 beside it; return ``None`` if they cannot be run."""
    wide = WideRun(captured.graph)
    few = inputs if captured.graph.batch != "dynamic" else [t[:ALONE] if t.ndim else t for t in inputs]
    dtypes = [t.dtype if t.is_floating_point() else None for t in captured.example]
    given = [as_floating(t.detach(), d) for t, d in zip(few, dtypes, strict=True)]
    return wide if _runs(captured, given, [wide.visit]) else None
