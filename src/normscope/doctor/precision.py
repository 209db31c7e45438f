"""A graph run in its own precision and in float64, node by node, to find where precision is lost."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from normscope.doctor.neighbours import LAYERS, PRODUCTS, RECURRENT, reach, reads
from normscope.graph.interpreter import as_floating, call
from normscope.graph.ir import SOURCES, Graph, Node, Ref
from normscope.graph.recognise import name_of

#: Relative error of a value, over all entries, at which it counts as lost, and the least absolute error.
LOST, LEAST = 0.1, 1e-3
#: Operations with many multiplications: rounding averages out in them, and running them in float64 takes long.
_COSTLY = (*LAYERS, *PRODUCTS, *RECURRENT)
#: Values below this are masks that stand for minus infinity.
_MASK = -1e8


@dataclass(frozen=True)
class PrecisionLoss:
    """The first value that is lost, and how."""

    node: Node  #: the operation that makes it
    kind: str  #: ``overflow``, ``underflow``, ``cancellation`` or ``rounding``
    error: float  #: relative error over all entries; infinite where it is not finite
    reached: float  #: largest entry of the value in float64; for a cancellation, of its operands
    left: float = 0.0  #: for a cancellation, the size of the difference at the worst entry
    at: str = ""  #: the operation that causes it, if it is another one


@dataclass(eq=False)
class WideRun:
    """A float64 run next to a run of a graph; :meth:`visit` is called at each node of the latter.

    Values are computed in float64 from one matrix product or convolution to the next, which starts again from the
    original values: an error is seen where it is made, errors of many layers do not add up, and the run is cheap. In
    half precision the products themselves are compared with float32, as they may overflow.
    """

    graph: Graph
    _losses: dict[str, PrecisionLoss] = field(default_factory=dict)
    _cancelled: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = {n.dtype for n in self.graph if n.op != "output" and "float" in n.dtype}
        self.short = bool(kinds & {"float16", "bfloat16"})
        self._wide: dict[str, Any] = {}
        self._reads = reads(self.graph)
        self._costly = {n.name for n in self.graph if name_of(n) in _COSTLY}
        ends = (n for n in self.graph if n.op == "output" or n.name in self._costly)
        self._ends = {name for n in ends for name in (n.name, *n.inputs())}

    def visit(self, node: Node, value: Any, values: Mapping[str, Any]) -> None:
        """Compute the value of a node in float64 and compare."""
        costly = node.name in self._costly
        if node.op not in SOURCES and (self.short or not costly):
            kept = {} if costly else self._wide
            known = {n: kept.get(n, as_floating(values[n], torch.float64)) for n in node.inputs()}
            wide = self._call(node, known)
            if wide is not None and not costly:
                self._wide[node.name] = wide
            if isinstance(value, Tensor) and isinstance(wide, Tensor) and value.is_floating_point():
                self._compare(node, value, wide, known)
        for name in self.graph.last_uses[node.name]:
            self._wide.pop(name, None)

    def first(self) -> PrecisionLoss | None:
        """Return the first lost value that affects an output or the input of a layer."""
        shown = reach([name for name in self._ends if name in self._losses], self._reads)
        return next((loss for name, loss in self._losses.items() if name in shown), None)

    def _call(self, node: Node, known: Mapping[str, Any]) -> Any:
        """Return the value of a node in float64, or ``None`` if it cannot be computed."""
        try:
            if node.name in self._costly:
                short = {name: as_floating(v, torch.float32) for name, v in known.items()}
                return as_floating(call(node, short, torch.float32), torch.float64)
            return call(node, known, torch.float64)
        except (RuntimeError, NotImplementedError, TypeError):  # an operation of one precision only
            return None

    def _compare(self, node: Node, value: Tensor, wide: Tensor, known: Mapping[str, Any]) -> None:
        if value.shape != wide.shape or not value.numel():
            return
        if name_of(node) in ("sub", "add"):
            self._note_cancellation(node, wide, known)
        compared = torch.isfinite(wide) & (wide > _MASK)
        low = value.double()
        broken = ~torch.isfinite(low) & compared
        if bool(broken.any()):
            largest = float(wide[compared].abs().max())
            kind = "overflow" if largest >= torch.finfo(value.dtype).max else "rounding"
            self._losses[node.name] = PrecisionLoss(node, kind, math.inf, largest)
            return
        kept = torch.where(compared & ~broken, wide, 0.0)
        error = torch.where(compared & ~broken, low - wide, 0.0)
        size, off = float(kept.norm()), float(error.norm())
        if off > LOST * size and off > LEAST * math.sqrt(error.numel()):
            self._lost(node, value, kept, off / max(size, 1e-300))

    def _lost(self, node: Node, value: Tensor, wide: Tensor, error: float) -> None:
        """Record a value that is far off, with its cause."""
        above = reach([node.name], self._reads, self._costly)
        cancelled = [(self._cancelled[n], n) for n in above if n in self._cancelled]
        if cancelled:
            (reached, left), at = max(cancelled, key=lambda c: c[0][0] / max(c[0][1], 1e-300))
            self._losses[node.name] = PrecisionLoss(node, "cancellation", error, reached, left, at)
        else:
            vanished = bool(((value == 0) & (wide != 0)).double().mean() > LOST)
            kind = "underflow" if vanished else "rounding"
            self._losses[node.name] = PrecisionLoss(node, kind, error, float(wide.abs().max()))

    def _note_cancellation(self, node: Node, wide: Tensor, known: Mapping[str, Any]) -> None:
        """Record a difference of nearly equal numbers, which has few correct digits."""
        operands = [known[a.name] for a in node.args[:2] if isinstance(a, Ref)]
        if len(operands) != 2 or not all(isinstance(t, Tensor) and t.is_floating_point() for t in operands):
            return
        largest = torch.maximum(*(t.abs() for t in operands))
        ratio = torch.where(wide.abs() > 0, largest / wide.abs(), 0.0)
        worst = int(ratio.argmax())
        digits = 2.0**-11 if self.short else 2.0**-24
        if float(ratio.flatten()[worst]) * digits > LOST / 10:
            broad = largest.expand(wide.shape).flatten()[worst], wide.abs().flatten()[worst]
            self._cancelled[node.name] = float(broad[0]), float(broad[1])
