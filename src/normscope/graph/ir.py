"""The frozen graph: what a model computes, as plain data."""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

#: Operations that carry data into a graph or out of it, rather than compute.
SOURCES = ("input", "parameter", "buffer", "constant")
#: An operation without a rule: the value of its first argument, which depends on the others in an unknown way.
UNKNOWN = "normscope.scalar.unknown"


@dataclass(frozen=True)
class Ref:
    """A reference to another node by name."""

    name: str


@dataclass(frozen=True)
class Named:
    """A torch literal by name: a dtype, device, layout or memory format."""

    type: str
    name: str


@dataclass(frozen=True)
class Node:
    """One operation at one place.

    Attributes:
        name: unique in the graph.
        op: ``namespace.operator.overload``, ``python.f`` for integer arithmetic, ``getitem``, or one of
            :data:`SOURCES`; ``output`` ends the graph.
        args: positional arguments: literals, :class:`Ref`, and nested tuples of them.
        kwargs: keyword arguments, as sorted pairs.
        owner: path of the module that computes it; a module called twice has two sets of nodes.
        owner_type: class name of that module.
        target: for a source, the name of the tensor it stands for.
        shape: shape recorded at capture (``None`` for what is not a tensor).
        dtype: dtype recorded at capture, without ``torch.``.
    """

    name: str
    op: str
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    owner: str = ""
    owner_type: str = ""
    target: str = ""
    shape: tuple[int, ...] | None = None
    dtype: str = ""

    def inputs(self) -> tuple[str, ...]:
        """Return the names of the nodes this one reads, each once, in order."""
        return self._read

    @functools.cached_property
    def _read(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r.name for r in references((self.args, self.kwargs))))


@dataclass(frozen=True)
class Graph:
    """A model as nodes in execution order.

    Attributes:
        nodes: all nodes, every one after those it reads.
        front_end: how it was captured: ``recording``, ``export`` or ``dispatch``.
        batch: ``dynamic`` if any batch size runs, otherwise the fixed size.
        output_names: a name for each output tensor.
        notes: what happened during capture (a fallback and why).

    >>> graph = Graph((Node("x", "input", shape=(2,), dtype="float32"), Node("y", "aten.relu.default", (Ref("x"),))))
    >>> graph.users()
    {'x': ['y'], 'y': []}
    """

    nodes: tuple[Node, ...]
    front_end: str = "export"
    batch: str = "dynamic"
    output_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @functools.cached_property
    def _index(self) -> dict[str, int]:
        return {node.name: i for i, node in enumerate(self.nodes)}

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[self._index[name]]

    def position(self, name: str) -> int:
        """Return the place of a node in execution order."""
        return self._index[name]

    def users(self) -> dict[str, list[str]]:
        """Return for every node the names of those that read it."""
        users: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for name in node.inputs():
                users[name].append(node.name)
        return users

    @functools.cached_property
    def last_uses(self) -> dict[str, list[str]]:
        """Return for every node the names of the values that are not needed after it."""
        last: dict[str, str] = {}
        for node in self.nodes:
            for name in (*node.inputs(), node.name):
                last[name] = node.name
        dying: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for name, user in last.items():
            dying[user].append(name)
        return dying

    @functools.cached_property
    def moving(self) -> frozenset[str]:
        """Return the names of the nodes that depend on an input."""
        found: set[str] = set()
        for node in self.nodes:
            if node.op == "input" or not found.isdisjoint(node.inputs()):
                found.add(node.name)
        return frozenset(found)

    @functools.cached_property
    def widest(self) -> int:
        """Return the number of entries of the largest value that is computed; a free batch size counts as one."""
        shapes = (node.shape for node in self.nodes if not node.target and node.shape is not None)
        return max((math.prod(max(1, side) for side in shape) for shape in shapes), default=0)

    def calls(self) -> tuple[Node, ...]:
        """Return the nodes that compute something on tensors."""
        skip = (*SOURCES, "output", "getitem")
        return tuple(n for n in self.nodes if n.op not in skip and not n.op.startswith("python."))


def references(tree: Any) -> Iterator[Ref]:
    """Yield every :class:`Ref` in a nested argument, in order."""
    if isinstance(tree, Ref):
        yield tree
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from references(item)


def map_refs(tree: Any, function: Callable[[Ref], Any], *, into: type = list) -> Any:
    """Return the nested argument with every :class:`Ref` replaced by ``function(ref)``; tuples become lists."""
    if isinstance(tree, Ref):
        return function(tree)
    if isinstance(tree, tuple | list):
        return into(map_refs(item, function, into=into) for item in tree)
    return tree
