"""Find the parameters that a network adds to its tensors: biases, shifts, embedding tables, learned positions."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from normscope.geometry.function import ModelFunction
from normscope.graph.ir import Graph, Node, Ref
from normscope.graph.recognise import name_of
from normscope.operators.registry import arguments_of

#: Operations with a bias: the name of the argument, and the axis of the result along which it is added.
_BIASED = {
    "addmm": ("self", -1),
    **dict.fromkeys(("linear", "layer_norm"), ("bias", -1)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv_transpose2d"), ("bias", 1)),
    **dict.fromkeys(("batch_norm", "_native_batch_norm_legit", "instance_norm", "group_norm"), ("bias", 1)),
}
#: Operations that read rows of a table, and the argument that is the table.
_TABLES = {"embedding": "weight", "index": "self", "index_select": "self"}
#: Operations after which a bias could be added as well.
_SAME = ("dropout", "clone", "contiguous", "alias")


@dataclass(frozen=True)
class AddedParameter:
    """A parameter that is added to the result of a node, and so can compensate a constant change of it."""

    parameter: str  #: its name
    axis: int | None  #: the axis it is added along; ``None`` if it broadcasts, entry by entry
    table: bool = False  #: whether it is a table, to every row of which the same vector is added

    def absorbed(self, tangent: Tensor, shape: torch.Size, noise: float = 0.0) -> Tensor | None:
        """Return what to add to the parameter to cancel a change of the result, or ``None`` if it cannot."""
        added = [1] * (tangent.ndim - len(shape)) + list(shape)  # the shape in which it is added
        if self.axis is not None:
            added = [1] * tangent.ndim
            added[self.axis] = tangent.shape[self.axis]
        line = tangent
        for dim, size in enumerate(added):
            line = line.narrow(dim, 0, 1) if size == 1 else line
        if list(line.shape) != added or not equal(line.expand_as(tangent), tangent, noise):
            return None
        return -line.reshape(-1).expand(shape) if self.table else -line.reshape(shape)


def takes_up(node: Node) -> bool:
    """Return whether a node is a linear layer with a bias: a change that vanishes after it may not vanish elsewhere."""
    return name_of(node) in _BIASED and "norm" not in name_of(node)


def equal(a: Tensor, b: Tensor, noise: float) -> bool:
    """Return whether two changes agree up to rounding."""
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max()) <= 1e-9 * float(b.abs().max()) + noise


@dataclass(eq=False)
class Biases:
    """The parameters that a network adds to its tensors, by graph node."""

    own: dict[str, AddedParameter] = field(default_factory=dict)  #: the parameter added to the result of each node
    #: for each sum, the parameters added through its summands
    beside: dict[str, list[AddedParameter]] = field(default_factory=dict)
    #: parameters that are added to each other inside one operation
    pairs: list[tuple[str, str]] = field(default_factory=list)
    #: for each recurrent layer, its input weights and the biases added to their products
    inside: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    #: every bias, shift and table, also those that are used several times
    sources: dict[str, AddedParameter] = field(default_factory=dict)


def find_biases(function: ModelFunction) -> Biases:
    """Return where biases, shifts, tables and learned positions are added."""
    graph, found = function.graph, Biases()
    users = graph.users()
    targets = {n.name: function.canonical(n.target) for n in graph if n.op == "parameter"}
    count = Counter(target for name, target in targets.items() for _ in users[name])
    single = {name: t for name, t in targets.items() if count[t] == 1 and t in function.names}
    for node in graph:
        if not node.op.startswith("aten."):
            continue
        name, arguments = name_of(node), arguments_of(node)
        if name in _BIASED:
            argument, axis = _BIASED[name]
            ref = arguments.get(argument)
            if isinstance(ref, Ref) and targets.get(ref.name) in function.names:
                found.sources[targets[ref.name]] = AddedParameter(targets[ref.name], axis)
            if isinstance(ref, Ref) and ref.name in single:
                found.own[node.name] = AddedParameter(single[ref.name], axis)
        elif name in _TABLES and isinstance(ref := arguments[_TABLES[name]], Ref) and ref.name in single:
            found.own[node.name] = AddedParameter(single[ref.name], -1, table=True)
            found.sources[single[ref.name]] = found.own[node.name]
        elif name == "add":
            found.beside[node.name] = _summands(node, single, found, users)
            for ref in node.args[:2]:
                if not isinstance(ref, Ref) or ref.name not in single:
                    continue
                shape = function.tensors[single[ref.name]].shape
                if shape and shape.numel() == shape[-1]:  # a vector
                    found.sources[single[ref.name]] = AddedParameter(single[ref.name], None)
        elif name in ("lstm", "gru", "rnn_tanh", "rnn_relu") and arguments.get("has_biases"):
            params = [single.get(ref.name, "") for ref in arguments["params"]]
            ways = 2 if arguments["bidirectional"] else 1
            cells = [params[i : i + 4] for i in range(0, len(params), 4)]
            if len(params) == 4 * ways * arguments["num_layers"]:  # else the outputs are projected
                found.pairs += [(cell[2], cell[3]) for cell in cells if all(cell[2:])]
                found.inside[node.name] = [(cell[0], cell[2]) for cell in cells[:ways] if all(cell)]
        elif _passes(node, found, users, graph):
            found.own[node.name] = found.own[node.args[0].name]
    return found


def _passes(node: Node, found: Biases, users: Mapping[str, list[str]], graph: Graph) -> bool:
    """Return whether a bias could be added after this operation, the only user of the sum, instead of before it."""
    ref = node.args[0] if node.args else None
    if not isinstance(ref, Ref) or ref.name not in found.own or len(users[ref.name]) > 1:
        return False
    return name_of(node) in _SAME or (found.own[ref.name].axis == -1 and _keeps_last(node, graph))


def _keeps_last(node: Node, graph: Graph) -> bool:
    """Return whether an operation only rearranges entries and leaves the last axis last."""
    before = graph[node.args[0].name].shape
    if before is None or node.shape is None or before[-1:] != node.shape[-1:]:
        return False
    name, last = name_of(node), len(before) - 1
    if name == "transpose":
        return all(dim % (last + 1) != last for dim in node.args[1:3])
    if name == "permute":
        return node.args[1][-1] % (last + 1) == last
    return name in ("view", "reshape", "_unsafe_view")


def _summands(
    node: Node, single: Mapping[str, str], found: Biases, users: Mapping[str, list[str]]
) -> list[AddedParameter]:
    """Return the parameters added in a sum: a summand itself, or the bias of a summand that has no other user."""
    made = []
    for ref in node.args[:2]:
        if isinstance(ref, Ref) and ref.name in single:
            made.append(AddedParameter(single[ref.name], None))
        elif isinstance(ref, Ref) and ref.name in found.own and len(users[ref.name]) == 1:
            made.append(found.own[ref.name])
    return made
