"""Affine expressions over atoms: how every tensor of a network is represented while its graph is traversed.

An *atom* is the network input or the output of a nonlinear operation. Every other tensor is an affine map of atoms,
stored as a small directed graph of linear operations, so that ``conv -> batch norm -> pool -> linear`` is one operator.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_counter = itertools.count()

#: Linear operations by what is known about them; the certified norm of each is computed in ``lipschitz.segments``.
#: isometry     a permutation of entries: norm one
#: embedding    entries are copied to distinct places among zeros: norm one
#: contraction  norm at most one, e.g. an orthogonal projection
#: nonnegative  all coefficients >= 0: the Schur test bounds it
#: diagonal     entrywise factor ``data["scale"]``
#: matrix       ``data["weight"]`` acts on the last axis
#: convolution  ``data`` holds the arguments of the convolution
#: sum          the sum of its inputs, all of one shape
#: concat       inputs side by side along ``data["axis"]``
#: generic      linear, nothing more is known
KINDS = ("isometry", "embedding", "contraction", "nonnegative", "diagonal", "matrix", "convolution", "sum", "concat",
         "generic")  # fmt: skip

TrackedAxis = tuple[int, int]
AxisMap = Callable[[int], int | None]


@dataclass(frozen=True, eq=False)
class LinearOp:
    """One linear operation ``y = A(x_1, ..., x_k) + bias``."""

    kind: str  #: one of :data:`KINDS`
    apply: Callable[..., Tensor]  #: the linear part, on tensors of any floating dtype
    bias: Tensor | None = None  #: the constant part, broadcastable to the output, or ``None``
    data: dict[str, Any] = field(default_factory=dict)  #: what the kind needs
    #: for a given input axis the corresponding output axis, or ``None`` where the operation mixes along it;
    #: ``None`` altogether if nothing is known. Reshapes leave this out and set ``data["reshape"]``
    axes: AxisMap | None = None
    owner: str = ""  #: module path, for reports
    weight_name: str = ""  #: the parameter it uses, for reports


class AtomSet(Set[int]):
    """A set of ids as bits of one integer: in a deep residual network every sum depends on all atoms before it.

    Args:
        ids: its members.

    >>> found = AtomSet((3, 70)) | AtomSet((4,))
    >>> list(found), len(found), 4 in found, 5 in found, found <= {3, 4, 70}
    ([3, 4, 70], 3, True, False, True)
    """

    __slots__ = ("_bits", "_first")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        found = set(ids)
        self._first = min(found, default=0)
        self._bits = sum(1 << (i - self._first) for i in found)

    @classmethod
    def union(cls, sets: Iterable[AtomSet]) -> AtomSet:
        """Return the union of sets; if only one is not empty, that set itself."""
        filled = [s for s in sets if s._bits]
        if len(filled) <= 1:
            return filled[0] if filled else cls()
        whole = cls()
        whole._first = min(s._first for s in filled)
        for s in filled:
            whole._bits |= s._bits << (s._first - whole._first)
        return whole

    def __or__(self, other: Any) -> AtomSet:
        return self.union((self, other if isinstance(other, AtomSet) else AtomSet(other)))

    def isdisjoint(self, other: Iterable[Any]) -> bool:
        """Return whether the sets have no member in common."""
        if not isinstance(other, AtomSet):
            return all(i not in self for i in other)
        low, high = sorted((self, other), key=lambda s: s._first)
        return not (low._bits >> (high._first - low._first)) & high._bits

    def __contains__(self, item: object) -> bool:
        return isinstance(item, int) and item >= self._first and bool(self._bits >> (item - self._first) & 1)

    def __iter__(self) -> Iterator[int]:
        bits = bin(self._bits)[:1:-1]
        return (self._first + i for i, bit in enumerate(bits) if bit == "1")

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __bool__(self) -> bool:
        return self._bits != 0

    def __eq__(self, other: object) -> bool:
        if isinstance(other, AtomSet):
            return (self._first, self._bits) == (other._first, other._bits)
        return super().__eq__(other)

    def __hash__(self) -> int:
        return self._hash()


@dataclass(frozen=True, eq=False)
class Expr:
    """A node of an affine expression: an atom, or a linear operation on other nodes."""

    shape: tuple[int, ...]  #: shape of the tensor
    op: LinearOp | None  #: the operation, or ``None`` for an atom
    inputs: tuple[Expr, ...]  #: the operands
    atom: Any  #: the atom, if it is one
    atoms: AtomSet  #: ids of all atoms it depends on
    id: int  #: unique, increasing in order of creation
    depth: int = 0  #: linear operations on the longest path from an atom

    @property
    def numel(self) -> int:
        """Return the number of entries."""
        return math.prod(self.shape)


def atom_expr(atom: Any, shape: Sequence[int]) -> Expr:
    """Return the expression that is an atom itself."""
    number = next(_counter)
    return Expr(tuple(shape), None, (), atom, AtomSet((number,)), number)


def linear(op: LinearOp, inputs: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """Return the expression of a linear operation on others."""
    atoms = AtomSet.union(e.atoms for e in inputs)
    depth = 1 + max((e.depth for e in inputs), default=-1)
    return Expr(tuple(shape), op, tuple(inputs), None, atoms, next(_counter), depth)


def as_expr(value: Expr | Tensor) -> Expr:
    """Return an expression unchanged, or the expression of a constant tensor."""
    if isinstance(value, Expr):
        return value
    value = value.detach()
    op = LinearOp("generic", lambda: torch.zeros(value.shape, dtype=torch.float64, device=value.device), value)
    return linear(op, (), value.shape)


def operands(expr: Expr) -> Sequence[Expr]:
    """Return the operands of an expression, also of an atom."""
    return expr.inputs if expr.op is not None else expr.atom.inputs


def reached(
    start: Iterable[Expr],
    below: Callable[[Expr], Iterable[Expr]] = lambda expr: expr.inputs,
    known: Container[int] = (),
) -> list[Expr]:
    """Return some expressions and all that lie below them, in order of evaluation.

    Args:
        start: the expressions.
        below: returns the expressions to follow from one; its inputs by default.
        known: ids of those that are left out, with what lies below them.
    """
    seen: dict[int, Expr] = {}
    stack = list(start)
    while stack:
        expr = stack.pop()
        if expr.id not in seen and expr.id not in known:
            seen[expr.id] = expr
            stack.extend(below(expr))
    return [seen[key] for key in sorted(seen)]


def between(source: Expr, target: Expr) -> list[Expr]:
    """Return the nodes on paths from ``source`` to ``target`` in order of evaluation, without ``source``.

    ``source`` must lie on every path from the target to its atoms.
    """
    return reached([target], known=(source.id,))


def evaluate(source: Expr, target: Expr) -> Callable[[Tensor], Tensor]:
    """Return the linear map from ``source`` to ``target`` as a function on tensors."""
    order = between(source, target)
    last = {item.id: expr.id for expr in order for item in expr.inputs}

    def function(z: Tensor) -> Tensor:
        values = {source.id: z}
        for expr in order:
            if expr.op is None:
                raise ValueError("the source does not lie on every path from the target to its atoms")
            values[expr.id] = expr.op.apply(*(values[i.id] for i in expr.inputs))
            for item in expr.inputs:
                if last[item.id] == expr.id:
                    values.pop(item.id, None)
        return values[target.id]

    return function


def offset(target: Expr, memo: dict[int, Tensor], dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the constant part: the value of the expression where every atom is zero."""
    for expr in reached([target], known=memo):
        if expr.op is None:
            memo[expr.id] = torch.zeros(expr.shape, dtype=dtype)
            continue
        value = expr.op.apply(*(memo[i.id] for i in expr.inputs))
        memo[expr.id] = value if expr.op.bias is None else value + expr.op.bias.to(value)
    return memo[target.id]


