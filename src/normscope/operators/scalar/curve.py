"""Certified ranges of functions of one variable and of their slopes, on intervals and on the line.

Between the zeros of ``g'`` the function ``g`` is monotone, and between the zeros of ``g''`` its slope is: ranges are
taken at the ends of the interval and at these points. They are isolated once for each formula, by bisection with
enclosures of the next two derivatives. Where they are too many, as those of a sine, the range itself is found by branch
and bound. Far from zero :mod:`normscope.operators.scalar.asymptotics` takes over.
"""

import heapq
import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from flint import arb, ctx

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.operators.scalar.asymptotics import beyond
from normscope.operators.scalar.formula import Formula, affine, continuous
from normscope.operators.scalar.series import PRECISION, ball, outward

_INF = math.inf
_EVERYTHING = (-_INF, _INF)
#: Relative width at which branch and bound stops, and most enclosures that are computed for one answer.
TOLERANCE, _MOST = 1e-7, 2000
#: Terms of the Taylor polynomials that branch and bound uses.
_TERMS = 6
#: How far out, at most, to search for the points between which a function is monotone.
_FARTHEST = 2.0**60

#: An interval with finite ends.
Box = tuple[float, float]


def _derivative(formula: Formula, order: int, x: arb) -> arb:
    """Return a ball that holds a derivative at each point of a ball, or the value (order 0)."""
    return formula.series(x, order + 1)[order]  # 0! = 1! = 1


def _starts(nearest: float) -> Iterator[float]:
    """Yield powers of two beyond a point, and infinity."""
    yield from (s for k in range(-8, 1024) if (s := math.ldexp(1.0, k)) > nearest)
    yield _INF


def _cuts(low: float, high: float, smooth: bool) -> list[Box]:
    """Return first boxes, which grow with the distance from zero; a kink at zero lies inside one of them."""
    sides = [math.ldexp(1.0 if smooth else 1.0471975, k) for k in range(-24, 60)]
    inner = [p for p in (*(-s for s in reversed(sides)), *([0.0] if smooth else []), *sides) if low < p < high]
    ends = [low, *inner, high]
    return list(itertools.pairwise(ends))


@lru_cache(maxsize=1024)
def _ends(formula: Formula) -> tuple[float, float, bool]:
    """Return two points beyond which the slope is constant or not bounded, and whether there are such points.

    Otherwise the slope keeps changing, and its bound beyond these points is the best one that was found.
    """
    places = [side * math.ldexp(1.0, k) for k in range(-8, 10) for side in (-1, 1)]
    samples = [abs(float(_derivative(formula, 1, arb(x)))) for x in places]
    scale = max((x for x in samples if math.isfinite(x)), default=1.0)
    ends, settled = {}, True
    starts = list(itertools.takewhile(lambda s: s <= _FARTHEST, _starts(0.0)))
    for side in (-1, 1):
        bounds = [beyond(formula, 1, side, start) for start in starts]
        constant = [s for s, (low, high) in zip(starts, bounds, strict=True) if high - low <= 2.0**-50 * scale]
        steepest = [max(-low, high) for low, high in bounds]
        good = [s for s, x in zip(starts, steepest, strict=True) if x <= (1.0 + TOLERANCE) * min(steepest) < _INF]
        ends[side] = side * (constant or good or [64.0])[0]
        settled = settled and not (good and not constant)
    return ends[-1], ends[1], settled


