"""Inputs that are not numbers: masks and positions, kept fixed while the numbers vary."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.graph.capture import Captured
from normscope.graph.interpreter import run
from normscope.graph.ir import Graph, Node
from normscope.operators.program import Program

#: Operations that read the shape of a tensor and nothing else of it.
_SHAPE_ONLY = (
    *("sym_size", "sym_numel", "size", "zeros_like", "ones_like", "empty_like", "full_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty"),
)


@dataclass(frozen=True)
class FixedInputs:
    """Inputs that are held fixed while others vary."""

    #: graph nodes whose values are kept: these inputs, and what is computed from tokens besides their embedding
    names: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()  #: arguments of the model that are kept as they are, by the user's names
    #: arguments that are embedded, from which something else (a mask, a position) is computed and kept fixed
    tokens: tuple[str, ...] = ()

    def condition(self, where: str) -> str:
        """Return the condition on inputs as text, empty if nothing is held fixed.

        >>> FixedInputs(("mask",), ("mask",)).condition("the first sample")
        'with mask as in the first sample'
        """
        parts = [f"with {' and '.join(self.inputs)} as in {where}"] if self.inputs else []
        if self.tokens:
            parts.append(f"whose {' and '.join(self.tokens)} give the same masks and places as {where}")
        return " and ".join(parts)


def fixed_inputs(captured: Captured, program: Program) -> FixedInputs:
    """Return the inputs that are held fixed and combined with numeric ones: constants hold for their values.

    Token ids are looked up in an embedding, whose output is the input of the network: they are not held
    fixed, unless something else is computed from them as well.
    """
    graph = captured.graph
    blocks = {block.name for block in program.blocks}
    moving = _reached(graph, blocks, frozenset())
    names: list[str] = []
    inputs: list[str] = []
    tokens: list[str] = []
    nodes = [node for node in graph if node.op == "input"]
    for node, called in zip(nodes, captured.input_names, strict=False):
        if node.name in blocks:
            continue
        fixed = _reached(graph, {node.name}, moving)
        users = [n for n in graph if n.name in moving and n.name not in blocks and n.op != "output"]
        meeting = {name for n in users if not _reads_shape(n) for name in n.inputs() if name in fixed}
        if not meeting:
            continue
        if any(name in fixed for n in graph if n.name in blocks for name in n.inputs()):  # an embedding looks it up
            names += sorted(meeting)
            tokens.append(called)
        else:
            names.append(node.name)
            inputs.append(called)
    return FixedInputs(tuple(dict.fromkeys(names)), tuple(inputs), tuple(tokens))


def _reached(graph: Graph, start: set[str], outside: set[str] | frozenset[str]) -> set[str]:
    """Return the nodes that depend on the values of some nodes, including these, except those ``outside``."""
    found = set(start)
    for node in graph:
        if node.op == "output" or node.name in outside or _reads_shape(node):
            continue
        if any(name in found for name in node.inputs()):
            found.add(node.name)
    return found


def _reads_shape(node: Node) -> bool:
    """Return whether a node reads nothing but the shape of its input."""
    parts = node.op.split(".")
    return len(parts) > 1 and parts[1] in _SHAPE_ONLY


def values_of(captured: Captured, names: Sequence[str], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the values of some nodes of the graph at an input."""
    direct = {n.name: t for n, t in zip((n for n in captured.graph if n.op == "input"), inputs, strict=False)}
    if all(name in direct for name in names):
        return [direct[name] for name in names]
    found: dict[str, Tensor] = {}

    def visit(node: Node, value: object, values: object) -> None:
        if node.name in names:
            found[node.name] = torch.as_tensor(value).clone()

    with torch.no_grad():
        run(captured.graph, captured.tensors, [t.clone() for t in inputs], visit)
    return [found[name] for name in names]


def same_values(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Return whether two lists of tensors are equal."""
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, second, strict=True))
