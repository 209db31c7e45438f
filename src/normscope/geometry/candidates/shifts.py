r"""Shifts: a constant added to a channel that a normalizer, another bias or softmax takes away again.

Each bias is moved in a forward-mode run of the network; where the change reaches another bias as a constant per channel
that bias takes it up. What arrives at the outputs decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.autograd.forward_ad as forward
from torch import Tensor

from normscope.geometry.certificate import FLAT, TOLERANCE
from normscope.geometry.function import Function
from normscope.geometry.groups import Certificate, Group, Point
from normscope.geometry.labels import Labels
from normscope.graph.ir import Node, Ref
from normscope.graph.recognise import name_of
from normscope.operators.registry import bind

#: Operations with a bias: its argument and the axis of the result it is added along.
_BIASED = {
    "linear": ("bias", -1),
    "addmm": ("self", -1),
    "conv1d": ("bias", 1),
    "conv2d": ("bias", 1),
    "conv3d": ("bias", 1),
    "conv_transpose2d": ("bias", 1),
    "batch_norm": ("bias", 1),
    "_native_batch_norm_legit": ("bias", 1),
    "instance_norm": ("bias", 1),
    "group_norm": ("bias", 1),
    "layer_norm": ("bias", -1),
}


@dataclass(frozen=True)
class Absorber:
    """A parameter that is added to the result of a node.

    Attributes:
        parameter: its name.
        axis: the axis it is added along; ``None`` if it broadcasts, entry by entry.
        table: it is a table of rows, to each of which the same is added.
    """

    parameter: str
    axis: int | None
    table: bool = False

    def absorbed(self, tangent: Tensor, shape: torch.Size) -> Tensor | None:
        """Return what to add to the parameter so that a change vanishes, or ``None`` if it cannot."""
        if self.axis is None:
            whole = tangent
            while whole.ndim > len(shape):
                whole = whole[0]
            for dim, size in enumerate(shape):
                if size == 1:
                    whole = whole.narrow(dim, 0, 1)
            if whole.shape != shape:
                return None
            return -whole if _equal(whole.expand_as(tangent), tangent) else None
        axis = self.axis % tangent.ndim
        line = tangent
        for dim in range(tangent.ndim):
            if dim != axis:
                line = line.narrow(dim, 0, 1)
        if not _equal(line.expand_as(tangent), tangent):
            return None
        return -line.reshape(-1).expand(shape) if self.table else -line.reshape(shape)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Tell whether two changes agree but for rounding."""
    return float((a - b).abs().max()) <= 1e-9 * float(b.abs().max())


class _MovesError(Exception):
    """A shift moves the outputs."""


@dataclass(eq=False)
class Biases:
    """Where the parameters of a function are added.

    Attributes:
        own: what can be added to the result of each node.
        beside: what can be added to a sum through its other summand.
        pairs: parameters that are added to each other inside one operation.
        sources: every bias, shift and table, also those that are used several times.
    """

    own: dict[str, Absorber] = field(default_factory=dict)
    beside: dict[str, list[Absorber]] = field(default_factory=dict)
    pairs: list[tuple[str, str]] = field(default_factory=list)
    sources: dict[str, Absorber] = field(default_factory=dict)


def find_biases(function: Function) -> Biases:
    """Return where biases, shifts, tables and learned positions are added."""
    graph, found = function.graph, Biases()
    users = graph.users()
    targets = {n.name: function.canonical(n.target) for n in graph if n.op == "parameter"}
    count: dict[str, int] = {}
    for name, target in targets.items():
        count[target] = count.get(target, 0) + len(users[name])
    single = {name: t for name, t in targets.items() if count[t] == 1 and t in function.names}
    for node in graph:
        if not node.op.startswith("aten."):
            continue
        name, arguments = name_of(node), bind(node.op, list(node.args), dict(node.kwargs))
        if name in _BIASED:
            argument, axis = _BIASED[name]
            ref = arguments.get(argument)
            if isinstance(ref, Ref) and targets.get(ref.name) in function.names:
                found.sources[targets[ref.name]] = Absorber(targets[ref.name], axis)
            if isinstance(ref, Ref) and ref.name in single:
                found.own[node.name] = Absorber(single[ref.name], axis)
        elif name == "embedding" and isinstance(arguments["weight"], Ref) and arguments["weight"].name in single:
            found.own[node.name] = Absorber(single[arguments["weight"].name], -1, table=True)
            found.sources[single[arguments["weight"].name]] = found.own[node.name]
        elif name == "add":
            found.beside[node.name] = _summands(node, single, found, users)
        elif name in ("lstm", "gru") and arguments.get("has_biases"):
            params = [single.get(ref.name, "") for ref in arguments["params"]]
            found.pairs += [
                (params[i + 2], params[i + 3]) for i in range(0, len(params), 4) if all(params[i + 2 : i + 4])
            ]
    return found


