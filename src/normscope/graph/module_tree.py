"""The module tree of a graph, repeated blocks folded, for people to look at."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from normscope.graph.ir import SOURCES, Graph


@dataclass(frozen=True)
class Block:
    """A module, or a run of equal modules, as it was used.

    Attributes:
        name: the module's path; for a run ``layers.0..11``; empty for operations of the model itself.
        type: class name, empty if no operation of its own tells it.
        repeat: how many equal modules it stands for.
        ops: operations computed by one of them itself (not by its children), in order.
        parameters: parameters of all of them together, children included; a shared one counts where it is named.
        children: the blocks inside one of them.
    """

    name: str
    type: str
    repeat: int
    ops: tuple[str, ...]
    parameters: int
    children: tuple[Block, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the block as plain JSON data."""
        return vars(self) | {"ops": list(self.ops), "children": [child.to_dict() for child in self.children]}


@dataclass
class _Tree:
    """A module of the tree while it is built."""

    path: str = ""
    type: str = ""
    ops: list[str] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    children: dict[str, _Tree] = field(default_factory=dict)

    def at(self, path: str) -> _Tree:
        """Return the module at a path below, made if there is none yet."""
        here = self
        for part in path.split(".") if path else ():
            inner = f"{here.path}.{part}" if here.path else part
            here = here.children.setdefault(part, _Tree(inner))
        return here

    def signature(self) -> tuple[Any, ...]:
        """Return what makes two modules equal: class, operations, shapes of parameters, and equal children."""
        inside = tuple((name, child.signature()) for name, child in self.children.items())
        return (self.type, tuple(self.ops), tuple(sorted(self.shapes.items())), inside)

    def parameters(self) -> int:
        """Return the number of parameters of the module and all inside it."""
        own = sum(math.prod(shape) for shape in self.shapes.values())
        return own + sum(child.parameters() for child in self.children.values())


def fold(graph: Graph) -> list[Block]:
    """Return the module tree of a graph with runs of equal numbered modules folded into one block each.

    Modules are equal if they have the same class, the same sequence of operations and parameters of the same shapes,
    and so have their children. Only modules that ran, or hold parameters that were used, appear.

    Returns:
        The blocks at the top, in the order of first use; operations of the model itself, if any, in a block without
        name at the front.

    >>> from normscope.graph.ir import Node, Ref
    >>> relu = [Node(f"r{i}", "aten.relu.default", (Ref("x"),), owner=f"acts.{i}", owner_type="ReLU") for i in range(3)]
    >>> [(b.name, b.repeat) for b in fold(Graph((Node("x", "input"), *relu)))[0].children]
    [('acts.0..2', 3)]
    """
    root = _Tree()
    for node in graph:
        if node.op not in (*SOURCES, "output", "getitem"):
            module = root.at(node.owner)
            module.type = module.type or node.owner_type
            module.ops.append(node.op)
    for node in graph:
        if node.op == "parameter":
            path, _, name = node.target.rpartition(".")
            root.at(path).shapes[name] = node.shape or ()
    top = list(_blocks(root))
    own = sum(math.prod(shape) for shape in root.shapes.values())
    return [Block("", root.type, 1, tuple(root.ops), own), *top] if root.ops or root.shapes else top


def _blocks(module: _Tree) -> Iterator[Block]:
    """Yield the children of a module, runs of equal ones as one block."""
    children = list(module.children.items())
    start = 0
    while start < len(children):
        end = start + 1
        while end < len(children) and _continues(children[end - 1], children[end]):
            end += 1
        run = [child for _, child in children[start:end]]
        first, count = run[0], end - start
        name = f"{first.path}..{children[end - 1][0]}" if count > 1 else first.path
        inside = tuple(_blocks(first))
        yield Block(name, first.type, count, tuple(first.ops), sum(c.parameters() for c in run), inside)
        start = end


def _continues(before: tuple[str, _Tree], after: tuple[str, _Tree]) -> bool:
    """Return whether a numbered module is the equal successor of another."""
    if not (before[0].isdigit() and after[0].isdigit() and int(after[0]) == int(before[0]) + 1):
        return False
    return before[1].signature() == after[1].signature()
