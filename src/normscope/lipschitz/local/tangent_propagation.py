"""Propagate tangents through a network: ranges on a ball around a point, and the activation slopes that may change."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF
from normscope.lipschitz.local.balanced_channels import BalancedProgram
from normscope.lipschitz.local.ellipsoid import CentredRows, Ellipsoid, padded_columns
from normscope.lipschitz.local.expansion import expanded, operation_label
from normscope.lipschitz.local.feedback_system import FeedbackSystem
from normscope.lipschitz.local.linear_steps import Steps, apply, size_of
from normscope.lipschitz.local.slopes import ScalarFunction, Sectors, scalar_of
from normscope.lipschitz.local.tangents import (
    TangentAlgebra,
    TangentRows,
    TensorWithTangents,
    UnboundedError,
    padded_rows,
)
from normscope.lipschitz.local.values_at_point import ValueAtPoint, values_at_point
from normscope.operators.expression import Expr, operands, reached
from normscope.operators.nonlinear import Input
from normscope.operators.program import Program

#: Units that move a tensor by less than this fraction of its total movement are treated like rounding.
NEGLIGIBLE = 1e-13
#: The same for a ball of radius zero, where only rounding moves the slopes of smooth functions.
NEGLIGIBLE_AT_POINT = 1e-10
#: Largest number of entries whose slope may change.
LIMIT = 5_000
#: Largest number of derivatives of one atom by all atoms for which errors are propagated exactly.
LARGEST_CARRIED = 2**20
#: Rows processed at once.
CHUNK, FEW = 256, 16
#: Matrices up to this number of entries are processed whole.
TOGETHER = 2**16
#: Rounds of tuning the ellipsoid for each nonlinear operation.
ROUNDS = 3
#: Multiplications beyond which tuning is skipped: with so many open units, ranges hardly matter.
LONGEST_ROUND = 1e10


@dataclass
class OpenUnits:
    """The entries whose slope may change on the ball ("units"), one tensor per nonlinear operation."""

    rows: list[Tensor] = field(default_factory=list)  #: their inputs over (x, remainders)
    centre: list[Tensor] = field(default_factory=list)  #: middle of the tangent sector of each
    radius: list[Tensor] = field(default_factory=list)  #: half of its width
    blocks: list[tuple[int, int]] = field(default_factory=list)  #: (start, end) of the entries of each operation
    #: middle of each remainder, in units of the radius of the ball
    middle: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    #: half width of each remainder, in the same units
    weight: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    #: bound on the Frobenius norm of the error of the rows of each operation
    errors: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return self.blocks[-1][1] if self.blocks else 0


@dataclass(frozen=True)
class OpenEntries:
    """Entries of one nonlinear operation whose slope may change."""

    entries: Tensor  #: their numbers
    rows: Tensor  #: their inputs over (x, remainders of earlier units)
    error: float  #: bound on the Frobenius norm of the error of these rows
    centred: CentredRows | None  #: the rows as the ellipsoid of earlier units has them


class TangentPropagation:
    """One pass through a network that propagates tangents, with their ranges on a ball around a point.

    Subclasses take the same arguments.

    Args:
        program: the network for inputs of this shape.
        steps: bounds of its linear operations.
        point: the value of every block of its input.
        radius: of the ball, in the l2 norm over all blocks.
        nominal: the values at the point, if an earlier pass has computed them.
        work: largest number of multiplications.

    Raises:
        InputError: if the radius or the point is not finite.
    """

    negligible = NEGLIGIBLE

    def __init__(
        self,
        program: Program,
        steps: Steps,
        point: Sequence[Tensor],
        radius: float,
        *,
        nominal: dict[int, ValueAtPoint] | None = None,
        work: float = math.inf,
    ) -> None:
        if not (math.isfinite(radius) and radius >= 0):
            raise InputError(f"Expected a finite radius >= 0, got {radius}.")
        self.program, self.steps, self.radius = program, steps, float(radius)
        self.work, self.spent = work, 0.0
        self.negligible = self.negligible if radius or not self.negligible else NEGLIGIBLE_AT_POINT
        self.point = [p.detach().to(torch.float64) for p in point]
        if not all(bool(p.isfinite().all()) for p in self.point):
            raise InputError("Expected a point with finite entries, got NaN or infinity.")
        self.inputs = self.along = sum(p.numel() for p in self.point)  # entries, and tangents along them
        self.units = OpenUnits()
        self.ellipsoid = Ellipsoid(self.inputs)
        self._waiting: tuple[Any, ...] | None = None  # units to be added to the ellipsoid when it is needed
        self.rows_by_id: dict[int, TangentRows] = {}
        self._label = ""
        self._last: dict[int, int] = {}
        self.evaluation_order: list[Expr] = []  # expressions whose tangents are computed, in order of evaluation
        self.nominal: dict[int, ValueAtPoint] = nominal or {}
        atoms = [a.numel for a in program.atoms if not isinstance(a.atom, Input)]
        plain = all(isinstance(a.atom, Input) or scalar_of(a.atom) is not None for a in program.atoms)
        small = plain and sum(atoms) * max(atoms, default=0) <= LARGEST_CARRIED
        self.sources: list[tuple[int, float]] | None = [] if small else None  # entries of each atom, error made there

    @property
    def delta(self) -> float:
        """Return a bound on the probability that the result is wrong."""
        return 0.0

    def run(self) -> FeedbackSystem:
        """Return the outputs as a linear system of the input with feedback through the slopes that may change.

        Raises:
            UnboundedError: if an operation has no local rule or no finite slope, or too many slopes may change.
        """
        return self._system(self.tangents())

    def tangents(self) -> list[TangentRows]:
        """Propagate tangents through the network and return those of every output."""
        outputs = [e for _, e in self.program.outputs]
        self.nominal = self.nominal or self.values()
        order = self.evaluation_order = reached(outputs, self._read)
        last = self._last = {i.id: e.id for e in order for i in self._read(e)}
        keep = {e.id for e in outputs}
        for expr in order:
            self.rows_by_id[expr.id] = self._linear(expr) if expr.op is not None else self._atom(expr)
            for item in self._read(expr):
                if last[item.id] == expr.id and item.id not in keep:
                    self._forget(item.id)
        return [self.rows_by_id[e.id] for e in outputs]

    def order(self) -> list[Expr]:
        """Return all expressions that the outputs depend on, in order of evaluation."""
        return reached((e for _, e in self.program.outputs), operands)

    def values(self) -> dict[int, ValueAtPoint]:
        """Return the value at the point of every expression that an atom reads, and of the outputs."""
        if not isinstance(self.program, BalancedProgram):
            return self._values(self.order())
        original = reached((e for _, e in self.program.original.outputs), operands)  # its weights were not rounded
        return self.program.rescaled(self._values(original))

    def _values(self, order: list[Expr]) -> dict[int, ValueAtPoint]:
        """Return the value of every expression at the point."""
        return values_at_point(order, self.steps, self.point, atom_value)

    def _forget(self, key: int) -> None:
        """Drop rows that are no longer needed."""
        self.rows_by_id.pop(key, None)

    def _read(self, expr: Expr) -> Sequence[Expr]:
        """Return the expressions whose tangents are read: the first atom, for a segment that is one matrix."""
        segment = self.steps.segment(expr)
        return operands(expr) if segment is None else (segment.source,)

    def _linear(self, expr: Expr) -> TangentRows:
        """Apply a linear operation, or a whole segment, to rows."""
        segment = self.steps.segment(expr)
        below = [self.rows_by_id[i.id] for i in self._read(expr)]
        if not expr.atoms or not below:
            rows = torch.zeros(1 + self.along, *expr.shape, dtype=torch.float64)
            return TangentRows(rows, 0.0, carried=None if self.sources is None else rows[:0])
        step = self.steps.of(expr) if segment is None else segment.step

        def applied(stacks: list[Tensor]) -> Tensor:
            if segment is not None:
                return (stacks[0].flatten(1) @ segment.matrix.T).reshape(-1, *expr.shape)
            most = max(len(s) for s in stacks)
            return apply(expr, [padded_rows(s, most) for s in stacks])

        size, error = size_of(b.rows for b in below), step.error(sum(b.error for b in below), 0.0)
        fresh = step.error(sum(b.fresh for b in below), size)
        carried = applied([required(b.carried) for b in below]) if self.sources is not None else None
        result = TangentRows(applied([b.rows for b in below]), error + step.error(0.0, size), fresh, carried)
        return replace(result, error=self._error(result))

    def _error(self, x: TangentRows) -> float:
        """Return the smaller of two bounds on the error of rows: propagated exactly, or multiplied by layer norms."""
        if x.carried is None or not self.sources:
            return x.error
        counts = torch.tensor([count for count, _ in self.sources])
        made = torch.tensor([made for _, made in self.sources], dtype=torch.float64)
        squares = x.carried.flatten(1).square().sum(1)
        known = torch.repeat_interleave(torch.arange(len(counts)), counts)[: len(squares)]
        norms = torch.zeros_like(made).index_add_(0, known, squares).sqrt()
        # The carried rows have errors themselves, far smaller than one, or the other bound is taken.
        total = x.fresh + float(made @ (1.01 * norms + 1e-3))
        return min(x.error, 1.01 * total) if x.error < 1e-3 else x.error

    def _atom(self, expr: Expr) -> TangentRows:
        """Return the rows of an input block or a nonlinear operation."""
        rule = expr.atom
        if isinstance(rule, Input):
            first = sum(p.numel() for p in self.point[: rule.block])
            rows = self._directions(first, expr.numel).reshape(-1, *expr.shape)
            return TangentRows(rows, 0.0, carried=None if self.sources is None else rows[:0])
        self._label = operation_label(rule)
        scalar = scalar_of(rule)
        if scalar is not None:
            (below,) = rule.inputs
            return self._entrywise(self.nominal[below.id], self.rows_by_id[below.id], scalar)
        operands = [TensorWithTangents(self.nominal[e.id], self.rows_by_id[e.id]) for e in rule.inputs]
        return required(expanded(rule, operands, TangentAlgebra(self._entrywise)).rows)

    def _directions(self, first: int, count: int) -> Tensor:
        """Return the rows of some entries of the input: how they move along each direction, the middle first."""
        rows = torch.zeros(1 + self.inputs, count, dtype=torch.float64)
        rows[1 + first : 1 + first + count] = torch.eye(count, dtype=torch.float64)
        return rows

    def _entrywise(self, at: ValueAtPoint, x: TangentRows, scalar: ScalarFunction) -> TangentRows:
        """Return the rows of an entrywise function: nominal slopes, and new generators where the slope may change."""
        z, flat = at.value, x.rows.flatten(1)
        low, high, sizes = self._zonotope(flat, x.error)
        least, most = scalar.tangents(z + low.view_as(z) - at.error, z + high.view_as(z) + at.error)
        floor = self.negligible * float(sizes.norm())
        open_ = ((most - least).flatten() * sizes > floor).nonzero().flatten()
        bound = self._quick_ranges(flat, open_, x.error)
        if bound is not None:
            _narrow(low, high, open_, -bound, bound)
            at_open = z.flatten()[open_]
            least, most = scalar.tangents(at_open + low[open_] - at.error, at_open + high[open_] + at.error)
            open_ = open_[(most - least) * sizes[open_] > floor]
        if len(self.units) + len(open_) > 4 * LIMIT:
            raise UnboundedError(f"the slopes of more than {LIMIT} units may change on the ball")
        raw, error = self._raw(x, open_)
        centred: CentredRows | None = None
        if len(open_) and self.radius > 0:
            ends = self._ends(raw, error)
            if ends is not None:
                _narrow(low, high, open_, *ends)
            bound, centred = self._ranges(raw, error)
            _narrow(low, high, open_, -self.radius * bound, self.radius * bound)
        sectors = scalar.sectors(z, at.error, low.view_as(z), high.view_as(z)).flattened()
        width = sectors.tangent[1] - sectors.tangent[0]
        if not bool(width.isfinite().all()):
            raise UnboundedError(f"{self._label} has no finite slope on the ball")
        kept = (width * sizes)[open_] > floor
        opened = OpenEntries(open_[kept], raw[kept], error, None if centred is None else centred.kept(kept))
        return self._closed(x, sectors, opened, sizes)

    def _quick_ranges(self, flat: Tensor, entries: Tensor, error: float) -> Tensor | None:
        """Return cheap bounds on the deviation of entries, or ``None`` if they cannot improve on the zonotope."""
        return None

    def _ends(self, raw: Tensor, error: float) -> tuple[Tensor, Tensor] | None:
        """Return the range of the deviation of entries from more precise rows, if there are any."""
        return None

    def _ranges(self, raw: Tensor, error: float) -> tuple[Tensor, CentredRows]:
        """Return bounds of rows on the ellipsoid of all units so far, in units of the radius, and the rows centred."""
        self._grow(raw)
        wide, count = self.inputs + len(self.units), len(self.ellipsoid)
        once = count * (count * count + 2 * wide * len(raw))
        rounds = ROUNDS if once <= LONGEST_ROUND else 0
        self.spend((min(rounds, 1) + 1) * once)  # more rounds where they gain much, which is rare
        centred = self.ellipsoid.centred(raw, error)
        return self.ellipsoid.tuned(centred, rounds), centred

    def _grow(self, asked: Tensor | None = None) -> None:
        """Add the most recent units to the ellipsoid."""
        if self._waiting is not None:
            self.ellipsoid.grow(*self._waiting, asked=asked)
            self._waiting = None

    def _raw(self, x: TangentRows, entries: Tensor) -> tuple[Tensor, float]:
        """Return how some entries move with the input and all units, and a bound on the error of that."""
        return x.rows.flatten(1)[1:, entries].T.contiguous(), x.error

    def spend(self, work: float) -> None:
        """Add to the number of multiplications, before they are made.

        Raises:
            UnboundedError: if there are too many.
        """
        self.spent += work
        if self.spent > self.work:
            raise UnboundedError(f"it takes over {self.work:.0e} multiplications; request it with radius (--radius)")

    def _zonotope(self, flat: Tensor, error: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return the least and the largest deviation of every entry, and the norm of its tangents."""
        n, r, slack = 1 + self.along, self.radius, 1e-12 * len(flat)
        straight, rest = self._squares(flat)
        spread = straight.sqrt()
        for i in range(n, len(flat), CHUNK):
            part = flat[i : i + CHUNK]
            spread += self.units.weight[i - n : i - n + len(part)] @ part.abs()
        spread = r * (spread * (1 + slack) + 1.01 * self._pad(error) + 1e-12 * flat[0].abs())
        middle = r * flat[0]
        return middle - spread, middle + spread, (straight + rest).sqrt() * (1 + slack)

    def _pad(self, error: float) -> float:
        """Return how far an error of the rows may move an entry, relative to the radius."""
        return error * (1 + float(self.units.weight.norm())) if self.radius else 0.0

    def _squares(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return for every entry the sum of squares of its tangents along the input, and of all other rows."""
        n = 1 + self.along
        return column_squares(flat[1:n]), column_squares(flat[n:]) + flat[0].square()

    def _closed(self, x: TangentRows, sectors: Sectors, opened: OpenEntries, sizes: Tensor) -> TangentRows:
        """Return the atom's rows: nominal slopes, new generators for the open entries, noted as units."""
        open_ = opened.entries
        flat, before, u = x.rows.flatten(1), len(self.units), len(open_)
        if before + u > LIMIT:
            raise UnboundedError(f"the slopes of more than {LIMIT} units may change on the ball")
        width = sectors.tangent[1] - sectors.tangent[0]
        width[open_] = 0.0  # the others are left out, and what they may do is an error of the rows
        left_out = float(width.max()) if len(width) else 0.0
        small = float((width * sizes).norm()) * (1 + 1e-12)
        old = 1 + self.along + before
        rows = flat.new_empty(old + u, flat.shape[1])
        torch.mul(flat, sectors.nominal, out=rows[: len(flat)])
        rows[len(flat) :] = 0.0
        if u:
            self._note(opened, sectors)
            if self.radius > 0:
                middle = (sectors.secant[0] + sectors.secant[1])[open_] / 2
                half = (sectors.secant[1] - sectors.secant[0])[open_] / 2
                half = half * (1 + 1e-12) + 2.0**-50 * (1 + middle.abs())
                self._waiting = (opened.rows, middle, half, opened.error, opened.centred)
                rows[0, open_] += self.units.middle[before:]
            rows[old + torch.arange(u), open_] = 1.0
        steepest = float(sectors.nominal.abs().max()) if len(width) else 0.0
        made = 2 * UNIT_ROUNDOFF * float(sizes.norm()) + small + left_out * x.error
        error = (steepest * x.error + made) * (1 + 1e-12)
        carried = None
        if self.sources is not None:
            earlier = padded_rows(required(x.carried).flatten(1), sum(n for n, _ in self.sources)) * sectors.nominal
            carried = torch.cat([earlier, torch.eye(flat.shape[1], dtype=earlier.dtype)])
            carried = carried.reshape(-1, *x.rows.shape[1:])
            self.sources.append((flat.shape[1], (steepest * x.fresh + made) * (1 + 1e-12)))
        return TangentRows(rows.reshape(-1, *x.rows.shape[1:]), error, 0.0, carried)

    def _note(self, opened: OpenEntries, sectors: Sectors) -> None:
        """Note open entries as units."""
        units, before, open_ = self.units, len(self.units), opened.entries
        low, high = (side[open_] for side in sectors.tangent)
        units.rows.append(opened.rows)
        middle, half = (low + high) / 2, (high - low) / 2
        exact = (middle + half == high) & (middle - half == low)
        units.centre.append(middle)
        units.radius.append(torch.where(exact, half, half + 2.0**-50 * (low.abs() + high.abs())))
        units.blocks.append((before, before + len(open_)))
        units.errors.append(opened.error)
        least, most = (
            side[open_] / (2 * self.radius) if self.radius > 0 else 0 * side[open_] for side in sectors.remainder
        )
        units.middle = torch.cat([units.middle, least + most])
        units.weight = torch.cat([units.weight, (most - least) * (1 + 1e-12)])

    def _system(self, outputs: list[TangentRows]) -> FeedbackSystem:
        """Return the system of the stacked outputs."""
        units, n = self.units, self.inputs
        wide = n + len(units)
        out = torch.cat([padded_columns(o.rows.flatten(1)[1:].T, wide) for o in outputs])
        rows = torch.cat([padded_columns(r, wide) for r in units.rows]) if units.rows else out.new_zeros(0, wide)
        centre, radius = (torch.cat(v) if v else out.new_zeros(0) for v in (units.centre, units.radius))
        if self.ellipsoid.room_needed() > 1.0:
            raise UnboundedError("rounding is too large for a range on the ball: the weights are badly scaled")
        errors = (math.hypot(*(o.error for o in outputs)), *units.errors)
        matrices = (out[:, :n], out[:, n:], rows[:, :n], rows[:, n:])
        return FeedbackSystem(*matrices, centre, radius, tuple(units.blocks), math.hypot(*errors), errors)


def _narrow(low: Tensor, high: Tensor, entries: Tensor, least: Tensor, most: Tensor) -> None:
    """Intersect the ranges of some entries with others, in place."""
    low[entries], high[entries] = torch.maximum(low[entries], least), torch.minimum(high[entries], most)


def column_squares(rows: Tensor) -> Tensor:
    """Return the sum of squares of every column, a few rows at a time so that they stay in the cache."""
    if rows.numel() <= TOGETHER:
        return (rows * rows).sum(0)
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for i in range(0, len(rows), FEW):
        part = rows[i : i + FEW]
        total += (part * part).sum(0)
    return total


def atom_value(expr: Expr, inputs: list[ValueAtPoint]) -> ValueAtPoint:
    """Return the value of a nonlinear operation at the values of its inputs.

    Raises:
        UnboundedError: if it has no local rule.
    """
    return expanded(expr.atom, [TensorWithTangents(i) for i in inputs], TangentAlgebra()).at


def required(rows: Any) -> Any:
    """Return the argument, which must not be ``None``."""
    if rows is None:
        raise ValueError("rows are carried everywhere or nowhere")
    return rows
