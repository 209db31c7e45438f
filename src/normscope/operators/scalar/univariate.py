"""The Lipschitz constant and the image of a formula on an interval or on the whole line, certified.

``sup |g'|`` is enclosed by bisection: on intervals ``g'`` lies in its interval extension and in the mean value form
``g'(c) + g''(X)(X - c)``; intervals that cannot hold the supremum are dropped. Far out the expansion of
:mod:`normscope.operators.scalar.asymptotics` takes over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.operators.scalar.asymptotics import UnknownTailError, expand, supremum
from normscope.operators.scalar.formula import Formula, continuous
from normscope.operators.scalar.interval import Array, Interval

#: Relative width at which a supremum is taken, and how far bisection goes.
TOLERANCE = 1e-7
_LEVELS, _BOXES = 60, 4096
_INF = math.inf

#: Upper bounds on intervals, and a value attained in each.
Bounds = Callable[[Interval], tuple[Array, Array]]


def _within(formula: Formula, order: int, boxes: Interval) -> tuple[Interval, Interval]:
    """Return enclosures of ``g`` (order 0) or ``g'`` (order 1) on intervals and at their middles."""
    middle = (boxes.low + boxes.high) / 2
    jets, center = formula.jets(boxes), formula.jets(Interval(middle, middle))
    shift = boxes - Interval(middle, middle)
    mean = center[order] + jets[order + 1] * shift
    plain = jets[order]
    return Interval(np.maximum(mean.low, plain.low), np.minimum(mean.high, plain.high)), center[order]


def _steepness(formula: Formula) -> Bounds:
    """Return bounds of ``|g'|``."""

    def bounds(boxes: Interval) -> tuple[Array, Array]:
        inside, center = _within(formula, 1, boxes)
        return inside.largest, center.smallest

    return bounds


def _height(formula: Formula, sign: int) -> Bounds:
    """Return bounds of ``g`` or ``-g``."""

    def bounds(boxes: Interval) -> tuple[Array, Array]:
        inside, center = _within(formula, 0, boxes)
        return (inside.high, center.low) if sign > 0 else (-inside.low, -center.high)

    return bounds


def _cuts(low: float, high: float) -> Interval:
    """Return first intervals: cut at zero and at powers of two on both sides."""
    sides = [math.ldexp(1.0, k) for k in range(-24, 42)]
    inner = [p for p in (*(-s for s in sides), 0.0, *sides) if low < p < high]
    ends = np.array([low, *sorted(inner), high])
    return Interval(ends[:-1], ends[1:])


def _largest(bounds: Bounds, low: float, high: float) -> float:
    """Return an upper bound of a supremum over [low, high], close to it where bisection gets there."""
    boxes, best, done = _cuts(low, high), -_INF, -_INF
    for _ in range(_LEVELS):
        above, attained = bounds(boxes)
        best = max(best, float(attained.max()))
        level = best + TOLERANCE * abs(best) + 1e-12
        keep = above > level
        done = max(done, float(above[~keep].max(initial=-_INF)))
        if not keep.any():
            return done
        boxes, above = Interval(boxes.low[keep], boxes.high[keep]), above[keep]
        middle = (boxes.low + boxes.high) / 2
        stuck = (middle <= boxes.low) | (middle >= boxes.high)
        if bool(stuck.all()) or 2 * len(middle) > _BOXES:
            break
        boxes = Interval(np.concatenate((boxes.low, middle)), np.concatenate((middle, boxes.high)))
    return max(done, float(above.max()))


def _side(formula: Formula, side: int, start: float) -> float:
    """Return an upper bound of ``|g'|`` beyond a start, infinite where nothing is known."""
    try:
        return supremum(expand(formula, side, start).steep(), start)
    except (UnknownTailError, OverflowError):
        return _INF


def _starts(nearest: float) -> list[float]:
    """Return where a tail may begin, beyond a point."""
    return [math.ldexp(1.0, k) for k in range(-8, 41) if math.ldexp(1.0, k) > nearest]


_PROBES = np.array(
    [s * f for s in _starts(0.0) for f in (-1.75, -1.5, -1.25, -1.0, 1.0, 1.25, 1.5, 1.75)] + [0.0], dtype=float
)


