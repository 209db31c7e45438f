r"""Tangents of deep networks with a bound on rounding: forward for the ranges, backward for the rows of the constant.

Forward, the error of all tangents is multiplied by the norms of whole segments between nonlinear operations: coarse,
but small beside the tangents, and ranges need no more. The rows of the few entries whose slope may change, and of the
outputs, are computed again backwards. If :math:`c` are cotangents and Z the exact tangents, an operation A
that leaves an error :math:`\delta` in :math:`A^T c` changes the rows by :math:`\delta^T Z`: the errors of all
operations are weighed by tangents, whose norms are known, instead of by products of norms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF, gamma
from normscope.lipschitz.local.feedback_system import FeedbackSystem
from normscope.lipschitz.local.linear_steps import WEIGHT_ROUNDINGS, OperationBounds, apply, size_of, source_of
from normscope.lipschitz.local.piecewise_linear import PiecewiseLinearPropagation, ScaledConvolution, convolve_scaled
from normscope.lipschitz.local.precise_values import precise_values
from normscope.lipschitz.local.slopes import Sectors
from normscope.lipschitz.local.tangent_propagation import OpenEntries, TangentPropagation
from normscope.lipschitz.local.tangents import TangentRows, UnboundedError
from normscope.lipschitz.local.values_at_point import ValueAtPoint
from normscope.operators.convolution import apply_convolution, stack_roundings
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Input

#: Relative error of rows above which they are computed again backwards.
PRECISE = 2.0**-36
#: Largest movement of an entry by the error of its rows, relative to its movement by the input.
TOO_LARGE = 0.5
#: Entries whose rows are computed backwards at once.
AT_ONCE = 64


@dataclass(frozen=True)
class ErrorNorms:
    """Bounds on the Frobenius norms of errors of rows along the input, and along all units."""

    inputs: float = 0.0  #: along the input, the middle of the zonotope included
    units: float = 0.0  #: along the remainders of all units

    def plus(self, other: ErrorNorms, factor: float = 1.0) -> ErrorNorms:
        """Return the sum with a multiple."""
        return ErrorNorms(self.inputs + factor * other.inputs, self.units + factor * other.units)

    @property
    def total(self) -> float:
        """Return a bound on all errors together."""
        return math.hypot(self.inputs, self.units) * (1 + 1e-12)


@statement("normscope", "LOCAL-12", holds="piecewise linear networks; rounding included")
class BoundedRoundingPropagation(PiecewiseLinearPropagation):
    """Propagate tangents through a piecewise linear network, with a bound on the rounding error."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.errors: dict[int, ErrorNorms] = {}  # of the rows of each expression
        self.fresh: dict[int, ErrorNorms] = {}  # the part made after the last atoms
        self.sizes: dict[int, ErrorNorms] = {}  # Frobenius norms of the rows themselves
        self.slopes: dict[int, Tensor] = {}
        self.left_out: dict[int, float] = {}
        self.opened: dict[int, tuple[int, Tensor]] = {}
        self._now: Expr  # the current atom
        self._made = ErrorNorms()

    def _values(self, order: list[Expr]) -> dict[int, ValueAtPoint]:
        return precise_values(order, self.steps, self.point, given=False)

    def _read(self, expr: Expr) -> Sequence[Expr]:
        return TangentPropagation._read(self, expr)  # small segments are one matrix, forwards and backwards

    def _applied(self, expr: Expr, stacks: list[Tensor]) -> Tensor:
        segment = self.steps.segment(expr)
        if segment is None:
            return super()._applied(expr, stacks)
        return (stacks[0].flatten(1) @ segment.matrix.T).reshape(-1, *expr.shape)

    def _sized(self, rows: Tensor) -> ErrorNorms:
        n = 1 + self.along
        return ErrorNorms(size_of([rows[:n]]), size_of([rows[n:]]))

    def _linear(self, expr: Expr) -> TangentRows:
        found = super()._linear(expr)
        if not expr.atoms or not expr.inputs:
            self.errors[expr.id] = self.fresh[expr.id] = self.sizes[expr.id] = ErrorNorms()
            return found
        step, below, whole = self._step(expr, len(found.rows)), self._read(expr), self.steps.segment(expr) is not None
        fresh, error = ErrorNorms(), ErrorNorms()
        own = gamma(step.roundings) * step.mass * 1.01 if step.roundings else 0.0
        for item in below:
            i = item.id
            fresh = fresh.plus(self.fresh[i], step.norm).plus(self.sizes[i], own)
            error = error.plus(self.errors[i], step.norm).plus(self.sizes[i], own)
        if len(expr.atoms) == 1 and not whole:
            through = fresh.plus(self.errors[source_of(expr).id], self.steps.reach(expr))
            error = ErrorNorms(min(error.inputs, through.inputs), min(error.units, through.units))
        self.fresh[expr.id], self.errors[expr.id] = fresh, error
        skipped = not whole and expr.id in self.scaled_convolutions and self.scaled_convolutions[expr.id] is None
        self.sizes[expr.id] = self.sizes[below[0].id] if skipped else self._sized(found.rows)
        return replace(found, error=error.total)

    def _step(self, expr: Expr, count: int = 0) -> OperationBounds:
        """Return the bounds of an operation as it is applied to rows: segments and scaled convolutions are one step.

        Args:
            expr: the operation.
            count: number of rows it is applied to forwards; zero for bounds valid in both directions.
        """
        segment = self.steps.segment(expr)
        if segment is not None:
            return segment.step
        if expr.id not in self.scaled_convolutions:
            return self.steps.of(expr)
        scaled = self.scaled_convolutions[expr.id]
        if scaled is None:
            return OperationBounds(1.0, 0.0, 0)
        weight = scaled[1]
        size = weight.abs()
        mass = math.sqrt(float(size.sum((1, 2, 3)).max()) * float(size.sum((0, 2, 3)).max())) * (1 + 1e-12)
        if count:
            images = count * expr.inputs[0].shape[0]
            roundings = stack_roundings(scaled[0], images, expr.inputs[0].inputs[0].shape[2:])
        else:
            roundings = max(weight[0].numel(), weight[:, 0].numel())
        # The rounding of the scaled weight itself, and of the weight and the scale, is included.
        return OperationBounds(mass, mass, roundings + 2 + WEIGHT_ROUNDINGS + self.steps.of(expr).roundings)

    def _atom(self, expr: Expr) -> TangentRows:
        self._now, self._made = expr, ErrorNorms()
        found = super()._atom(expr)
        self.errors[expr.id], self.fresh[expr.id] = self._made, ErrorNorms()
        self.sizes[expr.id] = self._sized(found.rows)
        return replace(found, error=self._made.total)

    def _pad(self, error: float) -> float:
        """Return how far the errors of rows may move an entry.

        Raises:
            UnboundedError: if that is not small beside the rows.
        """
        (below,) = self._now.atom.inputs
        made = self.errors[below.id]
        pad = 2 * made.inputs + made.units * float(self.units.weight.norm())
        if self.radius > 0 and pad * math.sqrt(below.numel) > TOO_LARGE * self.sizes[below.id].inputs:
            raise RoundingError("the rounding of float64 is too large for the depth of the network")
        return pad

    def _raw(self, x: TangentRows, entries: Tensor) -> tuple[Tensor, float]:
        raw, error = super()._raw(x, entries)
        (below,) = self._now.atom.inputs
        if self._is_precise(error, raw) or not len(entries):
            return raw, error
        return self._backwards(below, entries)

    def _ends(self, raw: Tensor, error: float) -> tuple[Tensor, Tensor]:
        """Return the zonotope of entries from their own rows, which are more precise."""
        units, read = self.units, raw[:, self.inputs :]
        middle = read @ units.middle[: read.shape[1]]
        spread = raw[:, : self.inputs].norm(dim=1) + read.abs() @ units.weight[: read.shape[1]]
        pad = error * (1 + float(units.weight.norm()) + float(units.middle.norm()))
        moved = 1e-12 * raw.shape[1] * (spread + read.abs() @ units.middle[: read.shape[1]].abs())
        spread = self.radius * (spread + moved + 1.01 * pad)
        return self.radius * middle - spread, self.radius * middle + spread

    def _is_precise(self, error: float, rows: Tensor) -> bool:
        """Return whether rows computed forwards are precise enough."""
        return error <= PRECISE * size_of([rows])

    def _closed(self, x: TangentRows, sectors: Sectors, opened: OpenEntries, sizes: Tensor) -> TangentRows:
        width = sectors.tangent[1] - sectors.tangent[0]
        width[opened.entries] = 0.0
        # Entries whose computed tangents vanish may change their slope too: their effect is an error.
        left = self.left_out[self._now.id] = float(width.max()) if len(width) else 0.0
        self.slopes[self._now.id] = sectors.nominal
        self.opened[self._now.id] = (len(self.units), opened.entries)
        (below,) = self._now.atom.inputs
        steepest = float(sectors.nominal.abs().max()) if len(width) else 0.0
        made = self.errors[below.id].plus(self.sizes[below.id], 2 * UNIT_ROUNDOFF)
        self._made = ErrorNorms().plus(made, (max(steepest, 1.0) + left) * (1 + 1e-12))
        return super()._closed(x, sectors, opened, sizes)

    def _backwards(self, target: Expr, entries: Tensor) -> tuple[Tensor, float]:
        """Return the rows of some entries of an expression, computed backwards, and a bound on their error."""
        parts = [self._pulled(target, chunk) for chunk in entries.split(AT_ONCE)]
        return torch.cat([rows for rows, _ in parts]), math.hypot(*(error for _, error in parts))

    def _pulled(self, target: Expr, entries: Tensor) -> tuple[Tensor, float]:
        count, error = len(entries), 0.0
        first = torch.zeros(count, target.numel, dtype=torch.float64)
        first[torch.arange(count), entries] = 1.0
        pulled = {target.id: first.reshape(count, *target.shape)}
        rows = torch.zeros(count, self.inputs + len(self.units), dtype=torch.float64)
        for expr in reversed(self.evaluation_order):
            if expr.id not in pulled or not expr.atoms:
                continue
            given = pulled.pop(expr.id)
            if expr.op is None and isinstance(expr.atom, Input):
                at = sum(p.numel() for p in self.point[: expr.atom.block])
                rows[:, at : at + expr.numel] += given.flatten(1)
                continue
            for item, found, made in self._pull(expr, given, rows):
                error += made
                if item.id in pulled:
                    found = pulled[item.id] + found
                    error += self._weighed(item, UNIT_ROUNDOFF * size_of([found]))
                pulled[item.id] = found
        return rows, error * (1 + 1e-9)

    def _pull(self, expr: Expr, given: Tensor, rows: Tensor) -> list[tuple[Expr, Tensor, float]]:
        """Return the cotangent of each operand, and a bound on the error that its rounding makes in the rows."""
        if expr.op is None:
            (item,) = expr.atom.inputs
            start, open_ = self.opened[expr.id]
            at, flat = self.inputs + start, given.flatten(1)
            rows[:, at : at + len(open_)] = flat[:, open_]
            found, slopes = (flat * self.slopes[expr.id]).reshape(given.shape), self.slopes[expr.id]
            size = size_of([given])
            left = self.left_out[expr.id] * size * self.errors[item.id].total
            steepest = float(slopes.abs().max()) if len(slopes) else 0.0
            return [(item, found, left + self._weighed(item, 2 * UNIT_ROUNDOFF * steepest * size))]
        segment = self.steps.segment(expr)
        if segment is not None:
            found = (given.flatten(1) @ segment.matrix).reshape(-1, *segment.source.shape)
            return [self._rounded(segment.source, found, segment.step, given)]
        if expr.op.kind == "sum":
            return [(item, given, 0.0) for item in expr.inputs if item.atoms]
        if len(expr.inputs) != 1:
            if expr.op.kind != "concat":
                raise RoundingError(f"{expr.op.kind} is not applied backwards")
            return [(item, part, 0.0) for item, part in zip(expr.inputs, _adjoint(expr, given), strict=True)]
        (item,), step = expr.inputs, self._step(expr)
        scaled = self.scaled_convolutions.get(expr.id) if expr.id in self.scaled_convolutions else _own_weight(expr)
        if expr.id in self.scaled_convolutions and scaled is None:
            found = given  # the scale applied both
        elif scaled is not None:
            inner = expr.inputs[0].inputs[0] if expr.id in self.scaled_convolutions else item
            found = _convolved_back(scaled, given, expr, inner)
        else:
            (found,) = _adjoint(expr, given)
        return [self._rounded(item, found, step, given)]

    def _rounded(self, item: Expr, found: Tensor, step: OperationBounds, given: Tensor) -> tuple[Expr, Tensor, float]:
        """Return the cotangent of an operand, and a bound on the error that its rounding makes in the rows."""
        own = gamma(step.roundings) * step.mass * 1.01 if step.roundings else 0.0
        return item, found, self._weighed(item, own * size_of([given]))

    def _weighed(self, item: Expr, error: float) -> float:
        """Return the error of rows from an error of cotangents: at most the norm of the tangents times as large."""
        return error * (self.sizes[item.id].total + self.errors[item.id].total)

    def _system(self, outputs: list[TangentRows]) -> FeedbackSystem:
        exprs = [e for _, e in self.program.outputs]
        made = []
        for found, expr in zip(outputs, exprs, strict=True):
            if self._is_precise(found.error, found.rows):
                made.append(found)
                continue
            rows, error = self._backwards(expr, torch.arange(expr.numel))
            full = torch.cat([rows.new_zeros(len(rows), 1), rows], 1)
            made.append(TangentRows(full.T.reshape(-1, *expr.shape), error))
        return super()._system(made)


