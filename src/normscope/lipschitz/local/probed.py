r"""Walks of deep networks: the error of all tangents is verified by random probes, instead of bounded by norms.

A bound of the rounding of float64 that multiplies the norms of all layers is useless in a deep network. Here Gaussian
combinations :math:`g` of the generators go through the same linear maps in twice the precision. If Z are the rows as
they should be and :math:`\tilde Z` as computed, :math:`(\tilde Z - Z)^T g` is then known, and by

.. math:: P[\,|E^T g|^2 \le t \|E\|_F^2\,] \le \sqrt t\, e^{(1 - t)/2}

(Chernoff, with :math:`\prod (1 + 2 \lambda p_i) \ge 1 + 2 \lambda` for weights that add up to one) all of several
independent probes miss an error only with tiny probability. What is verified is fixed beforehand, a part of the rows'
own size: the walk does not depend on the probes, except that it ends where one fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF, gamma
from normscope.linalg.pairs import Pair, product
from normscope.lipschitz.local.feedback import Feedback
from normscope.lipschitz.local.moving import Rows, UnboundedError, deep
from normscope.lipschitz.local.point import Nominal
from normscope.lipschitz.local.slopes import Sectors, scalar_of
from normscope.lipschitz.local.steps import Steps, apply, size_of
from normscope.lipschitz.local.walk import CHUNK, Walk
from normscope.operators.convolution import convolved_stack
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Input
from normscope.operators.program import Program

#: Probes, and how many times larger than the largest of them the error may be.
PROBES, FACTOR = 24, 10.0
#: The error of rows that is verified, relative to all of them, in double and in single precision.
VERIFIED = {torch.float64: 2.0**-33, torch.float32: 2.0**-15}
#: The same for outputs, before which means are taken: these are not exact in slices.
AT_OUTPUTS = {torch.float64: 2.0**-27, torch.float32: 2.0**-15}
#: The error of values at the point, relative to them, from which on norms are not multiplied.
TOO_LARGE = 1e-8


@statement("normscope", "LOCAL-7", holds="Gaussian probes, independent of what is probed")
def failure_probability(checks: int, probes: int = PROBES, factor: float = FACTOR) -> float:
    r"""Return a bound on the probability that an error more than a factor above all probes passes some check.

    >>> failure_probability(20) < 1e-16
    True
    """
    t = factor**-2
    return min(1.0, checks * (math.sqrt(t) * math.exp((1 - t) / 2)) ** probes)


@dataclass(frozen=True)
class Flow:
    """Values in twofold precision.

    Attributes:
        pair: the values, one for each probe, or one.
        error: bound on the norm of their error.
        fresh: the part of it that was made after the atoms they are linear in.
    """

    pair: Pair
    error: float = 0.0
    fresh: float = 0.0


def is_piecewise_linear(program: Program) -> bool:
    """Tell whether all nonlinear operations are functions of single entries with straight pieces."""
    scalars = [scalar_of(a.atom) for a in program.atoms if not isinstance(a.atom, Input)]
    return bool(scalars) and all(s is not None and s.room == 0.0 for s in scalars)


def is_deep(program: Program, nominal: dict[int, Nominal]) -> bool:
    """Tell whether multiplying norms makes the error of values too large, in a network for which probes do better."""
    if not is_piecewise_linear(program):
        return False
    read = [nominal[e.id] for a in program.atoms for e in a.atom.inputs if e.id in nominal]
    return any(n.error * math.sqrt(n.value.numel()) > TOO_LARGE * float(n.value.norm()) for n in read)


def passed(expr: Expr, steps: Steps, below: list[Flow], *, sources: dict[int, float]) -> Flow:
    """Return a linear operation, without its bias, on values in twofold precision.

    Args:
        expr: the operation.
        steps: bounds of all operations.
        below: what it reads.
        sources: errors of the atoms so far, by id.
    """
    op, step = expr.op, steps.of(expr)
    if op is None:
        raise ValueError("an atom is not an operation")
    size = size_of(flow.pair.high for flow in below)
    own = 2.0**-98 * step.mass * size
    first = below[0].pair
    if op.kind == "sum":
        pair = first
        for flow in below[1:]:
            pair = pair.plus(flow.pair)
    elif op.kind == "diagonal" and expr.inputs[0].shape == expr.shape:
        pair = first.times(op.data["scale"].to(torch.float64).expand(expr.shape))
    elif len(below) == 1 and (op.kind in ("isometry", "embedding") or op.data.get("coordinate")):
        pair = first.mapped(lambda z: apply(expr, [z]))
    elif op.kind == "convolution" and not op.data["transposed"]:
        weight = op.data["weight"].to(torch.float64)
        pair, each = product(weight, first, lambda w, z: _convolved(op.data, w, z, expr), weight[0].numel())
        own = each * math.sqrt(pair.high.numel())
    elif op.kind == "matrix" and op.data["axis"] == -1 and op.data["weight"].ndim == 2:
        weight = op.data["weight"].to(torch.float64)
        pair, each = product(weight, first, lambda w, z: torch.matmul(z, w.mT), weight.shape[1])
        own = each * math.sqrt(pair.high.numel())
    else:
        pair = Pair(*(apply(expr, [getattr(f.pair, part) for f in below]) for part in ("high", "low")))
        own = step.error(0.0, size)
    fresh = step.norm * sum(f.fresh for f in below) + own
    error = step.norm * sum(f.error for f in below) + own
    if len(expr.atoms) == 1:
        (key,) = expr.atoms
        source = expr
        while source.op is not None:
            source = next(i for i in source.inputs if i.atoms)
        error = min(error, fresh + steps.reach(source, expr) * sources.get(key, 0.0))
    return Flow(pair, error, fresh)


def _convolved(data: dict[str, Any], weight: Tensor, z: Tensor, expr: Expr) -> Tensor:
    return convolved_stack({**data, "weight": weight}, z.flatten(0, 1)).reshape(len(z), *expr.shape)


def precise_values(order: list[Expr], steps: Steps, point: list[Tensor]) -> dict[int, Nominal]:
    """Return the value of every expression of a piecewise linear network at a point, with tiny errors.

    Args:
        order: the expressions, each after those it reads.
        steps: bounds of the linear operations.
        point: the value of each block of the input.
    """
    flows: dict[int, Flow] = {}
    sources: dict[int, float] = {}
    known: dict[int, Nominal] = {}
    for expr in order:
        if expr.op is not None and not expr.inputs:
            flow = Flow(Pair.of(torch.zeros(1, *expr.shape, dtype=torch.float64)))
        elif expr.op is not None:
            flow = passed(expr, steps, [flows[i.id] for i in expr.inputs], sources=sources)
        elif isinstance(expr.atom, Input):
            flow = Flow(Pair.of(point[expr.atom.block].reshape(1, *expr.shape)))
        else:
            flow = _activated(expr, flows[expr.atom.inputs[0].id])
            sources[expr.id] = flow.error
        if expr.op is not None and expr.op.bias is not None:
            bias = Pair.of(expr.op.bias.to(torch.float64).expand(expr.shape).unsqueeze(0))
            flow = replace(flow, pair=flow.pair.plus(bias))
        flows[expr.id] = flow
        value = flow.pair.high[0]
        known[expr.id] = Nominal(value, flow.error + 2 * UNIT_ROUNDOFF * float(value.norm()))
    return known


def _activated(expr: Expr, z: Flow) -> Flow:
    """Return a piecewise linear function of single entries; entries within the error of a kink may take either side."""
    scalar = scalar_of(expr.atom)
    if scalar is None:
        raise UnboundedError("no function of single entries")
    slope = scalar.derivative(z.pair.high)
    steepest = float(slope.abs().max()) if slope.numel() else 0.0
    start = scalar.function(z.pair.high) - slope * z.pair.high  # the piece is start + slope z; zero for ReLU
    pair = z.pair.times(slope)
    made = 0.0
    if bool(start.any()):
        pair = pair.plus(Pair.of(start))
        made = 4 * UNIT_ROUNDOFF * float(start.norm() + pair.high.norm())
    largest = max((abs(s) for _, low, high in scalar.marks for s in (low, high)), default=1.0)
    return Flow(pair, max(steepest, largest) * z.error + made)


class Probed(Walk):
    """A walk of a piecewise linear network whose rows are verified by probes.

    Args:
        program: the network.
        steps: bounds of its linear operations.
        point: the value of every block of its input.
        radius: of the ball.
        single: whether rows are computed in float32; what is verified is coarser then.
        **settings: as of :class:`Walk`.
    """

    negligible = 0.0

    def __init__(
        self, program: Program, steps: Steps, point: Any, radius: float, *, single: bool = False, **settings: Any
    ) -> None:
        super().__init__(program, steps, point, radius, **settings)
        self.sources = None
        self.dtype = torch.float32 if single else torch.float64
        self.flows: dict[int, Flow] = {}
        self.errors: dict[int, float] = {}
        self.checks = 0
        self._generator = torch.Generator().manual_seed(20_250)
        self._gaussian = self._drawn(1 + self.inputs)
        self._flow = Flow(Pair.of(torch.zeros(0, dtype=torch.float64)))
        self._check: _Check | None = None
        self._folded = _folded(self.order())

    @property
    def delta(self) -> float:
        """Return the probability with which something wrong may have passed."""
        return failure_probability(self.checks)

    def values(self) -> dict[int, Nominal]:
        """Return the value of every expression at the point, in twofold precision."""
        return precise_values(self.order(), self.steps, self.point)

    def _drawn(self, count: int) -> Tensor:
        return torch.randn(PROBES, count, generator=self._generator, dtype=torch.float64)

    def _forget(self, key: int) -> None:
        super()._forget(key)
        self.flows.pop(key, None)

    def _read(self, expr: Expr) -> tuple[Expr, ...]:
        return expr.inputs if expr.op is not None else expr.atom.inputs

    def _linear(self, expr: Expr) -> Rows:
        below = [self.known[i.id] for i in expr.inputs]
        if not expr.atoms or not below:
            self.flows[expr.id] = Flow(Pair.of(torch.zeros(PROBES, *expr.shape, dtype=torch.float64)))
            return Rows(torch.zeros(1 + self.inputs, *expr.shape, dtype=self.dtype), 0.0)
        read = [self.flows[i.id] for i in expr.inputs]
        self.flows[expr.id] = passed(expr, self.steps, read, sources=self.errors)
        return Rows(self._applied(expr, [b.rows for b in below]), math.inf)  # until it is verified

    def _applied(self, expr: Expr, stacks: list[Tensor]) -> Tensor:
        """Return an operation on rows: as it is fast, since what counts is verified."""
        if expr.id in self._folded:
            scaled = self._folded[expr.id]
            return stacks[0] if scaled is None else _convolved(*scaled, stacks[0], expr)
        if len(stacks) == 1:
            return apply(expr, stacks)
        most = max(len(s) for s in stacks)
        own = next((i for i, s in enumerate(stacks) if len(s) == most and self._is_own(expr, i)), None)
        if expr.op is None or expr.op.kind != "sum" or own is None:
            return apply(expr, [deep(s, most) for s in stacks])
        total = stacks[own]
        for i, other in enumerate(stacks):
            if i != own:
                total[: len(other)] += other
        return total

    def _is_own(self, expr: Expr, place: int) -> bool:
        """Tell whether an operand was made for this operation alone, so that it may be written over."""
        item = expr.inputs[place]
        fresh = item.op is not None and (item.op.kind == "convolution" or item.id in self._folded)
        return fresh and self._last[item.id] == expr.id and sum(i is item for i in expr.inputs) == 1

    def _atom(self, expr: Expr) -> Rows:
        if isinstance(expr.atom, Input):
            first = 1 + sum(p.numel() for p in self.point[: expr.atom.block])
            own = self._gaussian[:, first : first + expr.numel].reshape(-1, *expr.shape)
            self.flows[expr.id] = Flow(Pair.of(own.contiguous()))
            return super()._atom(expr)
        below = expr.atom.inputs[0]
        self._flow = self.flows[below.id]
        self.known[below.id] = self._verified(self.known[below.id], self._flow, VERIFIED[self.dtype])
        found = super()._atom(expr)
        self.flows[expr.id] = self._flow
        self.errors[expr.id] = self._flow.error
        return replace(found, error=math.inf)

    def _verified(self, x: Rows, flow: Flow, part: float) -> Rows:
        """Return rows with the error that the probes confirm.

        Args:
            x: the rows.
            flow: their combinations.
            part: the error to be confirmed, relative to all rows.

        Raises:
            UnboundedError: if they do not.
        """
        flat = x.rows.flatten(1)
        gaussian, squares = self._gaussian[:, : len(flat)], super()._squares(flat)
        seen = Pair(-flow.pair.high.flatten(1), -flow.pair.low.flatten(1))
        for i in range(0, len(flat), CHUNK):
            chunk = flat[i : i + CHUNK].double()
            seen = seen.plus(Pair.of(gaussian[:, i : i + CHUNK] @ chunk))
        largest = gamma(CHUNK + 8) * float(gaussian.norm(dim=1).max()) * 1.01
        self._check = _Check(seen.high, squares, sum(squares).sqrt() * (1 + 1e-9), largest, flow.error, part)
        return replace(x, error=self._error_at(0.0, torch.arange(flat.shape[1])))

    def _squares(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        return self._check.squares if self._check is not None else super()._squares(flat)

    def _error_at(self, error: float, entries: Tensor) -> float:
        """Return the error of the rows of some entries that the probes confirm.

        It is a part of their own size or of that of average rows, so that it does not depend on the probes.
        """
        check = self._check
        if check is None:
            raise ValueError("the rows were not verified")
        self.checks += 1
        size = float(check.sizes[entries].norm())
        average = float(check.sizes.norm()) * math.sqrt(len(entries) / max(1, len(check.sizes)))
        allowed = check.part * max(size, average) * (1 + 1e-9) + 1e-300
        seen = float(check.seen[:, entries].norm(dim=1).max()) if len(entries) else 0.0
        if not FACTOR * (seen + check.rounding * size + check.error) <= allowed:
            raise ProbeError("rounding is larger than the probes allow: the weights are badly scaled")
        return allowed

    def _closed(self, x: Rows, sectors: Sectors, open_: Tensor, sizes: Tensor) -> Rows:
        width = sectors.tangent[1] - sectors.tangent[0]
        if int((width > 0).sum()) != len(open_):
            raise UnboundedError("a unit without tangents may change its slope")
        before, u = len(self.units), len(open_)
        found = super()._closed(x, sectors, open_, sizes)
        shape = self._flow.pair.high.shape
        pair = Pair(self._flow.pair.high.flatten(1), self._flow.pair.low.flatten(1)).times(sectors.nominal)
        if u:
            new = self._drawn(u)
            self._gaussian = torch.cat([self._gaussian[:, : 1 + self.inputs + before], new], 1)
            added = torch.zeros_like(pair.high)
            added[:, open_] = new
            pair = pair.plus(Pair.of(added))
            if self.radius > 0:
                middle = (sectors.remainder[0] + sectors.remainder[1])[open_] / (2 * self.radius)
                spread = torch.zeros_like(pair.high)
                spread[:, open_] = middle
                pair = pair.plus(Pair.of(self._gaussian[:, :1].expand_as(spread).contiguous()).times(spread))
        steepest = float(sectors.nominal.abs().max()) if len(width) else 0.0
        error = steepest * self._flow.error + 2.0**-90 * size_of([pair.high])
        self._flow = Flow(Pair(pair.high.reshape(shape), pair.low.reshape(shape)), error)
        return found

    def _system(self, outputs: list[Rows]) -> Feedback:
        exprs = [e for _, e in self.program.outputs]
        part = AT_OUTPUTS[self.dtype]
        return super()._system(
            [self._verified(o, self.flows[e.id], part) for o, e in zip(outputs, exprs, strict=True)]
        )


class ProbeError(UnboundedError):
    """Rows are not as precise as they have to be."""


@dataclass(frozen=True)
class _Check:
    """What the probes saw of the error of rows.

    Attributes:
        seen: combinations of the errors, one row for each probe.
        squares: of the rows of each entry, along the input and all others.
        sizes: norms of the rows of each entry.
        rounding: of the combinations, relative to the rows.
        error: of the combinations as they should be.
        part: the error to be confirmed, relative to the rows.
    """

    seen: Tensor
    squares: tuple[Tensor, Tensor]
    sizes: Tensor
    rounding: float
    error: float
    part: float


def _folded(order: list[Expr]) -> dict[int, tuple[dict[str, Any], Tensor] | None]:
    """Return convolutions that are only scaled channel by channel: nothing for them, what to do instead for the scale.

    The rows before the scale are not needed: one convolution with scaled weights does both.
    """
    readers: dict[int, int] = {}
    for expr in order:
        for item in expr.inputs if expr.op is not None else expr.atom.inputs:
            readers[item.id] = readers.get(item.id, 0) + 1
    found: dict[int, tuple[dict[str, Any], Tensor] | None] = {}
    for expr in order:
        if expr.op is None or expr.op.kind != "diagonal" or len(expr.inputs) != 1:
            continue
        inner = expr.inputs[0]
        if inner.op is None or inner.op.kind != "convolution" or readers[inner.id] > 1 or inner.shape != expr.shape:
            continue
        data, scale = inner.op.data, expr.op.data["scale"].to(torch.float64)
        dims = data["weight"].ndim - 2
        if data["transposed"] or len(expr.shape) != dims + 2 or scale.ndim > dims + 2:
            continue
        scale = scale.reshape((1,) * (dims + 2 - scale.ndim) + tuple(scale.shape))
        if any(size != 1 for axis, size in enumerate(scale.shape) if axis != 1):
            continue
        weight = data["weight"].to(torch.float64) * scale.reshape(-1, *(1,) * (dims + 1))
        found[expr.id], found[inner.id] = (data, weight), None
    return found