def attained(formula: Formula, low: float = -_INF, high: float = _INF) -> float:
    """Return the largest ``|g'|`` at fixed points of an interval, rounded down: no bound of the slope is smaller.

    >>> from normscope.operators.scalar.formula import X, raised
    >>> 5.0 < attained(raised(X, 2), -3.0, 1.0) <= 6.0
    True
    """
    probes = _PROBES[(low <= _PROBES) & (high >= _PROBES)]
    with np.errstate(all="ignore"):
        return float(formula.jets(Interval(probes, probes))[1].smallest.max(initial=0.0))


@statement("normscope", "Proposition ACT-3", holds="continuous formulas of one variable, real arithmetic")
@lru_cache(maxsize=4096)
def slope(formula: Formula, low: float = -_INF, high: float = _INF) -> float:
    """Return a certified upper bound of ``sup |g'|`` on [low, high], within ``1e-7`` of it where it is smooth.

    Args:
        formula: the function ``g``.
        low: left end, possibly ``-inf``.
        high: right end, possibly ``inf``.

    Returns:
        The Lipschitz constant, rounded up; infinity where it is unbounded, not proved to be bounded, or where ``g`` has
        a choice that is not proved to be continuous.

    Raises:
        InputError: if the interval is not one.

    >>> from normscope.operators.scalar.formula import X, apply, constant, mul
    >>> round(slope(mul(X, apply("sigmoid", mul(constant(1.702), X)))), 5)
    1.09984
    """
    if not low <= high or low == _INF or high == -_INF:
        raise InputError(f"an interval needs low <= high, not both the same infinity, got [{low}, {high}]")
    if not continuous(formula):
        return _INF
    least = attained(formula, low, high)
    with np.errstate(all="ignore"):
        bounds = _steepness(formula)
        ends, found = {-1: low, 1: high}, 0.0
        for side, end in ends.items():
            if math.isinf(end):
                start, beyond = _joint(formula, side, max(abs(x) for x in (low, high, 0.0) if math.isfinite(x)), least)
                ends[side], found = side * start, max(found, beyond)
        return found if found == _INF else max(found, _largest(bounds, ends[-1], ends[1]))


def _joint(formula: Formula, side: int, nearest: float, least: float) -> tuple[float, float]:
    """Return where a tail begins and its bound: the first start that adds nothing to a known slope, or the best."""
    best = (1.0, _INF)
    for start in _starts(nearest):
        beyond = _side(formula, side, start)
        if beyond < best[1]:
            best = (start, beyond)
        if beyond <= least * (1.0 + TOLERANCE):
            break
    return best


@statement("normscope", "Proposition ACT-3", holds="formulas of one variable, real arithmetic")
@lru_cache(maxsize=4096)
def image(formula: Formula, low: float = -_INF, high: float = _INF) -> tuple[float, float]:
    """Return a certified enclosure of the values of a formula on [low, high].

    Args:
        formula: the function.
        low: left end, possibly ``-inf``.
        high: right end, possibly ``inf``.

    Returns:
        The enclosure, rounded outward; the whole line where nothing is known.

    >>> from normscope.operators.scalar.formula import X, apply, mul
    >>> round(image(mul(X, apply("sigmoid", X)))[0], 6)
    -0.278465
    """
    with np.errstate(all="ignore"):
        ends, least, most = {-1: low, 1: high}, _INF, -_INF
        for side, end in ends.items():
            if not math.isinf(end):
                continue
            nearest = max((abs(x) for x in (low, high) if math.isfinite(x)), default=0.0)
            start = next((s for s in _starts(max(nearest, 16.0))), 0.0)
            try:
                tail = expand(formula, side, start)
                reach = supremum(tail.value, start)
                first = tail.least(start) * start**tail.degree if tail.degree > 0 else 0.0
            except (UnknownTailError, OverflowError):
                return -_INF, _INF
            if tail.degree > 0:
                far = (first, _INF) if tail.polynomial[-1] > 0 else (-_INF, -first)
            else:
                limit = float(tail.polynomial[0]) if tail.polynomial else 0.0
                room = (reach + 2.0**-50 * abs(limit)) * (1.0 + 2.0**-50)
                far = (limit - room, limit + room)
            least, most = min(least, far[0]), max(most, far[1])
            ends[side] = side * start
        least = min(least, -_largest(_height(formula, -1), ends[-1], ends[1])) if least > -_INF else least
        most = max(most, _largest(_height(formula, 1), ends[-1], ends[1])) if most < _INF else most
    return least, most