class RoundingError(UnboundedError):
    """Rounding in float64 is too large for this network."""


def _adjoint(expr: Expr, given: Tensor) -> tuple[Tensor, ...]:
    """Return the adjoint of an operation on a stack of cotangents, one stack for each operand."""
    if expr.op is not None and len(expr.inputs) == 1:  # without the cost of differentiating
        data = expr.op.data
        if data.get("reshape"):
            return (given.reshape(-1, *expr.inputs[0].shape),)
        if expr.op.kind == "matrix" and data["axis"] == -1 and data["weight"].ndim == 2:
            return (torch.matmul(given, data["weight"].to(torch.float64)),)
        if expr.op.kind == "diagonal" and expr.inputs[0].shape == expr.shape:
            return (given * data["scale"].to(torch.float64),)
    zeros = [torch.zeros(len(given), *item.shape, dtype=torch.float64) for item in expr.inputs]
    return tuple(torch.func.vjp(lambda *z: apply(expr, list(z)), *zeros)[1](given))


def _own_weight(expr: Expr) -> ScaledConvolution | None:
    """Return a convolution and its weight, or ``None`` if it is transposed or not batched."""
    if expr.op is None or expr.op.kind != "convolution" or expr.op.data["transposed"]:
        return None
    data = expr.op.data
    return (data, data["weight"].to(torch.float64)) if len(expr.shape) == data["weight"].ndim else None


def _convolved_back(scaled: ScaledConvolution, given: Tensor, expr: Expr, item: Expr) -> Tensor:
    """Return the adjoint of a convolution: for stride one, a convolution with the flipped kernel."""
    data, weight = scaled
    kernel = weight.shape[2:]
    plain = data["groups"] == 1 and all(v == 1 for v in (*data["stride"], *data["dilation"]))
    if plain:
        pads = [(k - 1 - a, k - 1 - b) for k, (a, b) in zip(kernel, data["padding"], strict=True)]
        if all(p >= 0 for pair in pads for p in pair):
            turned = weight.transpose(0, 1).flip(*range(2, weight.ndim)).contiguous()
            return convolve_scaled(({**data, "padding": pads}, turned), given, item)
    zero = torch.zeros(len(given), *item.shape, dtype=torch.float64)
    whole = apply_convolution({**data, "weight": weight})
    (found,) = torch.func.vjp(lambda z: whole(z.flatten(0, 1)).reshape(-1, *expr.shape), zero)[1](given)
    return found
