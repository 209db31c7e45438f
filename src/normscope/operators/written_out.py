"""Normalizers written out of elementary operations: the node at which one may end, and what was found there."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.graph.interpreter import as_floating
from normscope.graph.interpreter import call as execute
from normscope.graph.ir import SOURCES, Graph, Node, Ref
from normscope.graph.recognise import Recogniser, is_real, name_of
from normscope.operators.expression import Expr
from normscope.operators.registry import Call
from normscope.operators.site import Site

#: Operations that give a weight another shape.
_RESHAPING = ("view", "reshape", "flatten", "permute", "transpose", "t", "movedim", "squeeze", "_unsafe_view")
#: Linear maps with a weight beside their input, and products of two matrices.
_LAYERS = ("linear", "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d",
           "conv_transpose3d", "addmm")  # fmt: skip
_PRODUCTS = ("mm", "matmul", "bmm", "einsum", "mv")
_ALIKE = ("mul", "div", "sub", "to", "_to_copy", "clone", "contiguous", "getitem", "view_as", "reshape_as", "unsqueeze")

#: Operations that change how numbers are stored, and nothing else.
_CASTS = ("to", "_to_copy", "clone", "contiguous", "alias")
#: The most operations that a written-out normalizer may have.
LARGEST_CONE = 64
#: A part of the graph as a function of one of its tensors; ``None`` where it depends on something else too.
PartOfGraph = Callable[[Tensor], Tensor | None]


def probe(shape: Sequence[int], seed: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    """Return a random tensor at which a part of a graph is evaluated."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64) * scale + shift


def agrees(
    part: PartOfGraph, expected: Callable[[Tensor], Tensor], points: Iterable[Tensor], rtol: float = 1e-6
) -> bool:
    """Return whether a part of a graph has the same values as a function at some points."""
    for x in points:
        actual, wanted = part(x), expected(x)
        near = 1e-3 * rtol * float(wanted.abs().max()) if wanted.numel() else 0.0
        if actual is None or actual.shape != wanted.shape or not torch.allclose(wanted, actual, rtol=rtol, atol=near):
            return False
    return True


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What is known about a graph when its traversal reaches a node."""

    graph: Graph  #: the graph
    recogniser: Recogniser  #: looks for patterns in it
    users: dict[str, list[str]]  #: the nodes that read each node
    expression: Callable[[str], Expr | None]  #: the expression of a node that depends on the network input, or ``None``
    constant: Callable[[str], Any]  #: the value of a node that does not depend on the input, or ``None``
    parameter: Callable[[str], str]  #: the parameter that a constant is made of, or an empty text
    is_site: Callable[[str], bool]  #: whether a normalizer was found to end at a node

    @functools.cached_property
    def operations(self) -> frozenset[str]:
        """Return the names of all operations in the graph."""
        return frozenset(name_of(node) for node in self.graph)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a node at the inputs at hand."""
        found = self.expression(name)
        return found.shape if isinstance(found, Expr) else tuple(getattr(self.constant(name), "shape", ()))

    def group_size(self, name: str, axes: tuple[int, ...]) -> int:
        """Return the number of entries along some axes of a node."""
        return math.prod(self.shape(name)[axis] for axis in axes)

    def is_weight(self, name: str) -> bool:
        """Return whether a node is a parameter up to shape and constant factors (a product with a state is not)."""
        while True:
            node = self.recogniser.through(Ref(name))
            if node is None or not node.args or not isinstance(node.args[0], Ref):
                return node is not None and node.op == "parameter"
            others = [n for n in node.inputs()[1:] if self.parameter(n)]
            if name_of(node) not in _RESHAPING and (name_of(node) not in ("mul", "div") or others):
                return False
            name = next((n for n in node.inputs() if self.parameter(n)), node.args[0].name)

    def acts_as_weight(self, node: Node) -> bool:
        """Return whether a constant, up to its shape and factors, is the weight of a linear map of the input."""
        stack, seen = [node.name], set[str]()
        while stack:
            name = stack.pop()
            for user in (self.graph[n] for n in self.users[name] if n not in seen):
                seen.add(user.name)
                if name_of(user) in (*_LAYERS, *_PRODUCTS):
                    if name_of(user) in _PRODUCTS or user.args[0] != Ref(name):
                        return True
                elif name_of(user) in (*_RESHAPING, *_ALIKE):
                    stack.append(user.name)
        return False

    def run(self, node: Node, source: str) -> PartOfGraph:
        """Return a node as a function of another, in float64.

        Where it depends on more than that and constants, or depends on it by steps, its values are ``None``.
        """
        constants, same, order = self._cone(node, source)

        def function(x: Tensor) -> Tensor | None:
            values = constants | dict.fromkeys(same, x)
            for item in order:
                if item.dtype and not is_real(item):
                    return None  # a step, which exact arithmetic would not show
                try:
                    values[item.name] = execute(item, values, torch.float64)
                except (KeyError, RuntimeError, TypeError):
                    return None
            result = values.get(node.name)
            return result if isinstance(result, Tensor) else None

        return function

    def _cone(self, node: Node, source: str) -> tuple[dict[str, Any], list[str], list[Node]]:
        """Return the constants a node depends on, the nodes that equal the source, and those to compute in between."""
        # If the source is itself a constant, everything computed from it would be one too.
        moving = self.between(source, node) if self.expression(source) is None else {node.name}
        start = self.recogniser.through(Ref(source), repeating=False)
        constants: dict[str, Any] = {}
        same, found, stack = [source], set[str](), [node.name]
        while stack and len(found) < LARGEST_CONE:
            name = stack.pop()
            if name in found or name in constants or name in same:
                continue
            item = self.graph[name]
            if item is not node and self.recogniser.same(self.recogniser.through(Ref(name), repeating=False), start):
                same.append(name)
                continue
            value = None if name in moving else self.constant(name)
            if value is not None:
                constants[name] = as_floating(value, torch.float64)
            elif item.op not in SOURCES:
                found.add(name)
                stack.extend(item.inputs())
        return constants, same, sorted((self.graph[n] for n in found), key=lambda n: self.graph.position(n.name))

    def between(self, source: str, node: Node) -> set[str]:
        """Return the nodes up to another node that depend on a source."""
        start, found = self.graph.position(source), {source}
        for item in self.graph.nodes[start : self.graph.position(node.name) + 1]:
            if not found.isdisjoint(item.inputs()):
                found.add(item.name)
        return found

    def affine_after(self, node: Node) -> tuple[Tensor | None, Tensor | None, str]:
        """Return the constant scale and shift applied right after a node, and the node that holds the result.

        There may be any number of factors, then one shift; a node with several users ends the chain.
        """
        scale: Tensor | None = None
        shift: Tensor | None = None
        while len(self.users[node.name]) == 1 and shift is None:
            user = self.graph[self.users[node.name][0]]
            op = name_of(user)
            if op == "neg":
                scale = torch.tensor(-1.0, dtype=torch.float64) if scale is None else -scale
            elif op not in _CASTS:
                constant = self._operand(user, node) if op in ("mul", "div", "add") else None
                if constant is None:
                    break
                if op == "add":
                    shift = constant
                else:
                    factor = constant if op == "mul" else constant.double().reciprocal()
                    scale = factor if scale is None else scale.double() * factor.double()
            node = user
        return scale, shift, node.name

    def _operand(self, user: Node, node: Node) -> Tensor | None:
        """Return the constant that a node is multiplied with, divided by or added to, or ``None`` if there is none."""
        if user.kwargs or user.shape != node.shape or len(user.args) != 2:
            return None
        left, right = user.args
        first = isinstance(left, Ref) and left.name == node.name
        other = right if first else left
        if (name_of(user) == "div" and not first) or isinstance(other, bool):
            return None
        if isinstance(other, int | float):
            return torch.tensor(float(other), dtype=torch.float64)
        if not isinstance(other, Ref) or other.name == node.name or self.expression(other.name) is not None:
            return None
        value = self.constant(other.name)
        return value if isinstance(value, Tensor) and value.is_floating_point() else None


