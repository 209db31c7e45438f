"""Where the samples of a batch interact: each operation is tested separately, on values of its own."""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from normscope.graph.capture import Captured
from normscope.graph.interpreter import as_floating, call
from normscope.graph.ir import SOURCES, Graph, Node, Ref, map_refs

#: Batch sizes at which every operation is run: an odd one that shows order, and one beyond most numbers in a graph.
SIZES = (3, 17)
#: Numbers in all values of one sample up to which the larger size is tried too.
SMALL = 2_000_000
#: Further sizes at which what follows from the size alone is computed, and up to how many numbers it may have.
PROBES, FEW = (2, 4, 6, 8, 16, 31, 32, 33, 64, 100, 128, 256, 1024), 256
#: Operations that read the shape of their first argument and none of its numbers.
_SHAPE_ONLY = ("aten.new_", "aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.empty_like", "aten.sym_")
#: Operations that take entries from fixed places along an axis.
_PLACES = ("aten.slice.Tensor", "aten.select.int", "aten.narrow.default", "aten.roll.default")
#: Operations of which shapes and literal arguments tell where samples meet, whatever the numbers in the weights.
_ALIKE = tuple(f"aten.{name}" for name in (
    "linear.default", "layer_norm.default", "rms_norm.default", "relu.default", "gelu.default", "silu.default",
    "tanh.default", "sigmoid.default", "add.Tensor", "sub.Tensor", "mul.Tensor", "conv1d.default", "conv2d.default",
))  # fmt: skip
#: Numbers in the weights up to which samples are compared in float64.
PRECISE = 5_000_000
_FAILURES = (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError, KeyError)


def where_samples_meet(captured: Captured) -> str:
    """Return what makes one sample's outputs depend on the other samples of its batch or their number, or "".

    >>> from torch import nn
    >>> from normscope.graph.capture import capture
    >>> from normscope.graph.inputs import ModelInputs
    >>> softmax = nn.Sequential(nn.Linear(2, 2), nn.Softmax(0))
    >>> where_samples_meet(capture(softmax, ModelInputs((torch.ones(3, 2),))))
    'aten.softmax.int in 1'
    """
    if captured.graph.batch != "dynamic" or not any(t.ndim and t.shape[0] for t in captured.example):
        return ""  # the batch is part of the graph as it is
    small = sum(t.numel() for t in captured.tensors.values()) <= PRECISE
    dtype = torch.float64 if small else torch.float32
    found = meeting(captured.graph, captured.tensors, captured.example, dtype)
    if found is not None:  # some operations support only their own precision
        found = meeting(captured.graph, captured.tensors, captured.example)
    return "" if found is None else f"{found.op} in {found.owner or 'the model'}"


@dataclass(frozen=True)
class Layout:
    """The axis of a value that holds the samples: of length ``outer * n * inner`` at a batch of ``n``.

    >>> Layout(0, 1, 2).parts(torch.arange(6), 3)
    [tensor([0, 1]), tensor([2, 3]), tensor([4, 5])]
    >>> Layout(0, 2, 1).parts(torch.arange(6), 3)
    [tensor([0, 3]), tensor([1, 4]), tensor([2, 5])]
    """

    axis: int
    outer: int = 1
    inner: int = 1

    def parts(self, value: Tensor, count: int) -> list[Tensor]:
        """Return what belongs to each sample."""
        apart = value.unflatten(self.axis, (self.outer, count, self.inner))
        return [part.flatten(self.axis, self.axis + 1) for part in apart.unbind(self.axis + 1)]


@dataclass(frozen=True)
class _Held:
    """A value in a batch and for each sample alone; without a layout it does not depend on the data.

    A value that depends on the size of the batch alone, such as ``n // 32``, is stored at further sizes.
    """

    together: Any
    alone: list[Any]
    layout: Layout | None = None
    sizes: Mapping[int, Any] = field(default_factory=dict)

    def at(self, size: int, count: int) -> Any:
        """Return the value at another size of the batch; if it depends on the data, only its shape is right."""
        if self.layout is not None:
            shape = list(self.together.shape)
            shape[self.layout.axis] = shape[self.layout.axis] // count * size
            return self.together.new_zeros(()).expand(shape)
        if size in self.sizes or not _equal(self.together, self.alone[0]):
            return self.sizes[size]
        return self.together


