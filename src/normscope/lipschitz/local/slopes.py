"""Slopes of a scalar function on many intervals at once: of tangents, and of secants from a point."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.operators.nonlinear import Nonlinear, Pointwise
from normscope.operators.quadratic_form import RootOfForm
from normscope.operators.scalar.curve import Curve
from normscope.operators.scalar.entrywise import Entrywise
from normscope.operators.scalar.formula import Formula
from normscope.operators.scalar.interval import Interval

#: Bound on the rounding error of values and derivatives in float64, relative to their size or to one.
ROUNDING = 2.0**-46
LowHigh = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Sectors:
    """What is known of a function g on intervals ``z + [low, high]``, entry by entry, relative to a nominal slope s."""

    nominal: Tensor  #: s
    tangent: LowHigh  #: (least, largest) ``g' - s`` on the interval
    secant: LowHigh  #: (least, largest) ``(g(z + d) - g(z)) / d - s``
    remainder: LowHigh  #: (least, largest) ``g(z + d) - g(z) - s d``

    def flattened(self) -> Sectors:
        """Return the same as vectors."""
        pairs = [(low.flatten(), high.flatten()) for low, high in (self.tangent, self.secant, self.remainder)]
        return Sectors(self.nominal.flatten(), *pairs)


@dataclass(eq=False)
class ScalarFunction:
    """A function of one variable, applied to every entry."""

    function: Callable[[Tensor], Tensor]  #: the function on tensors
    curve: Curve  #: its pieces, which say where the derivative jumps or turns
    inexact: float = 0.0  #: how far the derivative that torch computes may be off, relative to it

    def derivative(self, z: Tensor) -> Tensor:
        """Return g' at every entry (one of its sides at a kink)."""
        if self._steps is not None:
            return self._steps[1][torch.bucketize(z, self._steps[0])]
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.function(z).sum(), z)
        return slope.detach()

    @functools.cached_property
    def marks(self) -> tuple[tuple[float, float, float], ...]:
        """Return points where g' jumps or turns, with the least and the largest slope there."""
        found: dict[float, list[float]] = {}
        for piece in self.curve.pieces:
            inner = (0.0,) if piece.low < 0 < piece.high else ()  # where even and odd functions turn
            ends = [(point, *piece.at(1, point)) for point in (piece.low, *inner, piece.high) if math.isfinite(point)]
            for point, least, most in (*ends, *(piece.steep_points or ())):
                found.setdefault(point, []).extend((least, most))
        return tuple((point, min(slopes), max(slopes)) for point, slopes in sorted(found.items()))

    @functools.cached_property
    def room(self) -> float:
        """Return the relative rounding of derivatives: none where all pieces are straight with exact slopes."""
        if self.inexact:
            return self.inexact + ROUNDING
        pieces = self.curve.pieces
        exact = pieces and all(piece.straight and len(set(piece.at(1, 0.0))) == 1 for piece in pieces)
        return 0.0 if exact else ROUNDING

    @functools.cached_property
    def _steps(self) -> LowHigh | None:
        """Return the kinks and the slopes between them of a function of straight pieces."""
        pieces = self.curve.pieces
        if self.room or any(a.high != b.low for a, b in itertools.pairwise(pieces)):
            return None
        slopes = [p.at(1, 0.0)[0] for p in pieces]
        kinks = [p.high for p in pieces[:-1]]
        return torch.tensor(kinks, dtype=torch.float64), torch.tensor(slopes, dtype=torch.float64)

    def tangents(self, low: Tensor, high: Tensor) -> LowHigh:
        """Return the least and the largest g' on intervals."""
        if self._steps is not None:  # an end that is not a number may lie anywhere
            low = low.nan_to_num(-math.inf, math.inf, -math.inf)
            high = high.nan_to_num(math.inf, math.inf, -math.inf)
        left, right = self.derivative(low), self.derivative(high)
        least, most = torch.minimum(left, right), torch.maximum(left, right)
        least, most = least - self.room * (1 + least.abs()), most + self.room * (1 + most.abs())
        for point, lowest, highest in self.marks:
            inside = _meets(low, high, point)
            least = torch.where(inside, least.clamp_max(lowest), least)
            most = torch.where(inside, most.clamp_min(highest), most)
        unknown = least.isnan() | most.isnan()
        return least.masked_fill(unknown, -math.inf), most.masked_fill(unknown, math.inf)

    def turns(self, low: Tensor, high: Tensor) -> Tensor:
        """Return where the derivative may not be monotone on the interval."""
        left, right = self.derivative(low), self.derivative(high)
        rises = falls = torch.ones_like(low, dtype=torch.bool)
        before = after = left
        for point, lowest, highest in self.marks:
            inside = _meets(low, high, point)
            rises = rises & (~inside | (before <= lowest))
            falls = falls & (~inside | (after >= highest))
            before = torch.where(inside, torch.full_like(low, highest), before)
            after = torch.where(inside, torch.full_like(low, lowest), after)
        return ~((rises & (before <= right)) | (falls & (after >= right)))

    @statement("normscope", "LOCAL-3", holds="where g' is monotone on the interval the secants lie between their ends")
    def sectors(self, z: Tensor, error: float, low: Tensor, high: Tensor) -> Sectors:
        """Return tangents, secants and remainders on ``z + [low, high]``, z itself known up to an error.

        Args:
            z: the points.
            error: bound on their error.
            low: least deviation, not positive.
            high: largest deviation, not negative.
        """
        whole = self.tangents(z + low - error, z + high + error)
        here = self.tangents(z - error, z + error)
        nominal = torch.minimum(torch.maximum(self.derivative(z), here[0]), here[1])
        turning = self.turns(z + low - error, z + high + error)
        down, up = (self._secant(z, d, error, whole, here, turning) for d in (low, high))
        secant = torch.minimum(down[0], up[0]) - nominal, torch.maximum(down[1], up[1]) - nominal
        products = [(s - nominal) * d for s, d in ((down[0], low), (down[1], low), (up[0], high), (up[1], high))]
        ends = torch.stack([*products, torch.zeros_like(z)])
        noise = self.room * (secant[0].abs() + secant[1].abs()) * (high - low)
        remainder = ends.amin(0) - noise, ends.amax(0) + noise
        return Sectors(nominal, (whole[0] - nominal, whole[1] - nominal), secant, remainder)

    def _secant(self, z: Tensor, d: Tensor, error: float, whole: LowHigh, here: LowHigh, turning: Tensor) -> LowHigh:
        """Return the least and the largest slope of secants from z towards d.

        Where g' is monotone these lie between the slope at z and that of the longest secant; elsewhere between the
        least and the largest tangent.
        """
        end, start = self.function(z + d), self.function(z)
        slope = (end - start) / d
        steepest = torch.maximum(whole[0].abs(), whole[1].abs())
        lost = ROUNDING * (end.abs() + start.abs()) if self.room else 2.0**-50 * (z.abs() + d.abs()) * steepest
        noise = (lost + 2 * steepest * error) / d.abs()
        unknown = turning | ~slope.isfinite() | ~noise.isfinite()
        least = torch.where(unknown, whole[0], torch.minimum(slope - noise, here[0]))
        most = torch.where(unknown, whole[1], torch.maximum(slope + noise, here[1]))
        return torch.maximum(least, whole[0]), torch.minimum(most, whole[1])


