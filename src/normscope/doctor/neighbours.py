"""Paths in a captured graph: what comes before or after an operation, and the nearest layers."""

from collections.abc import Container, Iterable, Iterator, Mapping

from normscope.graph.ir import Graph, Node
from normscope.graph.recognise import name_of

CONVOLUTIONS = (
    "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
)  # fmt: skip
LINEAR = ("linear", "addmm", "mm", "embedding")
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
#: Matrix products of two tensors that depend on the input.
PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum", "scaled_dot_product_attention")
#: Operations that compute new features.
LAYERS = (*LINEAR, *CONVOLUTIONS, "lstm", "gru")


def reach(start: Iterable[str], edges: Mapping[str, Iterable[str]], without: Iterable[str] = ()) -> set[str]:
    """Return the nodes reachable along edges, including the start, without passing through the given nodes.

    >>> sorted(reach(["a"], {"a": ["b"], "b": ["c"]}, without=["c"]))
    ['a', 'b']
    """
    seen: set[str] = set()
    closed = set(without)
    stack = list(start)
    while stack:
        name = stack.pop()
        if name not in seen and name not in closed:
            seen.add(name)
            stack.extend(edges.get(name, ()))
    return seen


def reads(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return the inputs of every node."""
    return {n.name: n.inputs() for n in graph}


def outputs_of(graph: Graph) -> set[str]:
    """Return the nodes whose values the model returns."""
    return {name for node in graph if node.op == "output" for name in node.inputs()}


def between(graph: Graph, starts: Iterable[str], end: str) -> set[str]:
    """Return the nodes on paths from some nodes to another, both ends included."""
    return reach(starts, graph.users()) & reach([end], reads(graph))


def ancestors(graph: Graph, name: str) -> list[Node]:
    """Return the nodes that a node depends on, including itself, in order of execution."""
    names = reach([name], reads(graph))
    return [node for node in graph if node.name in names]


def skip_back(graph: Graph, name: str, operations: Container[str]) -> Node:
    """Return the first node, going back along first inputs, whose operation is not among the given ones.

    >>> from normscope.graph.ir import Ref
    >>> nodes = (Node("x", "input"), Node("y", "aten.view.default", (Ref("x"),)))
    >>> skip_back(Graph(nodes), "y", ["view"]).name
    'x'
    """
    node = graph[name]
    while name_of(node) in operations and node.inputs():
        node = graph[node.inputs()[0]]
    return node


def origin_of(graph: Graph, name: str) -> Node:
    """Return the node from which another is computed by functions of one argument.

    >>> from normscope.graph.ir import Ref
    >>> nodes = (Node("w", "parameter"), Node("y", "aten.exp.default", (Ref("w"),)))
    >>> origin_of(Graph(nodes), "y").name
    'w'
    """
    node = graph[name]
    while len(node.inputs()) == 1:
        node = graph[node.inputs()[0]]
    return node


def chain_before(graph: Graph, name: str) -> Iterator[Node]:
    """Yield the nodes before a node, as long as each has a single operand that depends on the input."""
    node = graph[name]
    while True:
        sources = [s for s in node.inputs() if s in graph.moving]
        if len(sources) != 1:
            return
        node = graph[sources[0]]
        yield node


def producers(graph: Graph, name: str) -> set[str]:
    """Return the modules of the nearest layers before a node, on every path.

    >>> from normscope.graph.ir import Ref
    >>> nodes = (Node("x", "input"), Node("y", "aten.linear.default", (Ref("x"),), owner="fc"),
    ...          Node("z", "aten.relu.default", (Ref("y"),)))
    >>> producers(Graph(nodes), "z")
    {'fc'}
    """
    return _nearest(graph, graph[name].inputs(), reads(graph))


def consumers(graph: Graph, name: str, ends: Iterable[str] = ()) -> set[str]:
    """Return the modules of the nearest layers, or of ``ends``, after a node, on every path.

    >>> from normscope.graph.ir import Ref
    >>> nodes = (Node("x", "input"), Node("y", "aten.relu.default", (Ref("x"),)),
    ...          Node("z", "aten.linear.default", (Ref("y"),), owner="fc"))
    >>> consumers(Graph(nodes), "x")
    {'fc'}
    """
    users = graph.users()
    return _nearest(graph, users[name], users, ends)


def _nearest(
    graph: Graph, start: Iterable[str], edges: Mapping[str, Iterable[str]], ends: Iterable[str] = ()
) -> set[str]:
    """Return the modules of the first layers or ends along edges."""
    last = {node.name for node in graph if name_of(node) in LAYERS} | set(ends)
    met = reach(start, {name: following for name, following in edges.items() if name not in last})
    return {graph[name].owner for name in met & last}