@dataclass(frozen=True, eq=False)
class NormalizerCandidate:
    """A node that depends on the network input and may be the last operation of a written-out normalizer."""

    call: Call  #: the node with its arguments
    around: Surroundings  #: what is known of the graph

    @property
    def node(self) -> Node:
        """Return the node."""
        return self.call.node

    def source(self, name: str) -> Expr | None:
        """Return the expression of a node of the same shape, which may be what is normalized."""
        found = self.around.expression(name)
        return found if isinstance(found, Expr) and found.shape == self.call.shape else None

    def written(
        self,
        kind: str,
        source: Expr,
        name: str,
        result: Callable[[], Expr] | None = None,
        *,
        gain: Tensor | None = None,
        **details: Any,
    ) -> WrittenOut:
        """Return a normalizer that ends here, with the scale and shift after it unless they are given.

        Args:
            kind: the kind of normalizer.
            source: the expression it normalizes.
            name: the node of that expression.
            result: makes the expression of the result, unless the rules of the single operations do.
            gain: a factor before the scale.
            details: further fields of its :class:`Site`.
        """
        gamma, beta, end = self.around.affine_after(self.node)
        if gain is not None:
            gamma = gain if gamma is None else gamma.double() * gain
        details = {"gamma": gamma, "beta": beta, "shape": source.shape, "end": end} | details
        site = Site(self.node.name, name, self.node.owner, kind, written_out=True, **details)
        return WrittenOut(site, source, result)


@dataclass(frozen=True, eq=False)
class WrittenOut:
    """A normalizer that was recognized in elementary operations."""

    site: Site  #: the normalizer
    source: Expr  #: what it normalizes
    result: Callable[[], Expr] | None = None  #: makes its expression; without it the rules of its operations do