def dominators(source: Expr, target: Expr) -> list[Expr]:
    """Return the nodes every path from the target down to the source passes, source first, target last.

    Between two neighbours of the list the map is one block; a plain chain has a dominator at every operation.
    """
    order = [source, *(e for e in between(source, target) if e.atoms)]
    # Walk down from the target; whenever a single node is open, every path passes it.
    found, open_nodes = [], {target.id}
    for expr in reversed(order):
        if expr.id not in open_nodes:
            continue
        if len(open_nodes) == 1:
            found.append(expr)
        open_nodes.discard(expr.id)
        if expr.id != source.id:
            open_nodes.update(item.id for item in expr.inputs if item.atoms)
    return found[::-1]


def track_axis(source: Expr, target: Expr, start: TrackedAxis) -> tuple[TrackedAxis, bool] | None:
    """Follow an axis along which the map from ``source`` to ``target`` acts independently.

    An axis of size n whose entries lie s apart in row-major order is the pair (n, s): a reshape leaves it alone.

    Returns:
        Its place in the target and whether the map is the same at every index, or ``None`` if it mixes along it.
    """
    places = track_axes(source, target, start)
    return None if places is None else places[target.id]


def track_axes(source: Expr, target: Expr, start: TrackedAxis) -> dict[int, tuple[TrackedAxis, bool]] | None:
    """Track an axis through every expression between two; return the places by the ids of the expressions."""
    places: dict[int, tuple[TrackedAxis, bool]] = {source.id: (start, True)}
    for expr in between(source, target):
        below = [(i, *places[i.id]) for i in expr.inputs if i.id in places]
        if not below:
            continue  # a constant: its linear part is zero, whatever the index
        steps = [_track_op(expr, item, place) for item, place, _ in below]
        found = {step[0] for step in steps if step is not None}
        if len(found) != 1 or None in steps:
            return None
        alike = all(step[1] for step in steps if step is not None) and all(same for _, _, same in below)
        places[expr.id] = (found.pop(), alike)
    return places


def _track_op(expr: Expr, item: Expr, place: TrackedAxis) -> tuple[TrackedAxis, bool] | None:
    """Follow an axis of one operand through an operation."""
    op, shape = expr.op, item.shape
    if op is None:
        return None
    if op.data.get("reshape") or op.kind == "sum":
        return place, True
    if op.kind == "diagonal":
        n, s = place
        scale = op.data["scale"]
        full = scale.expand(expr.shape).reshape(-1, n, s)
        return place, bool((full == full[:, :1]).all())
    if op.axes is None:
        return None
    span = _axes_of(shape, place)
    if span is None:
        return None
    images = [op.axes(a) for a in span]
    if None in images or images != list(range(images[0] or 0, (images[0] or 0) + len(images))):
        return None
    stop = (images[-1] or 0) + 1
    if any(expr.shape[i or 0] != shape[a] for i, a in zip(images, span, strict=True)):
        return None
    return (place[0], math.prod(expr.shape[stop:])), not op.data.get("varies", False)


def _axes_of(shape: Sequence[int], place: TrackedAxis) -> list[int] | None:
    """Return the consecutive axes that make up a tracked axis, or ``None`` if it cuts through one."""
    n, s = place
    inner, axis = 1, len(shape)
    while axis and inner < s:
        axis -= 1
        inner *= shape[axis]
    while axis and shape[axis - 1] == 1:
        axis -= 1
    if inner != s or n == 1:
        return None
    stop, size = axis, 1
    while axis and size < n:
        axis -= 1
        size *= shape[axis]
    return list(range(axis, stop)) if size == n and stop > axis else None