class MonotoneSlope(ScalarFunction):
    """A smooth function with a monotone derivative on the numbers above a limit.

    Args:
        function: the function on tensors.
        above: the limit; at or below it nothing is known.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], above: float = -math.inf) -> None:
        super().__init__(function, Curve(()))
        self.above = above

    def tangents(self, low: Tensor, high: Tensor) -> LowHigh:
        """Return the least and the largest g' on intervals."""
        least, most = super().tangents(low, high)
        outside = low <= self.above
        return least.masked_fill(outside, -math.inf), most.masked_fill(outside, math.inf)

    def turns(self, low: Tensor, high: Tensor) -> Tensor:
        """Return false everywhere: the derivative is monotone."""
        return torch.zeros_like(low, dtype=torch.bool)


class FormulaFunction(ScalarFunction):
    """A function given by a formula: its derivatives on intervals come from interval arithmetic."""

    def __init__(self, formula: Formula) -> None:
        super().__init__(self._values, Curve(()))
        self.formula = formula

    def _jets(self, low: Tensor, high: Tensor, order: int) -> LowHigh:
        box = Interval(low.numpy().reshape(-1), high.numpy().reshape(-1))
        with np.errstate(all="ignore"):  # masked entries are infinite: what is not a number there stays unknown
            jet = self.formula.jets(box)[order]
            ends = [end + 0.0 * box.low for end in (jet.low, jet.high)]
        return tuple(torch.from_numpy(end).reshape(low.shape) for end in ends)  # type: ignore[return-value]

    def _values(self, z: Tensor) -> Tensor:
        return sum(self._jets(z, z, 0)) / 2  # type: ignore[return-value]

    def derivative(self, z: Tensor) -> Tensor:
        """Return g' at every entry."""
        return sum(self._jets(z, z, 1)) / 2  # type: ignore[return-value]

    def tangents(self, low: Tensor, high: Tensor) -> LowHigh:
        """Return the least and the largest g' on intervals and next to them: kinks at an end have two sides."""
        below, above = low.new_full((), -math.inf), high.new_full((), math.inf)
        least, most = self._jets(low.nextafter(below), high.nextafter(above), 1)
        unknown = least.isnan() | most.isnan()
        return least.masked_fill(unknown, -math.inf), most.masked_fill(unknown, math.inf)

    def turns(self, low: Tensor, high: Tensor) -> Tensor:
        """Return where the derivative may not be monotone."""
        least, most = self._jets(low, high, 2)
        return ~((least >= 0) | (most <= 0))


def scalar_of(rule: Nonlinear) -> ScalarFunction | None:
    """Return the scalar function of an entrywise rule, or ``None`` for another kind of operation."""
    known = getattr(rule, "_scalar", None)
    if known is None:
        if isinstance(rule, Pointwise) and rule.curve is not None and rule.apply is not None:
            steady = not rule.curve.jumps and all(p.steep_points is not None for p in rule.curve.pieces)
            known = ScalarFunction(rule.apply, rule.curve, rule.inexact) if steady else None
        elif isinstance(rule, Entrywise):
            known = FormulaFunction(rule.formula)
        elif isinstance(rule, RootOfForm):
            known = scalar_of(rule.root)
        rule._scalar = known  # type: ignore[attr-defined]
    return known


def _meets(low: Tensor, high: Tensor, point: float) -> Tensor:
    """Return which intervals hold a point, or come so near that rounding may have moved it out."""
    reach = 1e-12 * (1 + abs(point))
    return (low - reach <= point) & (point <= high + reach)
