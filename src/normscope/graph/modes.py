"""BatchNorm modes: the same graph with batch statistics instead of running ones."""

from collections.abc import Mapping
from dataclasses import replace

from normscope.graph.ir import Graph, Node, Ref

_FIXED = {"aten.batch_norm.default", "aten._native_batch_norm_legit_no_training.default"}


def with_batch_statistics(graph: Graph) -> Graph:
    """Return the graph with every BatchNorm normalizing by the statistics of the batch it is given.

    No running statistics are read, so none can be changed.
    """
    return replace(graph, nodes=tuple(_batch_mode(node) for node in graph.nodes))


def _batch_mode(node: Node) -> Node:
    """Rewrite one node."""
    if node.op not in _FIXED:
        return node
    if node.op == "aten.batch_norm.default":
        x, weight, bias, _, _, _, momentum, eps, *rest = node.args
        return replace(node, args=(x, weight, bias, None, None, True, momentum, eps, *rest))
    x, weight, bias, _, _, momentum, eps = node.args
    return replace(node, op="aten._native_batch_norm_legit.no_stats", args=(x, weight, bias, True, momentum, eps))


def running_statistics(node: Node) -> tuple[str, str] | None:
    """Return the nodes of a BatchNorm's running mean and variance, or ``None`` if it has none."""
    if node.op not in _FIXED:
        return None
    mean, variance = node.args[3:5]
    return (mean.name, variance.name) if isinstance(mean, Ref) and isinstance(variance, Ref) else None


def with_statistics(graph: Graph, targets: Mapping[str, tuple[str, str]]) -> Graph:
    """Return the graph with other running statistics for some BatchNorms: buffers of the names given."""
    nodes = []
    for node in graph:
        if node.name in targets:
            old = [graph[name] for name in running_statistics(node) or ()]
            nodes += [replace(n, name=t, target=t) for n, t in zip(old, targets[node.name], strict=True)]
            args = (*node.args[:3], *(Ref(t) for t in targets[node.name]), *node.args[5:])
            node = replace(node, args=args)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def has_batch_norm(graph: Graph) -> bool:
    """Return whether the graph contains a BatchNorm with running statistics."""
    return any(node.op in _FIXED for node in graph)
