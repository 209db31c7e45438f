"""A place of the graph at which a normalizer may be written out of elementary operations, and what is found there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from normscope.graph.ir import Graph, Node, Ref
from normscope.graph.recognise import Recogniser, name_of
from normscope.operators.expression import Expr
from normscope.operators.registry import Call
from normscope.operators.replay import replay
from normscope.operators.site import Site

#: Operations that give a weight another shape.
_RESHAPING = ("view", "reshape", "flatten", "permute", "transpose", "t", "movedim", "squeeze", "_unsafe_view")


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What is known of a graph when a node is reached.

    Attributes:
        graph: the graph.
        recogniser: looks for patterns in it.
        users: the nodes that read each node.
        expression: the expression of a node that depends on the network input, or ``None``.
        constant: the value of a node that does not depend on it, or ``None``.
        parameter: the parameter that a constant is made of, or an empty text.
    """

    graph: Graph
    recogniser: Recogniser
    users: dict[str, list[str]]
    expression: Callable[[str], Expr | None]
    constant: Callable[[str], Any]
    parameter: Callable[[str], str]

    def is_weight(self, name: str) -> bool:
        """Tell whether a node is a parameter, up to its shape and constant factors (a product with a state is not)."""
        while True:
            node = self.recogniser.through(Ref(name))
            if node is None or not node.args or not isinstance(node.args[0], Ref):
                return node is not None and node.op == "parameter"
            others = [n for n in node.inputs()[1:] if self.parameter(n)]
            if name_of(node) not in _RESHAPING and (name_of(node) not in ("mul", "div") or others):
                return False
            name = next((n for n in node.inputs() if self.parameter(n)), node.args[0].name)

    def run(self, node: Node, source: str) -> Callable[[Tensor], Tensor | None]:
        """Return a node as a function of another, in float64; ``None`` where it depends on something else too."""
        return lambda x: replay(self.graph, node, source, x, self.constant)

    def affine_after(self, node: Node) -> tuple[Tensor | None, Tensor | None]:
        """Return the constant scale and shift applied right after a node, for the report."""
        found: list[Tensor | None] = [None, None]
        for index, wanted in enumerate(("mul", "add")):
            while len(self.users[node.name]) == 1 and self._user(node) in ("to", "_to_copy"):
                node = self.graph[self.users[node.name][0]]
            if len(self.users[node.name]) != 1 or self._user(node) != wanted:
                continue
            user = self.graph[self.users[node.name][0]]
            other = [a for a in user.args[:2] if isinstance(a, Ref) and a.name != node.name]
            if len(other) == 1 and self.expression(other[0].name) is None and user.shape == node.shape:
                value = self.constant(other[0].name)
                found[index] = value if isinstance(value, Tensor) else None
                node = user
        return found[0], found[1]

    def _user(self, node: Node) -> str:
        return name_of(self.graph[self.users[node.name][0]])


@dataclass(frozen=True, eq=False)
class Place:
    """A node that depends on the network input, at which a normalizer may end.

    Attributes:
        call: the node with its arguments.
        around: what is known of the graph.
    """

    call: Call
    around: Surroundings

    @property
    def node(self) -> Node:
        """Return the node."""
        return self.call.node

    def source(self, name: str) -> Expr | None:
        """Return the expression of a node of the same shape, which may be what is normalized."""
        found = self.around.expression(name)
        return found if isinstance(found, Expr) and found.shape == self.call.shape else None

    def site(self, kind: str, source: Expr, name: str, **details: Any) -> Site:
        """Describe a normalizer that ends here."""
        return Site(self.node.name, name, self.node.owner, kind, shape=source.shape, written_out=True, **details)


@dataclass(frozen=True, eq=False)
class Written:
    """A normalizer that was found written out.

    Attributes:
        site: where it stands.
        source: what it normalizes.
        result: makes its expression.
    """

    site: Site
    source: Expr
    result: Callable[[], Expr]
