"""Check on numbers that a part of a graph computes what it was taken for."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normscope.graph.interpreter import call as execute
from normscope.graph.ir import SOURCES, Graph, Node, Ref
from normscope.graph.recognise import Recogniser, is_real
from normscope.operators.normalization import Spread

Constant = Callable[[str], Any]
#: A normalizer is made of fewer operations than this; a larger part of the graph is something else.
LARGEST_CONE = 64


def replay(graph: Graph, node: Node, source: str, probe: Tensor, constant: Constant) -> Tensor | None:
    """Return the value of a node if another one had a given value, in float64.

    Args:
        graph: the graph.
        node: what is asked for.
        source: the node that is given another value; so is everything that is the same tensor up to a real cast.
        probe: that value.
        constant: returns the value of a node that does not depend on the network input, or ``None``.

    Returns:
        The value, or ``None`` if the node depends on more than the source and constants, or by steps.
    """
    same = Recogniser(graph, lambda name: None).through(Ref(source), repeating=False)
    values: dict[str, Any] = {source: probe}
    for item in _cone(graph, node, values, same, constant):
        if item.dtype and not is_real(item):
            return None  # a step, which exact arithmetic would not show
        try:
            values[item.name] = execute(item, values, torch.float64)
        except (KeyError, RuntimeError, TypeError):
            return None
    result = values.get(node.name)
    return result if isinstance(result, Tensor) else None


def _cone(graph: Graph, node: Node, values: dict[str, Any], same: Node | None, constant: Constant) -> list[Node]:
    """Return what must be computed for a node, in order, up to a limit; leaves get their values."""
    recogniser = Recogniser(graph, lambda name: None)
    found: set[str] = set()
    stack = [node.name]
    while stack and len(found) < LARGEST_CONE:
        name = stack.pop()
        if name in found or name in values:
            continue
        item = graph[name]
        if name != node.name and recogniser.same(recogniser.through(Ref(name), repeating=False), same):
            values[name] = next(iter(values.values()))
            continue
        value = None if name == node.name else constant(name)
        if value is not None:
            wide = isinstance(value, Tensor) and value.is_floating_point()
            values[name] = value.to(torch.float64) if wide else value
        elif item.op not in SOURCES:
            found.add(name)
            stack.extend(item.inputs())
    return sorted((graph[name] for name in found), key=lambda n: graph.position(n.name))


def divides_by_spread(
    spread: Spread, run: Callable[[Tensor], Tensor | None], gain: Tensor | float = 1.0
) -> bool | None:
    """Return whether a function normalizes by a spread, stabilizer included, from its values at random points.

    The points have entries about one, about the size at which the stabilizer takes over, and far from zero mean.

    Returns:
        Whether all values agree, or ``None`` if the function cannot be evaluated.
    """
    generator = torch.Generator().manual_seed(0)
    eps = math.sqrt(spread.eps) if spread.where == "inside" else spread.eps
    for scale, shift in ((1.0, 0.0), (eps / math.sqrt(spread.factor) or 1.0, 0.0), (1.0, 3.0)):
        x = torch.randn(spread.view, generator=generator, dtype=torch.float64) * scale + shift
        actual = run(x)
        if actual is None:
            return None
        expected = gain * spread.normalize(x)
        near = 1e-9 * float(expected.abs().max()) if x.numel() else 0.0
        if actual.shape != x.shape or not torch.allclose(expected, actual, rtol=1e-6, atol=near):
            return False
    return True