@dataclass(frozen=True)
class _Mixed:
    """A value in which samples meet, or which cannot be computed."""

    node: Node
    failed: bool = False


def meeting(
    graph: Graph, tensors: Mapping[str, Tensor], example: Sequence[Tensor], dtype: torch.dtype | None = None
) -> Node | None:
    """Return the first operation in which samples of a batch meet and which an output depends on.

    Every operation is run separately, on a batch of ``n`` and on each sample alone, with fresh random numbers instead
    of the results of other operations: if the result for the batch consists of those for the samples along some axis,
    the operation acts on each sample alone, and so does a graph of such operations (by induction over its nodes). A
    coupling that shows only for some values of the network, behind a gate or a threshold, is therefore found like any
    other. A cut at a fixed place of the axis of samples counts as a meeting, and so does an operation that cannot run.

    Args:
        graph: of any batch size.
        tensors: parameters, buffers and constants by target name.
        example: the input tensors; their first axis is that of samples.
        dtype: floating precision to work in.
    """
    shapes = (node.shape for node in graph if node.shape is not None and node.op not in SOURCES)
    numbers = sum(abs(math.prod(shape)) for shape in shapes)  # of one sample: -1 is the batch
    for count in SIZES if numbers <= SMALL else SIZES[:1]:
        found = _Walk(graph, tensors, count, dtype).meeting(example)
        if found is not None and found.failed:  # perhaps an identifier that does not exist
            found = _Walk(graph, tensors, count, dtype, widen=False).meeting(example)
        if found is not None:
            return found.node
    return None


