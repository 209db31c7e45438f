"""Whether the output for a sample depends on the others of its batch: samples run together and alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from normscope.doctor.neighbours import reach, reads
from normscope.graph.ir import Graph, Node

#: Entries of each value that are kept, samples that are run alone, and relative differences that are no rounding.
KEPT, ALONE, SHARE, COARSE = 4096, 8, 1e-3, 0.05
#: Operations that join entries of the first axis on purpose: nodes of a graph, times, pairs of samples.
JOINS = (
    "matmul", "mm", "bmm", "linear", "einsum", "baddbmm", "addmm", "scaled_dot_product_attention", "lstm", "gru",
    "rnn_tanh", "rnn_relu", "scatter", "scatter_add", "index_add", "index", "index_select", "gather", "index_put",
    "embedding_bag", "conv1d", "conv2d", "conv3d", "convolution", "scatter_reduce", "cdist", "sort", "topk",
)  # fmt: skip


@dataclass(eq=False)
class Companions:
    """Some samples of the first batch, run in company and alone.

    :meth:`visit` is called at each node of the first run, :meth:`visit_alone` at each node of the second.
    """

    graph: Graph  #: what is run
    inputs: list[Tensor] = field(default_factory=list)  #: the first batch
    differ: list[str] = field(default_factory=list)  #: the nodes at which they give something else alone, in order
    _kept: dict[str, Tensor] = field(default_factory=dict)

    def begin(self, batch: Sequence[Tensor]) -> bool:
        """Take the first batch that is run; tell whether it is of use."""
        size = batch[0].shape[0] if batch and batch[0].ndim else 0
        fits = all(t.ndim and t.shape[0] == size for t in batch)
        if size > 1 and fits and not self.inputs:
            self.inputs = list(batch)
            return True
        return False

    @property
    def count(self) -> int:
        """Return how many samples are compared: at most half of the batch, one where its size is fixed."""
        size = self.inputs[0].shape[0] if self.inputs else 0
        return min(size, max(1, min(ALONE, size // 2))) if self.graph.batch == "dynamic" else min(size, 1)

    @property
    def start(self) -> int:
        """Return where they begin: in the middle, so that samples before and behind them count."""
        return (self.inputs[0].shape[0] - self.count + 1) // 2 if self.inputs else 0

    @property
    def alone(self) -> list[Tensor]:
        """Return these samples without company; where the size is fixed, one as often as there are others."""
        if self.graph.batch == "dynamic":
            return [t[self.start : self.start + self.count] for t in self.inputs]
        return [t[self.start : self.start + 1].expand(t.shape).contiguous() for t in self.inputs]

    def visit(self, node: Node, value: Any, values: Mapping[str, Any]) -> None:
        """Keep some entries of what these samples give."""
        if self.inputs and node.name not in self._kept:
            part = _part(self.graph, node, value, self.inputs[0].shape[0], self.start, self.count)
            if part is not None:
                self._kept[node.name] = part

    def visit_alone(self, node: Node, value: Any, values: Mapping[str, Any]) -> None:
        """Compare what these samples give alone with what was kept."""
        dynamic = self.graph.batch == "dynamic"
        size, start = (self.count, 0) if dynamic else (self.inputs[0].shape[0], self.start)
        before = self._kept.get(node.name)
        part = None if before is None else _part(self.graph, node, value, size, start, self.count)
        if before is not None and part is not None and _differ(before, part):
            self.differ.append(node.name)

    def culprit(self) -> Node | None:
        """Return the operation in which the samples of a batch meet, if an output shows it."""
        outputs = {name for n in self.graph if n.op == "output" for name in n.inputs()}
        if not any(name in outputs for name in self.differ):
            return None
        before = reach([name for name in self.differ if name in outputs], reads(self.graph))
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
    known &= torch.isfinite(b)
    if not bool(known.any()):
        return False
    scale = max(float(a[known].abs().max()), float(b[known].abs().max()))
    return float((a - b)[known].abs().max()) > (COARSE if coarse else SHARE) * scale