def _summands(node: Node, single: Mapping[str, str], found: Biases, users: Mapping[str, list[str]]) -> list[Absorber]:
    """Return what is added in a sum: a parameter, or the bias of a summand that nothing else reads."""
    made = []
    for ref in node.args[:2]:
        if isinstance(ref, Ref) and ref.name in single:
            made.append(Absorber(single[ref.name], None))
        elif isinstance(ref, Ref) and ref.name in found.own and len(users[ref.name]) == 1:
            made.append(found.own[ref.name])
    return made


@dataclass(frozen=True, eq=False)
class Shift:
    """Constants added to one parameter and taken up by others.

    Attributes:
        function: the model.
        biases: where parameters are added.
        source: the parameter that is moved.
        basis: what each coefficient adds to it: indices of single entries, or a matrix with one row per coefficient.
        beside: whether the other summand of a sum may take the change up.
        closed: parameters that must not.
    """

    function: Function
    biases: Biases
    source: str
    basis: Tensor
    beside: bool = False
    closed: frozenset[str] = frozenset()

    @property
    def size(self) -> int:
        """Return the number of coefficients."""
        return len(self.basis)

    def subset(self, keep: Tensor) -> Shift:
        """Return some of the coefficients."""
        return replace(self, basis=self.basis[keep])

    def start(self, coefficients: Tensor) -> Tensor:
        """Return what is added to the source."""
        shape = self.function.tensors[self.source].shape
        if self.basis.ndim == 2:
            line = coefficients @ self.basis.double()
            return line.expand(shape) if line.numel() != shape.numel() else line.reshape(shape)
        made = torch.zeros(shape.numel(), dtype=torch.float64)
        made[self.basis] = coefficients
        return made.reshape(shape)

    def push(self, coefficients: Tensor, *, until: float = math.inf) -> tuple[dict[str, Tensor], Tensor]:
        """Return the whole direction, and how the outputs change along it.

        Args:
            coefficients: one for each row of the basis.
            until: give up as soon as the outputs are known to move by more, and nothing behind can take that up.

        Raises:
            _MovesError: if it gave up.
        """
        direction = {self.source: self.start(coefficients)}
        with forward.dual_level(), torch.no_grad():
            point = {self.source: forward.make_dual(self.function.tensors[self.source], direction[self.source])}
            outputs = self.function.outputs(point, self._visitor(direction, until), everywhere=False)
            tangents = [forward.unpack_dual(t) for t in outputs]
        return direction, torch.cat([(torch.zeros_like(p) if t is None else t).reshape(-1) for p, t in tangents])

    def _visitor(self, direction: dict[str, Tensor], until: float) -> Callable[[Node, Any, Any], Any]:
        """Return what lets biases take up changes on the way."""
        size = float(direction[self.source].abs().max())
        last, open_ends = self.function.graph.last_uses, set[str]()

        def visit(node: Node, value: Any, values: Any) -> Any:
            open_ends.difference_update(last[node.name])
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return None
            primal, tangent = forward.unpack_dual(value)
            if tangent is None:
                return None
            ended = self.function.known.get(node.name, primal)
            if float(tangent.abs().max()) <= 1e-11 * size:
                return ended
            candidates = [self.biases.own[node.name]] if node.name in self.biases.own else []
            candidates += self.biases.beside.get(node.name, []) if self.beside else []
            for absorber in candidates:
                if absorber.parameter in direction or absorber.parameter in self.closed:
                    continue
                taken = absorber.absorbed(tangent, self.function.tensors[absorber.parameter].shape)
                if taken is not None:
                    direction[absorber.parameter] = taken.clone()
                    return ended
            open_ends.add(node.name)
            if until < math.inf and len(open_ends) == 1 and self._moves(node, tangent, until):
                raise _MovesError
            return None

        return visit

    def _moves(self, node: Node, tangent: Tensor, until: float) -> bool:
        """Tell whether a change that goes through one node alone moves the outputs by more than a number.

        A change that varies between samples and along every other axis is no constant that a bias behind can take up.
        """
        back = self.function.backwards
        batch = self.function.inputs[0].shape[:1]
        if node.name not in back.nodes or tangent.ndim < 2 or tangent.shape[:1] != batch:
            return False
        least = 1e-6 * float(tangent.abs().max())
        axes = [dim for dim, size in enumerate(tangent.shape) if size > 1 or dim == 0]
        if any(float((tangent - tangent.narrow(dim, 0, 1)).abs().max()) <= least for dim in axes):
            return False
        gradient = back.nodes[node.name]
        along = abs(float((gradient * tangent).sum()))
        return along > max(back.length * until, 1e-9 * float(gradient.norm() * tangent.norm()))

    def field(self, point: Point, coefficients: Tensor) -> dict[str, Tensor]:
        """Return the direction; it depends on the point through the weights between the biases."""
        return self.push(coefficients)[0]

    def move(self, point: Point, coefficients: Tensor, time: float) -> dict[str, Tensor]:
        """Return the moved biases: the orbit is a straight line."""
        return {name: point[name] + time * value for name, value in self.push(coefficients)[0].items()}

    def passes(self, seed: int = 0) -> bool:
        """Tell whether the outputs stay as they are."""
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(self.size, generator=generator, dtype=torch.float64)
        most = FLAT * self.across(float(self.start(drawn).norm()))
        try:
            _, left = self.push(drawn, until=most)
        except _MovesError:
            return False
        return float(left.norm()) <= most

    def across(self, length: float) -> float:
        """Return how far the outputs move along a random direction of the source that is as long, about."""
        gradient = self.function.backwards.parameters[self.source]
        return length * float(gradient.norm()) / gradient.numel() ** 0.5


