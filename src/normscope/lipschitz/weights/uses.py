"""Where each weight of a network is used: the operations that bring it together with what depends on the input."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.graph.interpreter import as_floating
from normscope.graph.interpreter import call as execute
from normscope.graph.ir import SOURCES, Graph, Node, Ref, references
from normscope.graph.recognise import name_of
from normscope.linalg.dense import matrix_norm
from normscope.operators.expression import Expr, operands, reached
from normscope.operators.normalizer import kinds_by_op
from normscope.operators.program import Program, ProgramBuilder
from normscope.operators.registry import bind, expressions

#: Operations that copy entries of a weight, each output entry from one place.
COPIES = frozenset({
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "permute", "transpose", "t", "mT", "movedim", "moveaxis",
    "squeeze", "unsqueeze", "expand", "expand_as", "contiguous", "clone", "to", "_to_copy", "detach", "alias", "slice",
    "select", "narrow", "repeat", "lift_fresh_copy", "lift_fresh", "embedding", "index_select", "split", "getitem",
    "split_with_sizes", "chunk", "unbind", "swapaxes", "broadcast_to", "numpy_T", "float", "double",
})  # fmt: skip
#: Operations that read the shape of a weight and nothing else of it.
_SHAPE_ONLY = frozenset({
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "sym_size",
    "size", "sym_numel", "numel", "arange", "zeros", "ones", "full", "empty",
})  # fmt: skip
#: Operations that read an entry of a weight as a Python number.
_NUMBERS = frozenset({"item", "_local_scalar_dense"})
#: Products linear in each factor, and convolutions.
MATRICES = frozenset({"linear", "mm", "matmul", "bmm", "addmm", "baddbmm", "mv"})
CONVOLUTIONS = frozenset({
    "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
})  # fmt: skip
#: Operations whose outputs each depend on one entry of the argument, affinely: arguments by operation, ``*`` for any.
DIAGONAL: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("add", "sub", "rsub", "mul", "cat", "concat", "stack", "where"), frozenset({"*"})),
    **dict.fromkeys(kinds_by_op(), frozenset({"weight", "bias"})),
    **dict.fromkeys(("linear", *CONVOLUTIONS), frozenset({"bias"})),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "div"), frozenset({"self"})),
    **dict.fromkeys(("prelu", "_prelu_kernel", "embedding"), frozenset({"weight"})),
}
#: Entries of a constant, and of its derivative in a weight, up to which the latter is written out.
LARGEST, LARGEST_DERIVATIVE = 1_024, 2**22
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
_CELLS = frozenset(f"{name}_cell" for name in RECURRENT)


@dataclass(frozen=True)
class Leaf:
    """A weight: a parameter, or what a parametrization makes of parameters."""

    name: str  #: the parameter's name, unique
    nodes: tuple[str, ...]  #: graph nodes that stand for it (tied parameters have several)
    shape: tuple[int, ...]  #: its shape
    #: whether it is computed from parameters (weight normalization, standardization): the weight as it acts
    effective: bool = False


@dataclass(frozen=True, eq=False)
class Use:
    """One place where a weight meets what depends on the input: ``y = op(h, c(W))``."""

    leaf: int  #: index of the weight
    node: str  #: the operation
    argument: str  #: the name of its argument that holds ``c(W)``
    constant: str  #: the node of ``c(W)``
    copies: float  #: norm of ``W -> c(W)``, which copies entries: the root of how often the most used one is
    #: ``matrix``, ``convolution``, ``diagonal``, ``recurrent``, ``recurrent bias``, ``constant`` (through a constant
    #: computed from it, ``copies`` being the norm of the derivative of that constant) or ``unknown``
    kind: str
    place: Expr | None  #: the expression of ``y``, where a change of the weight is felt first
    source: Expr | None = None  #: the expression of ``h``, inside a recurrent operation
    reason: str = ""  #: why nothing is known, for ``unknown``
    through: int | None = None  #: for ``constant``, the index of the use of that constant


@dataclass(frozen=True, eq=False)
class Weights:
    """Every weight of a network and every use of it, with the program they belong to."""

    program: Program
    leaves: tuple[Leaf, ...]
    uses: tuple[Use, ...]
    #: parameters that are also read as Python numbers, as indices or as conditions
    discrete: frozenset[str] = frozenset()

    def of(self, leaf: int) -> list[int]:
        """Return the indices of the uses of a weight."""
        return [i for i, use in enumerate(self.uses) if use.leaf == leaf]

    def parameters(self, graph: Graph, leaf: int | None = None) -> set[str]:
        """Return the parameters that are a weight, by default any, or that it is computed from as a tensor."""
        leaves = self.leaves if leaf is None else self.leaves[leaf : leaf + 1]
        nodes = _reached((n for found in leaves for n in found.nodes), lambda name: _tensors_read(graph[name]))
        return {graph[name].target for name in nodes if graph[name].op == "parameter"}


def find_weights(graph: Graph, tensors: Mapping[str, Tensor], inputs: Sequence[Any]) -> Weights:
    """Walk a graph and return its weights with their uses.

    >>> from torch import nn
    >>> from normscope.graph.capture import capture
    >>> from normscope.graph.inputs import ModelInputs
    >>> made = capture(nn.Linear(3, 2), ModelInputs((torch.ones(1, 3),)))
    >>> [(leaf.name, leaf.shape) for leaf in find_weights(made.graph, made.tensors, made.at_batch(1)).leaves]
    [('weight', (2, 3)), ('bias', (2,))]
    """
    walk = _Keeping(graph, tensors, inputs)
    program = walk.run()
    finder = _Finder(graph, tensors, walk, program)
    for node in graph:
        if node.name in walk.exprs:
            finder.look(node)
    finder.through_constants()
    return Weights(program, tuple(finder.leaves()), tuple(finder.uses), frozenset(finder.discrete))


class _Keeping(ProgramBuilder):
    """A walk that keeps what constants are computed from besides weights: masks, positions, initial states."""

    def _needed_later(self) -> set[str]:
        moved: set[str] = set()
        for node in self.graph:
            if node.op == "parameter" or any(name in moved for name in node.inputs()):
                moved.add(node.name)
        beside = {name for node in self.graph if node.name in moved for name in node.inputs() if name not in moved}
        return super()._needed_later() | beside


class _Finder:
    """Collects weights and uses in the order of the graph."""

    def __init__(self, graph: Graph, tensors: Mapping[str, Tensor], walk: ProgramBuilder, program: Program) -> None:
        self.graph, self.tensors, self.walk, self.program = graph, tensors, walk, program
        self.uses: list[Use] = []
        self._keys: dict[Any, int] = {}
        self._found: list[Leaf] = []
        self.discrete: set[str] = set()
        self._hidden = _rewritten(graph, program)

    def leaves(self) -> list[Leaf]:
        """Return the weights found, the nodes of tied parameters complete."""
        extra: dict[int, list[str]] = {}
        for node in self.graph:
            index = self._keys.get(self._key(node)) if node.op == "parameter" else None
            if index is not None:
                extra.setdefault(index, []).append(node.name)
        return [
            leaf if leaf.effective else Leaf(leaf.name, tuple(extra[i]), leaf.shape)
            for i, leaf in enumerate(self._found)
        ]

    def _key(self, node: Node) -> Any:
        """Return what makes a weight the same weight: for a parameter its storage, otherwise its node."""
        if node.op != "parameter":
            return node.name
        tensor = self.tensors[node.target]
        return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) if tensor.numel() else node.target

    def look(self, node: Node) -> None:
        """Note every weight an operation uses."""
        if node.op in (*SOURCES, "output", "getitem") or node.op.startswith("python."):
            return
        arguments = bind(node.op, list(node.args), dict(node.kwargs))
        for name, value in arguments.items():
            for position, ref in enumerate(references(value)):
                if ref.name not in self.walk.exprs and self.walk.names.get(ref.name):
                    self._use(node, arguments, name, position, ref.name)

    def _use(self, node: Node, arguments: dict[str, Any], name: str, position: int, constant: str) -> None:
        start, chain = self._back(constant)
        value, above = self._value(start), self._above(start)
        read = _reached((n.name for n in above if name_of(n) in _NUMBERS), lambda name: self.graph[name].inputs())
        self.discrete.update(n.target for n in above if n.op == "parameter" and n.name in read)
        if name_of(start) in _SHAPE_ONLY:
            return
        if value is not None and not (isinstance(value, Tensor) and value.is_floating_point()):
            self._unknown(node, name, above)
            return
        rest = (self._leaf(start), node.name, name, constant, self._copies(start, chain))
        if node.name in self._hidden:
            self.uses.append(Use(*rest, "unknown", None, None, "it is inside a normalizer written out by hand"))
        elif not self.walk.discrete.isdisjoint((start.name, *chain)):
            self.uses.append(Use(*rest, "unknown", None, None, "which entries are used depends on the input"))
        elif name_of(node) in RECURRENT | _CELLS:
            self._recurrent(node, arguments, name, position, rest)
        else:
            kind = kind_of(name_of(node), name)
            place = next(iter(expressions(self.walk.exprs[node.name])), None)
            reason = f"no rule says how the result of {node.op} depends on its {name}" if kind == "unknown" else ""
            self.uses.append(Use(*rest, kind, place, None, reason))

    def _leaf(self, start: Node) -> int:
        """Return the index of a weight, which is listed if it is not yet."""
        key = self._key(start)
        if key not in self._keys:
            self._keys[key] = len(self._found)
            effective = start.op != "parameter"
            label = f"{self.walk.names[start.name]} (effective)" if effective else start.target
            taken = sum(found.name.partition("#")[0] == label for found in self._found)
            label = f"{label}#{taken + 1}" if taken else label
            value = self._value(start)
            shape = () if value is None else tuple(value.shape)
            self._found.append(Leaf(label, (start.name,), shape, effective))
        return self._keys[key]

    def _value(self, start: Node) -> Any:
        """Return the value of a weight, or ``None`` if it is not known."""
        return self.tensors[start.target] if start.op == "parameter" else self.walk.constant_at(start.name)

    def _unknown(self, node: Node, argument: str, above: list[Node]) -> None:
        """Note weights that a number, an index or a condition is computed from."""
        for parameter in (n for n in above if n.op == "parameter"):
            self.discrete.add(parameter.target)
            reason = "it is read as a number, as an index or as a condition"
            use = (self._leaf(parameter), node.name, argument, parameter.name, 1.0)
            self.uses.append(Use(*use, "unknown", None, None, reason))

    def through_constants(self) -> None:
        """Note where weights act through constants computed from them, besides their uses as they are."""
        for number, use in enumerate(tuple(self.uses)):
            if not self._found[use.leaf].effective:
                continue
            start = self.graph[self._found[use.leaf].nodes[0]]
            for index, nodes in self._weights_above(start).items():
                norm = self._derivative(start, nodes)
                place = use.place if norm is not None and use.kind == "diagonal" else None
                large = "it also acts through a large constant computed from it"
                reason = large if norm is None else "through a constant" if place is None else ""
                kind = "unknown" if place is None else "constant"
                spot = (index, use.node, use.argument, use.constant, norm or 0.0)
                self.uses.append(Use(*spot, kind, place, None, reason, through=number))

    def _above(self, start: Node) -> list[Node]:
        """Return the nodes that lead from weights to a constant, in order, itself last."""
        seen = _reached([start.name], lambda name: filter(self.walk.names.get, self.graph[name].inputs()))
        return [node for node in self.graph if node.name in seen]

    def _weights_above(self, start: Node) -> dict[int, list[str]]:
        """Return the weights, known by uses of their own, that a constant is computed from."""
        found: dict[int, list[str]] = {}
        for node in self._above(start):
            if node.op == "parameter" and self._key(node) in self._keys:
                found.setdefault(self._keys[self._key(node)], []).append(node.name)
        return found

    def _derivative(self, start: Node, weights: list[str]) -> float | None:
        """Return the norm of the derivative of a constant in a weight, rounded up, or ``None`` if it is large."""
        point = self.tensors[self.graph[weights[0]].target].detach().to(torch.float64).requires_grad_(True)
        values: dict[str, Any] = dict.fromkeys(weights, point)
        with torch.enable_grad():
            for node in self._above(start):
                read = {n: values[n] if n in values else self._given(n) for n in node.inputs()}
                given = as_floating(read, torch.float64)
                if any(value is None for value in given.values()):
                    return None
                if node.name not in values:
                    own = self._given(node.name) if node.op in SOURCES else execute(node, given, torch.float64)
                    values[node.name] = as_floating(own, torch.float64)
            out = values[start.name].flatten()
            if not out.requires_grad:
                return 0.0
            if out.numel() > LARGEST or out.numel() * point.numel() > LARGEST_DERIVATIVE:
                return None
            rows = [torch.autograd.grad(y, point, retain_graph=True, allow_unused=True)[0] for y in out]
        full = [torch.zeros_like(point) if row is None else row for row in rows]
        return matrix_norm(torch.stack([row.detach().flatten() for row in full])).upper * (1 + 1e-12)

    def _back(self, constant: str) -> tuple[Node, tuple[str, ...]]:
        """Follow a constant back through copies; return the weight it comes from and the nodes on the way."""
        node, chain = self.graph[constant], list[str]()
        while node.op != "parameter":
            weights = [n for n in node.inputs() if self.walk.names.get(n)]
            first = next(references(node.args), None)
            if name_of(node) not in COPIES or len(weights) != 1 or first != Ref(weights[0]):
                break
            if name_of(node) == "getitem" and name_of(self.graph[weights[0]]) not in COPIES:
                break  # one of several results of an operation that does more than copy
            chain.append(node.name)
            node = self.graph[weights[0]]
        return node, tuple(reversed(chain))

    def _copies(self, start: Node, chain: tuple[str, ...]) -> float:
        """Return the norm of a chain of copies: the root of how often the most used entry is copied."""
        if not chain or any(n in self.walk.discrete for n in chain):
            return 1.0
        weight = self.walk.constant_at(start.name)
        if weight is None:
            return math.inf
        entries = torch.zeros(weight.shape, dtype=torch.float64, device=weight.device, requires_grad=True)
        values: dict[str, Any] = {start.name: entries}
        with torch.enable_grad():
            for name in chain:
                given = {n: values.get(n, self._given(n)) for n in self.graph[name].inputs()}
                values[name] = execute(self.graph[name], given, torch.float64)
            (counts,) = torch.autograd.grad(values[chain[-1]].sum(), entries)
        return math.sqrt(float(counts.max())) * (1 + 2.0**-50)

    def _given(self, name: str) -> Any:
        known = self.walk.values.get(name)
        return self.walk.constant_at(name) if known is None else known

    def _recurrent(
        self, node: Node, arguments: dict[str, Any], name: str, position: int, rest: tuple[int, str, str, str, float]
    ) -> None:
        """Note the products inside a recurrent operation that use a weight, or after which a bias is added."""
        if name == "params":
            per_layer = 4 if arguments["has_biases"] else 2
            params = list(references(arguments["params"]))
            bias = position % per_layer >= 2
            partner = params[position - 2] if bias else params[position]
        elif name in ("w_ih", "w_hh", "b_ih", "b_hh"):
            bias = name.startswith("b")
            partner = arguments[name.replace("b_", "w_")]
        else:
            reason = f"no rule says how the result of {node.op} depends on its {name}"
            self.uses.append(Use(*rest, "unknown", None, None, reason))
            return
        products = list(self._products(node, arguments, partner.name))
        if not products:
            self.uses.append(Use(*rest, "unknown", None, None, f"{node.op} was not unrolled"))
        for expr in products:
            self.uses.append(Use(*rest, "recurrent bias" if bias else "recurrent", expr, expr.inputs[0]))

    def _products(self, node: Node, arguments: dict[str, Any], weight: str) -> Iterator[Expr]:
        """Yield the products with a weight that one operation was unrolled into."""
        source = self.graph[weight]
        if source.op != "parameter":
            return
        wanted = self.tensors[source.target]
        given = [self.walk.exprs[r.name] for r in references(tuple(arguments.values())) if r.name in self.walk.exprs]
        before = max((e.id for item in given for e in expressions(item)), default=-1)
        for expr in reached(expressions(self.walk.exprs[node.name]), operands, range(before + 1)):
            op = expr.op
            if op is not None and op.kind == "matrix" and _is_same(op.data["weight"], wanted):
                yield expr


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same entries in the same memory, one perhaps transposed."""
    return a.data_ptr() == b.data_ptr() and sorted(zip(a.shape, a.stride(), strict=True)) == sorted(
        zip(b.shape, b.stride(), strict=True)
    )