@lru_cache(maxsize=1024)
def critical(formula: Formula, order: int) -> tuple[Box, ...] | None:
    """Return tiny boxes that contain the points between which ``g^(order)`` is monotone, kinks among them.

    Returns:
        The boxes from left to right, up to the ends of the formula; ``None`` if there are too many.

    >>> from normscope.operators.scalar.formula import X, apply
    >>> [round(box[0], 6) for box in critical(X * apply("sigmoid", X), 1)]
    [-2.399357, 2.399357]
    """
    if affine(formula) is not None:
        return ()
    with ctx.workprec(PRECISION):
        left, right, settled = _ends(formula)
        boxes, level = _cuts(left, right, formula.smooth)[::-1], math.nan
        found: list[Box] = []
        for _ in range(_MOST if settled else 0):
            if not boxes:
                return tuple(dict.fromkeys(found))
            low, high = boxes.pop()
            series = formula.series(ball(low, high), order + 3)
            first, second = series[order + 1], series[order + 2]
            if first.is_zero():  # constant here: one point stands for all
                if level != low:
                    found.append((low, low))
                level = high
            elif not first.contains(0):
                continue
            elif second.is_finite() and not second.contains(0):
                found.extend(_zero(formula, order + 1, low, high, bool(second > 0)))
            elif high - low <= 2.0**-50 * max(abs(low), abs(high), 2.0**-30):
                found.append((low, high))
            else:
                middle = low + (0.5 if formula.smooth else 0.4837) * (high - low)
                boxes += [(middle, high), (low, middle)]
    return None


def _zero(formula: Formula, order: int, low: float, high: float, rises: bool) -> list[Box]:
    """Return the box of the only zero that a monotone derivative may have on an interval, if it has one."""

    def at(x: float) -> arb:
        value = formula.series(arb(x), order + 1)[order]
        return value if rises else -value

    left, right = at(low), at(high)
    if left > 0 or right < 0:
        return []
    for end, x in ((left, low), (right, high)):
        if end.is_zero():
            return [(x, x)]
    while low < (middle := low + (high - low) / 2) < high:
        value = at(middle)
        if value.is_zero():
            return [(middle, middle)]
        if value.contains(0):
            near = max(low, middle - 8 * math.ulp(middle)), min(high, middle + 8 * math.ulp(middle))
            return [near] if at(near[0]) < 0 < at(near[1]) else [(low, high)]
        low, high = (low, middle) if value > 0 else (middle, high)
    return [(low, high)]


def _highest(formula: Formula, order: int, low: float, high: float, sign: int) -> float:
    """Return an upper bound of ``sign g^(order)`` on an interval by branch and bound."""
    heap: list[tuple[float, float, float]] = []
    best = -_INF

    def push(a: float, b: float) -> None:
        nonlocal best
        x, middle = ball(a, b), arb(a + (b - a) / 2)
        inside, center = (formula.series(y, _TERMS + order + 1) for y in (x, middle))
        if order:
            inside, center = inside.derivative(), center.derivative()
        best = max(best, outward(sign * center[0])[0])
        taylor = inside[_TERMS]
        for k in reversed(range(_TERMS)):
            taylor = taylor * (x - middle) + center[k]
        heapq.heappush(heap, (-min(outward(sign * taylor)[1], outward(sign * inside[0])[1]), a, b))

    for box in _cuts(low, high, formula.smooth):
        push(*box)
    for _ in range(_MOST):
        top, a, b = heapq.heappop(heap)
        middle = a + (b - a) / 2
        if -top <= best + TOLERANCE * abs(best) + 1e-12 or not a < middle < b:
            return -top
        push(a, middle)
        push(middle, b)
    return -heap[0][0]


@statement("normscope", "Proposition ACT-3", holds="formulas of one variable, real arithmetic")
@lru_cache(maxsize=4096)
def enclosure(formula: Formula, order: int, low: float = -_INF, high: float = _INF) -> tuple[float, float]:
    """Return certified bounds of a formula (order 0) or of its slope (order 1) on [low, high].

    >>> from normscope.operators.scalar.formula import X, apply
    >>> round(enclosure(X * apply("sigmoid", X), 0)[0], 6)
    -0.278465
    """
    with ctx.workprec(PRECISION):
        left, right, settled = _ends(formula)
        found = []
        if low < left and (settled or low == -_INF):
            start = min(left, high)
            found.append(_outside(formula, order, -1, -start, -low))
            low = start
        if high > right and (settled or high == _INF):
            start = max(right, low)
            found.append(_outside(formula, order, 1, start, high))
            high = start
        found += [outward(_derivative(formula, order, arb(x))) for x in (low, high)]
        if _EVERYTHING in found:
            return _EVERYTHING
        points = critical(formula, order)
        if points is None:
            found.append(_searched(formula, order, low, high))
        else:
            inside = [ball(*box) for box in points if box[0] <= high and low <= box[1]]
            found += [outward(_derivative(formula, order, x)) for x in inside]
    return min(a for a, _ in found), max(b for _, b in found)


