"""One run of a graph, kept: what nodes gave on an input need not be computed again for the same input."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.graph.ir import SOURCES, Graph, Node

#: The most numbers that are kept of a run.
MOST = 2**25


class KeptRun:
    """What the nodes that read weights gave on one input: products with weights are what takes long.

    >>> node = Node("y", "aten.mul.Tensor", target="")
    >>> run = KeptRun(Graph((node,), "export", "dynamic"), [torch.ones(2)])
    >>> run.at([torch.ones(2)]), run.at([torch.zeros(2)])
    ({}, {})
    """

    def __init__(self, graph: Graph, inputs: Sequence[Tensor], most: int = MOST) -> None:
        self.inputs = inputs
        self._sources = {node.name for node in graph if node.op in SOURCES and node.op != "input"}
        self._values: dict[str, Tensor] = {}
        self._left = most

    def visit(self, node: Node, value: Any, values: Mapping[str, Any]) -> None:
        """Keep the value of a node that reads a weight; called at every node of the run."""
        if isinstance(value, Tensor) and not self._sources.isdisjoint(node.inputs()) and value.numel() <= self._left:
            self._left -= value.numel()
            self._values[node.name] = value.detach()

    def at(self, inputs: Sequence[Any]) -> Mapping[str, Tensor]:
        """Return what is kept, by node, if these are the inputs of the run to the last bit; else nothing."""
        if len(inputs) != len(self.inputs):
            return {}
        pairs = zip(self.inputs, inputs, strict=True)
        return self._values if all(a is b or _same(a, b) for a, b in pairs) else {}

    def clear(self) -> None:
        """Free the memory: from here on nothing is known."""
        self._values = {}


def _same(a: Tensor, b: Any) -> bool:
    """Return whether something is a tensor with the same numbers, in the same precision and place."""
    return isinstance(b, Tensor) and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
