"""Rescale the channels of a network so that bounds do not depend on how they were scaled."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.graph.capture import Captured
from normscope.graph.interpreter import as_floating
from normscope.graph.ir import SOURCES, Graph, Node, Ref, references
from normscope.graph.recognise import name_of
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF
from normscope.lipschitz.local.values_at_point import ValueAtPoint
from normscope.operators.expression import Expr, operands, reached
from normscope.operators.program import Program, build_program

#: Operations that treat entries one by one and commute with positive factors.
_ENTRYWISE = ("relu", "relu_", "leaky_relu", "leaky_relu_", "dropout", "clone", "contiguous", "detach", "alias")
#: The same for channels along the axis after the batch.
_CHANNELWISE = (
    "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d",
)  # fmt: skip
#: Normalizers with a factor for each channel at their end: the place of that factor among the arguments.
_NORMALIZERS = {"group_norm": 2, "instance_norm": 1, "layer_norm": 2}
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
#: How often the channels between layers are balanced.
SWEEPS = 40
#: Powers of two beyond which a channel is left as it is.
LARGEST_EXPONENT = 60
#: Most numbers in weights that are copied to be balanced without rounding the factors to powers of two.
LARGEST = 2**25


@statement("normscope", "LOCAL-13", holds="the network stays the same function; powers of two round nothing")
def with_balanced_channels(captured: Captured) -> Captured:
    r"""Return the same function with balanced channels: the weights that write one are about as large as its readers.

    Between layers channels may be scaled by any :math:`D > 0`, as
    :math:`W_2 f(W_1 x + b) = (W_2 D^{-1}) f(D (W_1 x + b))` for :math:`f(d t) = d f(t)`; through residual sums, pools
    and BatchNorm with fixed statistics too, and behind the factors of other normalizers. Channels of tokens stand along
    the last axis. A network, and the same network with channels scaled by powers of two, become the same numbers.
    Balanced, products of norms are small, so that errors bounded by them are.

    Args:
        captured: the model. Where nothing can be scaled it is returned as it is.
    """
    channels = _Channels(captured.graph)
    if not channels.layers:
        return captured
    scales = torch.exp2(channels.exponents(captured).round())
    tensors = channels.scaled(captured.tensors, scales)
    back = channels.scaled(tensors, scales.reciprocal())
    exact = all(torch.equal(back[name], captured.tensors[name]) for layer in channels.layers for name in layer.names)
    return replace(captured, tensors=tensors) if exact else captured  # beyond the range of its numbers


@dataclass(eq=False)
class BalancedProgram(Program):
    """A network whose channels are balanced by any factors, not only powers of two: its weights are rounded.

    No norm of it, and no margin for rounding, depends on how its channels were scaled. Its values are those of the
    original, whose weights were not rounded.
    """

    original: Program = field(default_factory=Program)  #: the network that it is made of
    #: expressions of the original that an operation reads, or that are outputs; with the id of the same one here, and
    #: what its channels are multiplied by, in its rank
    read: list[tuple[Expr, int, Tensor]] = field(default_factory=list)

    def rescaled(self, values: Mapping[int, ValueAtPoint]) -> dict[int, ValueAtPoint]:
        """Return values of the original as they are here, by the ids of expressions here."""
        found = {}
        for expr, key, scale in self.read:
            at, most = values[expr.id], float(scale.max()) * (1 + 1e-12)
            value = at.value * scale
            rounding = 1.01 * UNIT_ROUNDOFF * float(value.norm())
            found[key] = ValueAtPoint(value, most * at.error + rounding, most * at.fresh + rounding)
        return found


def balanced_program(captured: Captured, inputs: Sequence[Any]) -> Program:
    """Return the program of a network for walks around points, with its channels balanced where they can be.

    Args:
        captured: the model, its channels balanced by powers of two.
        inputs: reference inputs, one tensor per input node.
    """
    original, channels = build_program(captured.graph, captured.tensors, inputs), _Channels(captured.graph)
    size = sum(captured.tensors[layer.weight].numel() for layer in channels.layers)
    if not 0 < size <= LARGEST:
        return original
    scales = torch.exp2(channels.exponents(captured))
    tensors = channels.scaled(captured.tensors_as(torch.float64), scales)
    try:
        made = build_program(captured.graph, tensors, [as_floating(x, torch.float64) for x in inputs])
    except RuntimeError:  # an operation that names its precision
        return original
    every = [reached([e for _, e in program.outputs], operands) for program in (original, made)]
    if [_kind(e) for e in every[0]] != [_kind(e) for e in every[1]]:
        return original
    pairs = list(zip(*every, strict=True))
    wanted = {e.id for _, e in made.outputs} | {i.id for _, e in pairs if e.op is None for i in operands(e)}
    read = [(a, b.id, channels.of(made.nodes.get(b.id, ""), b.shape, scales)) for a, b in pairs if b.id in wanted]
    return BalancedProgram(**vars(made), original=original, read=read)


def _kind(expr: Expr) -> tuple[Any, ...]:
    """Return properties of an expression that do not depend on its weights."""
    return expr.shape, type(expr.atom), None if expr.op is None else expr.op.kind, len(operands(expr))


@dataclass(frozen=True, eq=False)
class _Layer:
    """A layer that reads channels and writes others."""

    reads: Tensor  #: numbers of the channels it reads
    writes: Tensor  #: numbers of those it writes
    weight: str  #: name of its weight
    bias: str | None  #: name of its bias, if it has one
    mean: str | None = None  #: name of the running mean; only a BatchNorm has one
    variance: str | None = None  #: name of the running variance
    eps: float = 0.0  #: what is added to it
    diagonal: bool = False  #: whether each channel that it writes reads one alone

    @property
    def names(self) -> list[str]:
        """Return the names of the tensors that are scaled with its channels."""
        return [name for name in (self.weight, self.bias, self.mean) if name is not None]

    def factors(self, scales: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of each tensor and its factor, from the factors of the channels."""
        into, out = scales[self.reads].reciprocal(), scales[self.writes]
        yield self.weight, out * into if self.diagonal else out[:, None] * into
        if self.bias is not None:
            yield self.bias, out
        if self.mean is not None:
            yield self.mean, scales[self.reads]

    def squares(self, tensors: dict[str, Tensor]) -> Tensor:
        """Return the squares of the weights by channel written and channel read, summed over the places of a kernel."""
        weight = tensors[self.weight].detach().double().square()
        if self.variance is not None:
            weight = weight / (tensors[self.variance].detach().double() + self.eps)
        if self.diagonal:
            return weight.diag()
        return weight.flatten(2).sum(2) if weight.ndim > 2 else weight