class _Walk:
    """One pass over a graph at one batch size."""

    def __init__(
        self,
        graph: Graph,
        tensors: Mapping[str, Tensor],
        count: int,
        dtype: torch.dtype | None,
        *,
        widen: bool = True,
    ) -> None:
        self.graph, self.tensors, self.count, self.dtype, self.widen = graph, tensors, count, dtype, widen
        self.generator = torch.Generator().manual_seed(0)
        self._seen: dict[Any, _Held] = {}

    def meeting(self, example: Sequence[Tensor]) -> _Mixed | None:
        """Return the first value in which samples meet and which an output depends on."""
        held: dict[str, Any] = {}
        supply, dying = iter(example), self.graph.last_uses
        for node in self.graph:
            if node.op == "output":
                found = (self._culprit(self.graph[ref.name], held[ref.name]) for ref in node.args)
                return next((culprit for culprit in found if culprit is not None), None)
            try:
                held[node.name] = self._value(node, held, supply)
            except _FAILURES:
                held[node.name] = _Mixed(node, failed=True)
            for name in dying[node.name]:
                held.pop(name, None)
        return None

    def _value(self, node: Node, held: Mapping[str, Any], supply: Iterator[Tensor]) -> Any:
        """Return a node's value in the batch and alone."""
        if node.op == "input":
            return self._input(next(supply))
        if node.op in SOURCES:
            tensor = as_floating(self.tensors[node.target], self.dtype)
            return _Held(tensor, [tensor] * self.count)
        read = {name: held[name] for name in node.inputs()}
        if node.op == "getitem":  # each of several values may belong to samples or not
            several = held[node.args[0].name]
            return several if isinstance(several, _Mixed) else several[node.args[1]]
        leaves = tree_leaves(read)
        mixed = next((leaf for leaf in leaves if isinstance(leaf, _Mixed)), None)
        if mixed is not None or _cuts(node, read):
            return mixed or _Mixed(node)
        layouts = [h.layout for h in leaves if isinstance(h, _Held) and h.layout is not None]
        signature = _signature(node, read) if node.op in _ALIKE else None
        if signature in self._seen:
            like = self._seen[signature]
            return self._fresh(like.together, like.layout)  # type: ignore[arg-type]
        together = self._call(node, _each(read, lambda held: held.together))
        alone = [self._call(node, _each(read, lambda held: held.alone[i])) for i in range(self.count)]  # noqa: B023
        if layouts and not node.op.startswith(_SHAPE_ONLY):
            held_now = self._hold(node, together, alone, layouts)
            if signature is not None and isinstance(held_now, _Held) and held_now.layout is not None:
                self._seen[signature] = held_now
            return held_now
        by_size = any(leaf.layout is not None or leaf.sizes for leaf in leaves if isinstance(leaf, _Held))
        sizes = self._at_sizes(node, read) if by_size and _is_small(together) else {}
        if not sizes:
            return self._hold(node, together, alone, None)
        if _equal(together, alone[0]) and not all(_equal(together, value) for value in sizes.values()):
            return _Mixed(node)  # something like n // 32, which the sizes tried do not show
        return _Held(together, alone, None, sizes)

    def _at_sizes(self, node: Node, read: dict[str, Any]) -> dict[int, Any]:
        """Return what a node gives at other sizes of the batch, where that can be computed."""
        found: dict[int, Any] = {}
        for size in PROBES:
            with contextlib.suppress(*_FAILURES):
                found[size] = self._call(node, _each(read, lambda held: held.at(size, self.count)))  # noqa: B023
        return found

    def _call(self, node: Node, values: dict[str, Any]) -> Any:
        """Run one node, on copies where it writes."""
        with torch.no_grad():
            if node.op.split(".")[1].endswith("_"):  # it writes into what it reads
                values = {k: v.clone() if isinstance(v, Tensor) else v for k, v in values.items()}
            return call(node, values, self.dtype)

    def _hold(self, node: Node, together: Any, alone: list[Any], layouts: list[Layout] | None) -> Any:
        """Determine how a value of the batch consists of those of its samples."""
        if isinstance(together, tuple | list):
            if any(len(one) != len(together) for one in alone):
                return _Mixed(node)
            return [self._hold(node, item, [one[k] for one in alone], layouts) for k, item in enumerate(together)]
        if layouts is None or together is None:
            return _Held(together, alone)
        if not isinstance(together, Tensor):
            return _Mixed(node)  # a number read off the data
        found = next((v for v in self._layouts(together, alone, layouts) if self._made_of(together, alone, v)), None)
        return _Mixed(node) if found is None else self._fresh(together, found)

    def _layouts(self, together: Tensor, alone: list[Tensor], likely: list[Layout]) -> Iterator[Layout]:
        """Yield the ways to read a value as one part per sample, the likely ones first."""
        shape = alone[0].shape
        if any(one.shape != shape for one in alone) or together.ndim != len(shape):
            return
        axes = [
            a
            for a, length in enumerate(shape)
            if length and together.shape == (*shape[:a], self.count * length, *shape[a + 1 :])
        ]
        ways = [Layout(a, shape[a] // i, i) for a in axes for i in range(1, shape[a] + 1) if shape[a] % i == 0]
        yield from sorted(ways, key=lambda way: (way not in likely, way.outer > 1 and way.inner > 1, way.outer))

    def _made_of(self, together: Tensor, alone: list[Tensor], layout: Layout) -> bool:
        """Return whether a value of the batch is made of those of its samples, up to the order of summation."""
        parts = layout.parts(together, self.count)
        return all(_close(part, one) for part, one in zip(parts, alone, strict=True))

    def _culprit(self, node: Node, held: _Held | _Mixed) -> _Mixed | None:
        """Return what keeps an output from being one part per sample, or nothing of the data and of its size."""
        if isinstance(held, _Mixed):
            return held
        if held.layout is not None:
            return None
        same = held.together.shape == held.alone[0].shape and _close(held.together, held.alone[0])
        ways = self._layouts(held.together, held.alone, [])
        return None if same or any(self._made_of(held.together, held.alone, way) for way in ways) else _Mixed(node)

    def _input(self, tensor: Tensor) -> _Held:
        """Return an input of the right number of samples, with arbitrary values."""
        tensor = as_floating(tensor, self.dtype)
        if not tensor.ndim:
            return _Held(tensor, [tensor] * self.count)
        rows = torch.arange(self.count, device=tensor.device) % max(1, tensor.shape[0])
        return self._fresh(tensor[rows], Layout(0))

    def _fresh(self, value: Tensor, layout: Layout) -> _Held:
        """Return other values in place of these: what is shown for an operation must hold for all values."""
        if value.is_floating_point() or value.is_complex():
            value = torch.randn(value.shape, generator=self.generator, dtype=value.dtype).to(value.device)
        elif value.numel():
            # Identifiers and places stay within the range that is known to exist, unless that is a single one.
            low, high = (int(v) for v in (value.min(), value.max()))
            if value.dtype == torch.bool or (low == high and self.widen):
                low, high = min(low, 0), max(high, 1)
            value = torch.randint(low, high + 1, value.shape, generator=self.generator).to(value)
        return _Held(value, layout.parts(value, self.count), layout)


def _signature(node: Node, read: Mapping[str, Any]) -> Any:
    """Return what a node does and the shapes of what it reads, without its numbers; ``None`` if it reads others."""
    if not all(isinstance(h, _Held) and isinstance(h.together, Tensor) for h in read.values()):
        return None
    described = {name: (h.together.shape, h.together.dtype, h.layout) for name, h in read.items()}
    return node.op, str(map_refs((node.args, node.kwargs), lambda ref: described[ref.name]))


def _cuts(node: Node, read: Mapping[str, Any]) -> bool:
    """Return whether a node takes samples from fixed places: which these are depends on the size of the batch."""
    if node.op not in _PLACES or not node.args:
        return False
    source = read.get(node.args[0].name) if isinstance(node.args[0], Ref) else None
    if not isinstance(source, _Held) or source.layout is None:
        return False
    options = dict(node.kwargs)
    if node.op == "aten.roll.default":  # a shift by a multiple of the sizes tried would change nothing
        turned = options.get("dims", node.args[2] if len(node.args) > 2 else ())
        return not turned or source.layout.axis in [d % source.together.ndim for d in turned]
    axis = options.get("dim", node.args[1] if len(node.args) > 1 else 0)
    if not isinstance(axis, int) or axis % source.together.ndim != source.layout.axis:
        return False
    if node.op != "aten.slice.Tensor":
        return True
    start = options.get("start", node.args[2] if len(node.args) > 2 else None)
    end = options.get("end", node.args[3] if len(node.args) > 3 else None)
    step = options.get("step", node.args[4] if len(node.args) > 4 else 1)
    whole = end is None or isinstance(end, Ref) or end >= sys.maxsize
    return not (start in (None, 0) and whole and step == 1)


def _each(read: dict[str, Any], value: Callable[[_Held], Any]) -> dict[str, Any]:
    """Return what a node reads, also in nested lists, with a value for everything held."""
    return tree_map_only(_Held, value, read)


def _is_small(value: Any) -> bool:
    """Return whether a value is a number, or a tensor of few numbers."""
    return not isinstance(value, tuple | list) and (not isinstance(value, Tensor) or value.numel() <= FEW)


def _equal(a: Any, b: Any) -> bool:
    """Return whether two values are the same numbers in the same shape."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    return type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b)


def _close(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal up to what another order of summation changes in one operation."""
    if torch.equal(a, b):
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return False
    scale = float(b.abs().nan_to_num(0.0, 0.0, 0.0).max()) if b.numel() else 0.0
    relative = 1e3 * torch.finfo(a.dtype).eps if a.dtype.itemsize > 2 else 8 * torch.finfo(a.dtype).eps
    return torch.allclose(a, b, rtol=relative, atol=relative * scale, equal_nan=True)