@dataclass(frozen=True, eq=False)
class Columns(Shift):
    r"""``W -> W + v (1/gamma)^T`` behind a LayerNorm, whose normalized values sum to zero; biases take up the constant.

    Attributes:
        gamma: the name of the LayerNorm's scale, empty for none.
        transposed: whether the weight is stored with its inputs first, as GPT-2's are.
    """

    gamma: str = ""
    transposed: bool = False

    def start(self, coefficients: Tensor) -> Tensor:
        """Return ``v (1/gamma)^T``, as the weight is stored."""
        shape = self.function.tensors[self.source].shape
        rows, columns = reversed(shape) if self.transposed else shape
        line = coefficients @ self.basis.double() if self.basis.ndim == 2 else coefficients
        gain = self.function.tensors[self.gamma] if self.gamma else torch.ones(columns, dtype=torch.float64)
        made = torch.zeros(rows, dtype=torch.float64)
        made[self.basis if self.basis.ndim == 1 else slice(None)] = line
        found = made[:, None] / gain
        return found.T if self.transposed else found


def column_groups(
    function: Function, labels: Labels, biases: Biases, rows: Mapping[str, int], seed: int
) -> list[Group]:
    """Return the verified columns: every weight that reads nothing but a LayerNorm.

    Args:
        function: the model.
        labels: its labelled channels.
        biases: where parameters are added.
        rows: parameters to all rows of which the same may be added.
        seed: of the random coefficients.
    """
    find = labels.same.find
    centred = {tuple(find(x) for x in line.tolist()): gamma for gamma, _, line in labels.centred}
    uses: dict[str, int] = {}
    for product in labels.products:
        uses[product.parameter] = uses.get(product.parameter, 0) + 1
    found: list[Group] = []
    for product in labels.products:
        key = tuple(find(max(x, 0)) for x in product.inputs[0].tolist())
        shape = function.tensors[product.parameter].shape
        if key not in centred or uses[product.parameter] > 1 or len(shape) != 2:
            continue
        straight = torch.arange(shape.numel()).reshape(shape)
        transposed = not torch.equal(product.index, straight)
        if transposed and not torch.equal(product.index, straight.T):
            continue
        count = len(product.index)
        basis = differences(count) if rows.get(product.parameter) == 1 else torch.arange(count)
        family = Columns(function, biases, product.parameter, basis, gamma=centred[key], transposed=transposed)
        if basis.ndim == 1:
            family = replace(family, basis=free_entries(family, seed))
        if family.size and family.passes(seed):
            words = f"{product.parameter} plus v (1/gamma)^T: the LayerNorm before it gives values that sum to zero"
            made = certified(family, words, seed)
            found += [replace(made, kind="column")] if made else []
    return found


