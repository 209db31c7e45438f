"""A tape: nodes written one after the other, which become a :class:`~normscope.graph.ir.Graph` at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.graph.ir import Graph, Named, Node, Ref, references

#: What no rule understands: the first argument's value, which depends on the other arguments in a way not followed.
UNKNOWN_ALIAS = "normscope.alias.unknown"
UNKNOWN_SCALAR = "normscope.scalar.unknown"
#: Lookups in a table: where token ids, which are held fixed, become numbers, which move.
_LOOKUPS = ("embedding", "index", "index_select", "gather")
#: What is the same for all finite numbers.
_FINITE = ("isnan", "isinf", "isfinite", "isposinf", "isneginf")


class Tape:
    """Nodes in the order of execution, the tensors they start from, and which of them move with the input.

    Integers of the input (token ids, masks) are held fixed; real numbers, also those found by token ids, move.

    >>> tape = Tape()
    >>> x = tape.input(torch.zeros(2))
    >>> y = tape.emit("aten.relu.default", (Ref(x),), like=torch.zeros(2))
    >>> [node.op for node in tape.graph([y], batch="2")]
    ['input', 'aten.relu.default', 'output']
    """

    def __init__(self) -> None:
        self.owner: tuple[str, str] = ("", "")
        self.tensors: dict[str, Tensor] = {}
        self._depending: set[str] = set()
        self._moving: set[str] = set()
        self._sources: list[Node] = []
        self._inputs: list[Node] = []
        self._calls: list[Node] = []
        self._by_name: dict[str, Node] = {}
        self._names: set[str] = set()
        self._counts: dict[str, int] = {}

    def input(self, value: Any) -> str:
        """Add the next input of the graph and return its name."""
        name = self._unique(f"args_{len(self._inputs)}")
        self._add(self._inputs, Node(name, "input", **describe(value)))
        self._depending.add(name)
        if isinstance(value, Tensor) and value.is_floating_point():
            self._moving.add(name)
        return name

    def source(self, kind: str, target: str, value: Tensor) -> str:
        """Add a parameter or buffer under its name in the state dict."""
        name = self._unique(f"{kind[0]}_{target.replace('.', '_')}")
        self._add(self._sources, Node(name, kind, target=target, **describe(value)))
        self.tensors[target] = value
        return name

    def constant(self, value: Tensor) -> str:
        """Add a tensor that is neither input nor state, with the value it has now."""
        target = self._unique("constant")
        frozen = value.detach().clone()
        self._add(self._sources, Node(target, "constant", target=target, **describe(frozen)))
        self.tensors[target] = frozen
        return target

    def emit(self, op: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, like: Any = None) -> str:
        """Add an operation and return its name.

        Args:
            op: ``namespace.operator.overload``.
            args: positional arguments, tensors already replaced by :class:`Ref`.
            kwargs: keyword arguments, likewise.
            like: a tensor of the result's shape and dtype, or what else the operation returned.
        """
        base = op if "." not in op else op.split(".")[1]
        pairs = tuple(sorted((key, argument(value)) for key, value in (kwargs or {}).items()))
        node = Node(
            self._unique(base.strip("_") or base),
            op,
            tuple(argument(a) for a in args),
            pairs,
            owner=self.owner[0],
            owner_type=self.owner[1],
            **describe(like),
        )
        self._add(self._calls, node)
        found = isinstance(like, Tensor) and like.is_floating_point() and base in _LOOKUPS
        if base not in _FINITE and not self._depending.isdisjoint(node.inputs()):
            self._depending.add(node.name)
            if found or not self._moving.isdisjoint(node.inputs()):
                self._moving.add(node.name)
        return node.name

    def node(self, name: str) -> Node:
        """Return a node by name."""
        return self._by_name[name]

    def depends(self, tree: Any) -> bool:
        """Tell whether any reference in a nested argument depends on the input, integers included."""
        return any(ref.name in self._depending for ref in references(tree))

    def moves(self, tree: Any) -> bool:
        """Tell whether any reference in a nested argument moves with the input."""
        return any(ref.name in self._moving for ref in references(tree))

    def graph(self, outputs: Sequence[str], *, batch: str, notes: Sequence[str] = ()) -> Graph:
        """Return what the outputs depend on as a graph; random operations stay, to keep the order of the draws."""
        end = Node("output", "output", tuple(Ref(name) for name in outputs))
        nodes = [*self._sources, *self._inputs, *self._calls, end]
        live = {"output"} | {node.name for node in self._inputs}
        for node in reversed(nodes):
            if node.name in live or _draws(node.op):
                live.add(node.name)
                live.update(node.inputs())
        return Graph(tuple(n for n in nodes if n.name in live), "dispatch", batch, notes=tuple(notes))

    def _add(self, where: list[Node], node: Node) -> None:
        """Append a node."""
        where.append(node)
        self._by_name[node.name] = node

    def _unique(self, base: str) -> str:
        """Return a name that no node has yet: ``base``, ``base_1``, ..."""
        name = base
        while name in self._names or name == "output":
            self._counts[base] = self._counts.get(base, 0) + 1
            name = f"{base}_{self._counts[base]}"
        self._names.add(name)
        return name


def argument(value: Any) -> Any:
    """Return an argument as the graph stores it: tuples, references and literals."""
    if isinstance(value, list | tuple):
        return tuple(argument(item) for item in value)
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return Named(type(value).__name__, str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return Named("device", str(value))
    return None if isinstance(value, torch.Generator) else value


def describe(value: Any) -> dict[str, Any]:
    """Return the shape and dtype fields of a node for its value."""
    if not isinstance(value, Tensor):
        return {}
    return {"shape": tuple(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}


def _draws(op: str) -> bool:
    """Tell whether an operation draws from the random generator."""
    if op.count(".") < 2 or op.startswith(("python.", "normscope.")):
        return False
    namespace, name, overload = op.split(".", 2)
    found = getattr(getattr(getattr(torch.ops, namespace), name, None), overload, None)
    return found is not None and torch.Tag.nondeterministic_seeded in found.tags
