"""The frozen graph: what a model computes, as plain data that survives a JSON round trip."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

#: Operations that carry data into a graph or out of it, rather than compute.
SOURCES = ("input", "parameter", "buffer", "constant")
#: What no rule understands: the first argument's value, which depends on the other arguments in a way not followed.
UNKNOWN = "normscope.scalar.unknown"
FORMAT = 1


@dataclass(frozen=True)
class Ref:
    """A reference to another node by name."""

    name: str


@dataclass(frozen=True)
class Named:
    """A torch literal that JSON cannot hold: a dtype, device, layout or memory format."""

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
        front_end: how it was captured: ``export``, ``dispatch``.
        batch: ``dynamic`` if any batch size runs, otherwise the fixed size.
        output_names: a name for each output tensor.
        notes: what happened on the way (a fallback and why).

    >>> g = Graph((Node("x", "input", shape=(2,), dtype="float32"), Node("y", "aten.relu.default", (Ref("x"),))))
    >>> Graph.from_json(g.to_json()) == g
    True
    """

    nodes: tuple[Node, ...]
    front_end: str = "export"
    batch: str = "dynamic"
    output_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    _index: dict[str, int] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._index.update({node.name: i for i, node in enumerate(self.nodes)})

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

    def calls(self) -> tuple[Node, ...]:
        """Return the nodes that compute something on tensors."""
        skip = (*SOURCES, "output", "getitem")
        return tuple(n for n in self.nodes if n.op not in skip and not n.op.startswith("python."))

    def to_json(self) -> str:
        """Return the graph as JSON text."""
        body = {
            "format": FORMAT,
            "front_end": self.front_end,
            "batch": self.batch,
            "output_names": list(self.output_names),
            "notes": list(self.notes),
            "nodes": [_encode_node(node) for node in self.nodes],
        }
        return json.dumps(body)

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """Read a graph back.

        Raises:
            ValueError: if the text has another format version.
        """
        body = json.loads(text)
        if body.get("format") != FORMAT:
            raise ValueError(f"Expected graph format {FORMAT}, got {body.get('format')!r}. Capture the graph again.")
        return cls(
            nodes=tuple(_decode_node(n) for n in body["nodes"]),
            front_end=body["front_end"],
            batch=body["batch"],
            output_names=tuple(body["output_names"]),
            notes=tuple(body["notes"]),
        )


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


def _encode(tree: Any) -> Any:
    """Return the JSON form of an argument."""
    if isinstance(tree, Ref):
        return {"ref": tree.name}
    if isinstance(tree, Named):
        return {"named": [tree.type, tree.name]}
    if isinstance(tree, tuple | list):
        return [_encode(item) for item in tree]
    if isinstance(tree, float) and tree - tree != 0:  # inf, -inf and nan are not JSON
        return {"float": repr(tree)}
    return tree


def _decode(tree: Any) -> Any:
    """Read the JSON form of an argument back."""
    if isinstance(tree, dict):
        if "ref" in tree:
            return Ref(tree["ref"])
        return Named(*tree["named"]) if "named" in tree else float(tree["float"])
    if isinstance(tree, list):
        return tuple(_decode(item) for item in tree)
    return tree


def _encode_node(node: Node) -> dict[str, Any]:
    """Return the JSON form of a node, without empty fields."""
    body = asdict(node) | {"args": _encode(node.args), "kwargs": _encode(node.kwargs), "shape": node.shape}
    shape = body.pop("shape")  # a scalar's is (), which is not the same as none
    full = {key: value for key, value in body.items() if value not in ("", [], ())}
    return full if shape is None else full | {"shape": list(shape)}


def _decode_node(body: dict[str, Any]) -> Node:
    """Read the JSON form of a node back."""
    body = dict(body)
    shape = body.pop("shape", None)
    return Node(
        **{
            **body,
            "args": _decode(body.get("args", [])),
            "kwargs": tuple((k, v) for k, v in _decode(body.get("kwargs", []))),
            "shape": None if shape is None else tuple(shape),
        }
    )