class _Channels:
    """The channels of a graph, numbered; those that must be scaled alike have one number.

    Args:
        graph: of a model.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.layers: list[_Layer] = []
        self._same: list[int] = []
        self._fixed: set[int] = set()
        self._of: dict[str, list[int]] = {}
        self._along: dict[str, int] = {}  # the axis of the channels, where it is not the one after the batch
        self._uses = Counter(ref.name for node in graph for ref in references((node.args, node.kwargs)))
        self._holders = Counter(node.target for node in graph if node.target)
        for node in graph:
            if node.op == "input":
                self._of[node.name] = self._fixed_channels(node)
            elif node.op not in SOURCES and any(name in self._of for name in node.inputs()):
                self._of[node.name] = self._after(node)
        self.layers = [replace(x, reads=self._roots(x.reads), writes=self._roots(x.writes)) for x in self.layers]

    def numbers(self, name: str) -> Tensor | None:
        """Return the numbers of the channels of what a node computes, if they are known."""
        return self._roots(torch.tensor(self._of[name])) if self._of.get(name) else None

    def axis(self, name: str) -> int:
        """Return the axis along which the channels of what a node computes stand."""
        return self._along.get(name, 1)

    def of(self, name: str, shape: Sequence[int], scales: Tensor) -> Tensor:
        """Return what the channels of what a node computes are multiplied by, in its rank; one if that is not known."""
        numbers, axis = self.numbers(name), self.axis(name)
        if numbers is None or not axis < len(shape) or shape[axis] != len(numbers):
            return torch.ones((), dtype=torch.float64)
        return scales[numbers].reshape([-1 if i == axis else 1 for i in range(len(shape))])

    def scaled(self, tensors: Mapping[str, Tensor], scales: Tensor) -> dict[str, Tensor]:
        """Return the tensors of the same network with its channels scaled."""
        found = dict(tensors)
        for layer in self.layers:
            for name, factor in layer.factors(scales):
                tensor = found[name].detach()
                found[name] = tensor * factor.to(tensor).reshape(*factor.shape, *(1,) * (tensor.ndim - factor.ndim))
        return found

    def exponents(self, captured: Captured) -> Tensor:
        """Return for every number the power of two its channel is multiplied by to be balanced, not rounded."""
        squares = [layer.squares(captured.tensors) for layer in self.layers]
        free = torch.ones(len(self._same), dtype=torch.bool)
        free[[self._root(i) for i in self._fixed]] = False
        found = self._as_read(squares, free)
        for sweep in range(SWEEPS):
            into, out = torch.zeros_like(found), torch.zeros_like(found)
            turn = torch.zeros_like(free)
            for number, (layer, square) in enumerate(zip(self.layers, squares, strict=True)):
                scaled = square * torch.exp2(2 * found[layer.writes])[:, None] * torch.exp2(-2 * found[layer.reads])
                into.index_add_(0, layer.writes, scaled.sum(1))
                out.index_add_(0, layer.reads, scaled.sum(0))
                turn[layer.writes] |= number % 2 == sweep % 2  # neighbours that moved together would overshoot
            moved = free & turn & (into > 0) & (out > 0)
            found[moved] += (out[moved] / into[moved]).log2() / 4
        return torch.where(found.abs() <= LARGEST_EXPONENT, found, 0.0)

    def _as_read(self, squares: Sequence[Tensor], free: Tensor) -> Tensor:
        """Return the exponents that bring the weights reading each channel to norm one, the last layer first.

        They do not depend on how the channels were scaled; balancing starts from them.
        """
        found, known = torch.zeros(len(free), dtype=torch.float64), set((~free).nonzero().flatten().tolist())
        for layer, square in zip(reversed(self.layers), reversed(squares), strict=True):
            sizes = (square * torch.exp2(2 * found[layer.writes])[:, None]).sum(0)
            for number, size in zip(layer.reads.tolist(), sizes.tolist(), strict=True):
                if number not in known and size > 0:
                    known.add(number)
                    found[number] = math.log2(size) / 2
        return found

    def _after(self, node: Node) -> list[int]:
        """Return the channels of what a node computes; those of an operation not known here stay as they are."""
        name, read = name_of(node), [n for n in node.inputs() if n in self._of]
        first = node.args[0].name if node.args and isinstance(node.args[0], Ref) else ""
        found, axis = None, 1
        if first in self._of and len(read) == 1:
            axis = self.axis(first)
            if name == "linear" or name in _NORMALIZERS:
                axis = 1 if name in ("group_norm", "instance_norm") else len(node.shape or ()) - 1
                found = self._multiplied(node, first, name) if name == "linear" else self._scaled(node, name, axis)
            elif name in _ENTRYWISE:
                found = self._of[first]
            elif axis == 1:
                found = self._of_images(node, first, name)
        elif name == "add" and len(read) == 2 and len(node.args) == 2 and not node.kwargs:
            axis = self.axis(read[0])
            shapes, given = [self.graph[n].shape or () for n in read], [self._of[n] for n in read]
            alike = axis == self.axis(read[1]) and len(shapes[0]) == len(shapes[1]) and len(given[0]) == len(given[1])
            found = self._tied(given) if node.shape is not None and alike else None
        if found is None or node.shape is None or not 1 <= axis < len(node.shape) or len(found) != node.shape[axis]:
            self._fixed.update(*(self._of[n] for n in read))
            return self._fixed_channels(node)
        if axis != 1:
            self._along[node.name] = axis
        return found

    def _of_images(self, node: Node, first: str, name: str) -> list[int] | None:
        """Return the channels after an operation on channels along the axis after the batch."""
        channels = self._of[first]
        if name in _CHANNELWISE or self._along_places(node, name):
            return channels
        if name in _CONVOLUTIONS:
            return self._multiplied(node, first, name)
        if name == "batch_norm":
            return self._normalized(node, channels)
        if name in ("flatten", "view", "reshape"):
            return self._flattened(node, first, channels)
        return self._padded(node, channels) if name == "pad" else None

    def _multiplied(self, node: Node, first: str, name: str) -> list[int] | None:
        """Return the channels that a convolution without groups or a linear layer writes."""
        if not self._owns(node, 1, 2) or node.shape is None:
            return None
        weight, channels = self.graph[node.args[1].name].shape, self._of[first]
        if weight is None or (name == "linear" and len(weight) != 2):
            return None
        if name == "linear" and self.axis(first) != len(node.shape) - 1:
            self._fixed.update(channels)
            channels = self._held(weight[1])
        if weight[1] != len(channels):
            return None
        return self._written(_Layer(torch.tensor(channels), self._new(weight[0]), *self._names(node, 1, 2)))

    def _scaled(self, node: Node, name: str, axis: int) -> list[int] | None:
        """Return the channels that a normalizer writes; what it reads stays as it is."""
        place = _NORMALIZERS[name]
        if not self._owns(node, place, place + 1) or node.shape is None:
            return None
        weight = self.graph[node.args[place].name].shape
        if weight is None or tuple(weight) != (node.shape[axis],):
            return None
        self._fixed.update(self._of[node.args[0].name])
        reads, (own, bias) = torch.tensor(self._held(weight[0])), self._names(node, place, place + 1)
        return self._written(_Layer(reads, self._new(weight[0]), own, bias, diagonal=True))

    def _normalized(self, node: Node, channels: list[int]) -> list[int] | None:
        """Return the channels that a BatchNorm with fixed statistics writes."""
        fixed = len(node.args) > 5 and node.args[5] is False
        if not fixed or not self._owns(node, 1, 2, 3) or None in (node.args[3], node.args[4]):
            return None
        layer = _Layer(torch.tensor(channels), self._new(len(channels)), *self._names(node, 1, 2, 3, 4))
        return self._written(replace(layer, eps=float(node.args[7]), diagonal=True))

    def _written(self, layer: _Layer) -> list[int]:
        self.layers.append(layer)
        return layer.writes.tolist()

    def _along_places(self, node: Node, name: str) -> bool:
        """Return whether an operation takes means or slices along axes that are not channels."""
        if name == "slice":
            whole = node.shape == self.graph[node.args[0].name].shape
            return whole or (len(node.args) > 1 and isinstance(node.args[1], int) and node.args[1] > 1)
        axes = node.args[1] if name == "mean" and len(node.args) > 1 else None
        rank = len(self.graph[node.args[0].name].shape or ()) if axes is not None else 0
        return isinstance(axes, tuple | list) and all(isinstance(a, int) and a % rank > 1 for a in axes)

    def _flattened(self, node: Node, first: str, channels: list[int]) -> list[int] | None:
        """Return the channels of a tensor whose axes behind the first became one."""
        before = self.graph[first].shape
        if before is None or node.shape is None or len(node.shape) != 2 or node.shape[1] != math.prod(before[1:]):
            return None
        places = math.prod(before[2:])
        return [channel for channel in channels for _ in range(places)]

    def _padded(self, node: Node, channels: list[int]) -> list[int] | None:
        """Return the channels of a tensor with zeros around; channels of zeros are new ones."""
        amounts, value = node.args[1], node.args[3] if len(node.args) > 3 else dict(node.kwargs).get("value")
        mode = node.args[2] if len(node.args) > 2 else dict(node.kwargs).get("mode", "constant")
        rank = len(node.shape or ())
        if mode != "constant" or value not in (None, 0, 0.0) or not all(isinstance(a, int) for a in amounts):
            return None
        pairs = [*zip(amounts[::2], amounts[1::2], strict=True), *[(0, 0)] * rank][:rank][::-1]
        if rank < 2 or pairs[0] != (0, 0) or min(pairs[1]) < 0:
            return None
        return [*self._new(pairs[1][0]).tolist(), *channels, *self._new(pairs[1][1]).tolist()]

    def _tied(self, given: Sequence[list[int]]) -> list[int]:
        """Return the channels of a sum: the terms are scaled alike."""
        for a, b in zip(*given, strict=True):
            self._same[self._root(a)] = self._root(b)
        return given[1]

    def _owns(self, node: Node, *places: int) -> bool:
        """Return whether an operation has a weight, and no other reads the tensors that it reads there."""
        given = [node.args[place] if len(node.args) > place else None for place in places]
        read = [self.graph[a.name] if isinstance(a, Ref) else a for a in given]
        own = (
            a is None
            or (isinstance(a, Node) and a.op in SOURCES[1:] and self._uses[a.name] == self._holders[a.target] == 1)
            for a in read
        )
        return read[0] is not None and all(own)

    def _names(self, node: Node, *places: int) -> Iterator[Any]:
        """Yield the names of the tensors an operation reads there, and ``None`` where it reads none."""
        for argument in (node.args[place] if len(node.args) > place else None for place in places):
            yield None if argument is None else self.graph[argument.name].target

    def _fixed_channels(self, node: Node) -> list[int]:
        return self._held(max(0, node.shape[1] if node.shape is not None and len(node.shape) > 1 else 0))

    def _held(self, count: int) -> list[int]:
        """Return the numbers of so many new channels that are not scaled."""
        new: list[int] = self._new(count).tolist()
        self._fixed.update(new)
        return new

    def _new(self, count: int) -> Tensor:
        start = len(self._same)
        self._same.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def _root(self, number: int) -> int:
        while self._same[number] != number:
            self._same[number] = number = self._same[self._same[number]]
        return number

    def _roots(self, numbers: Tensor) -> Tensor:
        return torch.tensor([self._root(i) for i in numbers.tolist()], dtype=torch.long)