def _outside(formula: Formula, order: int, side: int, start: float, end: float) -> tuple[float, float]:
    """Return bounds from a point where the slope has settled to one farther out, or to infinity."""
    far = beyond(formula, order, side, min(start, _FARTHEST))
    slopes = beyond(formula, 1, side, min(start, _FARTHEST))
    if end == _INF or (order and far != _EVERYTHING):
        return far
    if math.isinf(slopes[1] - slopes[0]):
        return _searched(formula, order, *sorted((side * start, side * end)))
    # between its ends g leaves the straight line by no more than the slopes differ, times the distance
    room = ball(-1.0, 1.0) * (arb(slopes[1]) - arb(slopes[0])) * (arb(end) - arb(start))
    ends = [outward(_derivative(formula, 0, arb(side * x)) + room) for x in (start, end)]
    return max(far[0], min(a for a, _ in ends)), min(far[1], max(b for _, b in ends))


def _searched(formula: Formula, order: int, low: float, high: float) -> tuple[float, float]:
    return -_highest(formula, order, low, high, -1), _highest(formula, order, low, high, 1)


def slope(formula: Formula, low: float = -_INF, high: float = _INF) -> float:
    """Return the Lipschitz constant of a formula on [low, high], rounded up.

    Raises:
        InputError: if the interval is not valid.

    >>> from normscope.operators.scalar.formula import X, apply, constant
    >>> round(slope(X * apply("sigmoid", constant(1.702) * X)), 5)
    1.09984
    """
    _check(low, high)
    return max(map(abs, enclosure(formula, 1, low, high))) if continuous(formula) else _INF


def _check(low: float, high: float) -> None:
    """Raise an error if two ends are not those of an interval."""
    if not low <= high or low == _INF or high == -_INF:
        raise InputError(f"Expected an interval with low <= high and a finite point in it, got [{low}, {high}].")


@dataclass(frozen=True)
class Piece:
    """A smooth piece of a function on a closed interval."""

    low: float  #: left end, possibly ``-inf``
    high: float  #: right end, possibly ``inf``
    formula: Formula  #: the function on it
    turns: tuple[float, ...] | None = None  #: where it may have a local extremum; ``None`` if that has to be found
    bends: tuple[float, ...] | None = None  #: where its derivative may have one; ``None`` if that has to be found
    #: value and derivative in the limit at the left end, needed where the formula is not defined there
    left: tuple[float, float] | None = None
    right: tuple[float, float] | None = None  #: value and derivative in the limit at the right end
    straight: bool = False  #: the formula is ``a x + b``

    def range(self, order: int, low: float, high: float) -> tuple[float, float]:
        """Return bounds of the function (order 0) or its slope (order 1) on an interval inside the piece."""
        points = self.bends if order else self.turns
        if points is None:
            return enclosure(self.formula, order, low, high)
        found = [self.at(order, x) for x in (low, high, *(p for p in points if low < p < high))]
        return min(a for a, _ in found), max(b for _, b in found)

    def at(self, order: int, x: float) -> tuple[float, float]:
        """Return bounds of the function (order 0) or its slope (order 1) at a point, the limit at an end."""
        if order and self.straight:
            x = 0.0
        for end, limit in ((self.low, self.left), (self.high, self.right)):
            if x == end and limit is not None and not (order and self.straight):
                return limit[order], limit[order]
        with ctx.workprec(PRECISION):
            return outward(_derivative(self.formula, order, arb(x)))

    @cached_property
    def steep_points(self) -> tuple[tuple[float, float, float], ...] | None:
        """Return where the slope may have an extremum, with the least and the largest slope there, if they are few."""
        if self.bends is not None:
            return tuple((p, *self.at(1, p)) for p in self.bends)
        boxes = critical(self.formula, 1)
        if boxes is None:
            return None
        with ctx.workprec(PRECISION):
            found = [(box, outward(_derivative(self.formula, 1, ball(*box)))) for box in boxes]
        points = all(b - a <= 1e-13 * (1 + abs(a)) or high - low < 2.0**-60 for (a, b), (low, high) in found)
        return tuple((box[0], *slopes) for box, slopes in found) if points else None


