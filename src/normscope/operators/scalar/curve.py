"""Scalar functions made of smooth pieces, with certified slopes and images on intervals.

A piece knows its value, its derivative, where the derivative has its extrema (zeros of g'') and where the function has
its own (zeros of g'). Between these points both are monotone, so suprema over an interval are taken at finitely many
points. Every evaluation comes with a bound of its rounding error.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from normscope.core.errors import InputError
from normscope.core.rounding import UNIT

#: A computed number and a bound of its absolute error.
Enclosed = tuple[float, float]
#: A function with error bound.
Evaluation = Callable[[float], Enclosed]
#: Points of interest that meet an interval.
Points = Callable[[float, float], tuple[float, ...]]


def nowhere(low: float, high: float) -> tuple[float, ...]:
    """Return no point: the function is monotone."""
    return ()


def points(*where: float) -> Points:
    """Return those of fixed points that lie in an interval, or so near that rounding may have moved them out.

    >>> points(1.0, 3.0)(0.0, 2.0)
    (1.0,)
    """

    def inside(low: float, high: float) -> tuple[float, ...]:
        return tuple(p for p in where if low - _reach(p) <= p <= high + _reach(p))

    return inside


def periodic(first: float, period: float) -> Points:
    """Return up to three of the points ``first + k period`` that meet an interval (more repeat the same values).

    Beyond ``1e6`` the points themselves are inexact, and three of them are returned whatever the interval.

    >>> periodic(0.0, 2.0)(0.5, 5.0)
    (2.0, 4.0)
    """

    def inside(low: float, high: float) -> tuple[float, ...]:
        if math.isinf(low) or math.isinf(high) or high - low >= 3 * period or max(abs(low), abs(high)) > 1e6:
            return tuple(first + k * period for k in range(3))
        start = math.floor((low - first) / period) - 1
        near = (first + (start + k) * period for k in range(6))
        return tuple(p for p in near if low - _reach(p) <= p <= high + _reach(p))[:3]

    return inside


def _reach(p: float) -> float:
    """Return how far rounding may have moved a point found by bisection or by ``first + k period``."""
    return 1e-12 * (1.0 + abs(p))


def bisect(function: Callable[[float], float], low: float, high: float) -> float:
    """Return a zero of a continuous function with a sign change on [low, high], to the last bit of the bracket.

    Raises:
        InputError: if the signs at the ends agree.

    >>> bisect(lambda x: x * x - 2.0, 0.0, 2.0) == math.sqrt(2.0)
    True
    """
    positive = function(high) > 0
    if (function(low) > 0) == positive:
        raise InputError(f"the function must change sign between {low} and {high}")
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return high
        if (function(middle) > 0) == positive:
            high = middle
        else:
            low = middle


@dataclass(frozen=True)
class Piece:
    """A smooth piece of a function on a closed interval.

    Attributes:
        low: left end, possibly ``-inf``.
        high: right end, possibly ``inf``.
        value: the function, for finite arguments.
        slope: its derivative, for finite arguments.
        bends: where the derivative may have a local extremum.
        turns: where the function may have a local extremum.
        left: value and derivative in the limit ``-inf``, used where the piece reaches it.
        right: value and derivative in the limit ``inf``.
    """

    low: float
    high: float
    value: Evaluation
    slope: Evaluation
    bends: Points = nowhere
    turns: Points = nowhere
    left: tuple[float, float] = (math.nan, math.nan)
    right: tuple[float, float] = (math.nan, math.nan)

    def at(self, x: float) -> tuple[Enclosed, Enclosed]:
        """Return value and derivative at a point, with their errors; limits at infinity."""
        if math.isinf(x):
            value, slope = self.left if x < 0 else self.right
            return (value, 0.0), (slope, 0.0)
        return self.value(x), self.slope(x)


def affine(low: float, high: float, slope: float, offset: float = 0.0, error: float = 0.0) -> Piece:
    """Return the piece ``slope x + offset``; exact slopes 0, 1 and -1 without offset carry no error.

    Args:
        low: left end.
        high: right end.
        slope: the derivative.
        offset: the value at zero.
        error: absolute error of ``slope`` itself.
    """
    exact = slope in (0.0, 1.0, -1.0) and (offset == 0.0 or slope == 0.0) and error == 0.0

    def value(x: float) -> Enclosed:
        return slope * x + offset, 0.0 if exact else 4.0 * UNIT * (abs(slope * x) + abs(offset)) + abs(x) * error

    far = slope * math.inf if slope else offset
    return Piece(low, high, value, lambda x: (slope, error), left=(-far if slope else far, slope), right=(far, slope))


@dataclass(frozen=True)
class Curve:
    """A scalar function of adjacent pieces.

    Attributes:
        pieces: the pieces from left to right; outside them the function is not defined.
        jumps: where it is discontinuous, with whether the value there belongs to the left piece.
        least: a lower bound of the function known exactly.
        most: an upper bound of the function known exactly.
        steepest: an upper bound of ``|g'|`` known exactly.
    """

    pieces: tuple[Piece, ...]
    jumps: tuple[tuple[float, bool], ...] = field(default=())
    least: float = -math.inf
    most: float = math.inf
    steepest: float = math.inf

    def slope(self, low: float = -math.inf, high: float = math.inf) -> float:
        """Return the certified supremum of ``|g'|`` on [low, high], the Lipschitz constant there.

        Args:
            low: left end, possibly ``-inf``.
            high: right end, possibly ``inf``; equal to ``low`` for the local constant at a point.

        Returns:
            The constant, rounded up; infinity across a jump and where the function is not defined.
        """
        if not self._defined(low, high):
            return math.inf
        for where, left in self.jumps:
            if low == where == high or (low <= where < high if left else low < where <= high):
                return math.inf
        largest = 0.0
        for piece, a, b in self._parts(low, high):
            for x in (a, b, *piece.bends(a, b)):
                slope, error = piece.at(x)[1]
                largest = max(largest, abs(slope) + error)
        return min(largest, self.steepest)

    def slopes(self, low: float = -math.inf, high: float = math.inf) -> tuple[float, float]:
        """Return certified bounds of ``g'`` on [low, high] from below and above.

        Args:
            low: left end, possibly ``-inf``.
            high: right end, possibly ``inf``.

        Returns:
            Both, rounded outward; infinite across a jump and where the function is not defined.
        """
        largest = self.slope(low, high)
        if math.isinf(largest):
            return -math.inf, math.inf
        found = [piece.at(x)[1] for piece, a, b in self._parts(low, high) for x in (a, b, *piece.bends(a, b))]
        least, most = min(s - e for s, e in found), max(s + e for s, e in found)
        return max(least, -largest), min(most, largest)

    def image(self, low: float = -math.inf, high: float = math.inf) -> tuple[float, float]:
        """Return a certified enclosure ``(lo, hi)`` of the values on [low, high].

        Args:
            low: left end, possibly ``-inf``.
            high: right end, possibly ``inf``.

        Returns:
            The enclosure, rounded outward; the whole line where the function is not defined.
        """
        if not self._defined(low, high):
            return -math.inf, math.inf
        smallest, largest = math.inf, -math.inf
        for piece, a, b in self._parts(low, high):
            for x in (a, b, *piece.turns(a, b)):
                value, error = piece.at(x)[0]
                smallest, largest = min(smallest, value - error), max(largest, value + error)
        # a computed infinity may stand for a finite number beyond the float range
        smallest, largest = min(smallest, sys.float_info.max), max(largest, -sys.float_info.max)
        return max(smallest, self.least), min(largest, self.most)

    def _defined(self, low: float, high: float) -> bool:
        """Return whether [low, high] is an interval inside the domain.

        Raises:
            InputError: if it is not an interval.
        """
        if not low <= high or low == math.inf or high == -math.inf:
            raise InputError(f"an interval needs low <= high, not both the same infinity, got [{low}, {high}]")
        return self.pieces[0].low <= low and high <= self.pieces[-1].high

    def _parts(self, low: float, high: float) -> list[tuple[Piece, float, float]]:
        """Return the pieces that meet [low, high] in more than one point (in one, if the interval is one point)."""
        meets = [(p, max(low, p.low), min(high, p.high)) for p in self.pieces]
        return [(p, a, b) for p, a, b in meets if a < b or (a == b and low == high)]