@dataclass(frozen=True, eq=False)
class Opposite:
    """Two parameters that are added to each other: one grows by what the other loses.

    Attributes:
        names: the two.
        index: the entries that are moved.
        shape: of the parameters.
    """

    names: tuple[str, str]
    index: Tensor
    shape: torch.Size

    @property
    def size(self) -> int:
        """Return the number of coefficients."""
        return len(self.index)

    def subset(self, keep: Tensor) -> Opposite:
        """Return some of them."""
        return replace(self, index=self.index[keep])

    def field(self, point: Point, coefficients: Tensor) -> dict[str, Tensor]:
        """Return ``(s, -s)``."""
        made = torch.zeros(self.shape, dtype=torch.float64)
        made[self.index] = coefficients
        return {self.names[0]: made, self.names[1]: -made}

    def move(self, point: Point, coefficients: Tensor, time: float) -> dict[str, Tensor]:
        """Return both moved along a straight line."""
        return {name: point[name] + time * value for name, value in self.field(point, coefficients).items()}


def free_entries(shift: Shift, seed: int = 0, least: int | None = None) -> Tensor:
    """Return the entries that may be shifted one by one, by halving or thirds.

    Args:
        shift: the entries that are tried.
        seed: of the random coefficients.
        least: pieces smaller than this are not divided further; a twelfth of all by default, at least one entry.
    """
    if shift.passes(seed):
        return shift.basis
    count = shift.size
    least = max(1, count // 12) if least is None else least
    if count <= least:
        return shift.basis[:0]
    parts = 3 if count % 3 == 0 and count > 3 else 2
    pieces = torch.arange(count).chunk(parts)
    return torch.cat([free_entries(shift.subset(piece), seed, least) for piece in pieces])


def differences(width: int, groups: int = 1) -> Tensor:
    """Return a basis of the vectors that sum to zero over each group.

    >>> differences(3).tolist()
    [[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]]
    """
    size = width // groups
    block = torch.cat([torch.eye(size - 1), -torch.ones(size - 1, 1)], 1).double()
    return torch.block_diag(*[block] * groups)


def ones(width: int, groups: int = 1) -> Tensor:
    """Return the indicator of each group."""
    return torch.block_diag(*[torch.ones(1, width // groups)] * groups).double()


def certified(shift: Shift, words: str, seed: int = 0) -> Group | None:
    """Return a family of shifts with its certificate."""
    from normscope.geometry.certificate import coefficients_of, orbit_change

    coefficients = coefficients_of(shift, seed)
    direction, left = shift.push(coefficients)
    across = shift.across(float(direction[shift.source].norm()))
    derivative = float(left.norm()) / across if across else 0.0
    orbit = orbit_change(shift.function, _Line(direction), coefficients, (0.5,))
    if not (derivative <= FLAT and orbit <= TOLERANCE):
        return None
    return Group("shift", tuple(direction), shift.size, words, shift, Certificate(derivative, orbit))


@dataclass(frozen=True, eq=False)
class _Line:
    """A straight line through the parameters."""

    direction: dict[str, Tensor]

    @property
    def size(self) -> int:
        return 1

    def subset(self, keep: Tensor) -> None:
        return None

    def field(self, point: Point, coefficients: Tensor) -> dict[str, Tensor]:
        return self.direction

    def move(self, point: Point, coefficients: Tensor, time: float) -> dict[str, Tensor]:
        return {name: point[name] + time * value for name, value in self.direction.items()}