def line(low: float, high: float, formula: Formula) -> Piece:
    """Return a piece ``a x + b``.

    >>> from normscope.operators.scalar.formula import X
    >>> line(0.0, math.inf, X).range(0, 1.0, math.inf)
    (1.0, inf)
    """
    coefficients = affine(formula)
    assert coefficients is not None, formula
    slope, offset = coefficients
    far = [float(offset) if slope == 0 else math.copysign(_INF, side * slope) for side in (-1, 1)]
    left, right = ((x, math.nan) if math.isinf(end) else None for x, end in zip(far, (low, high), strict=True))
    return Piece(low, high, formula, (), (), left, right, straight=True)


@dataclass(frozen=True)
class Curve:
    """A scalar function of adjacent pieces; bounds across a jump, and where it is not defined, are infinite."""

    pieces: tuple[Piece, ...]  #: the pieces from left to right; outside them the function is not defined
    #: where it is discontinuous, with whether the value there belongs to the left piece
    jumps: tuple[tuple[float, bool], ...] = field(default=())
    least: float = -_INF  #: a lower bound of the function known exactly
    most: float = _INF  #: an upper bound of the function known exactly
    steepest: float = _INF  #: an upper bound of ``|g'|`` known exactly

    def slope(self, low: float = -_INF, high: float = _INF) -> float:
        """Return the certified supremum of ``|g'|`` on [low, high], the Lipschitz constant there."""
        return max(map(abs, self.slopes(low, high)))

    def slopes(self, low: float = -_INF, high: float = _INF) -> tuple[float, float]:
        """Return certified bounds of ``g'`` on [low, high] from below and above."""
        _check(low, high)
        if not self._defined(low, high):
            return _EVERYTHING
        for where, left in self.jumps:
            if low == where == high or (low <= where < high if left else low < where <= high):
                return _EVERYTHING
        found = [piece.range(1, a, b) for piece, a, b in self._parts(low, high)]
        least, most = min(a for a, _ in found), max(b for _, b in found)
        return max(min(least, self.steepest), -self.steepest), min(most, self.steepest)

    def image(self, low: float = -_INF, high: float = _INF) -> tuple[float, float]:
        """Return a certified enclosure ``(lo, hi)`` of the values on [low, high]."""
        _check(low, high)
        if not self._defined(low, high):
            return _EVERYTHING
        found = [piece.range(0, a, b) for piece, a, b in self._parts(low, high)]
        # a computed infinity may stand for a finite number beyond the float range
        smallest = min(sys.float_info.max, *(a for a, _ in found))
        largest = max(-sys.float_info.max, *(b for _, b in found))
        return max(smallest, self.least), min(largest, self.most)

    def _defined(self, low: float, high: float) -> bool:
        return self.pieces[0].low <= low and high <= self.pieces[-1].high

    def _parts(self, low: float, high: float) -> list[tuple[Piece, float, float]]:
        """Return the pieces that meet [low, high] in more than one point (in one, if the interval is one point)."""
        meets = [(p, max(low, p.low), min(high, p.high)) for p in self.pieces]
        return [(p, a, b) for p, a, b in meets if a < b or (a == b and low == high)]