def kind_of(op: str, argument: str) -> str:
    """Return how the result of an operation depends on one of its arguments.

    >>> kind_of("linear", "weight"), kind_of("linear", "bias"), kind_of("conv2d", "weight"), kind_of("sin", "self")
    ('matrix', 'diagonal', 'convolution', 'unknown')
    """
    known = DIAGONAL.get(op, frozenset())
    if argument in known or ("*" in known and argument not in ("alpha", "condition")):
        return "diagonal"
    if op in CONVOLUTIONS:
        return "convolution" if argument == "weight" else "unknown"
    return "matrix" if op in MATRICES else "unknown"


def _rewritten(graph: Graph, program: Program) -> set[str]:
    """Return the nodes strictly inside normalizers that were recognized as one: their own expressions go nowhere."""
    users = graph.users()
    hidden: set[str] = set()
    for site in program.sites:
        if not site.written_out or site.source not in users:
            continue
        down = _reached(users[site.source], users.__getitem__)
        up = _reached([site.node], lambda name: graph[name].inputs())
        hidden |= (down & up) - {site.node, site.source}
    return hidden


def _tensors_read(node: Node) -> Iterable[str]:
    """Return what a node reads, nothing if it makes a Python number of it."""
    return () if name_of(node) in _NUMBERS else node.inputs()


def _reached(start: Iterable[str], follow: Callable[[str], Iterable[str]]) -> set[str]:
    """Return some nodes and all that can be reached from them."""
    seen: set[str] = set()
    stack = list(start)
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            stack.extend(follow(name))
    return seen
