"""Interval arithmetic with outward rounding on arrays, and with it a function's first two derivatives on intervals.

A *jet* holds enclosures of ``g``, ``g'`` and ``g''`` on many intervals at once. Every operation moves its ends outward
by ``2^-46`` of their size, more than the few units in the last place that a product or an elementary function loses.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
_ROOM = 2.0**-46
#: Added to every end that rounding or underflow may have moved.
_FLOOR = 1e-300


@dataclass(frozen=True, eq=False)
class Interval:
    """Intervals ``[low, high]``, one for each entry of two arrays.

    >>> bool((Interval.of(1.0, 2.0) * Interval.of(-1.0, 3.0)).high[0] >= 6.0)
    True
    """

    low: Array
    high: Array

    @classmethod
    def of(cls, low: Any, high: Any) -> Interval:
        """Return the intervals between exact ends."""
        return cls(np.atleast_1d(np.asarray(low, dtype=float)), np.atleast_1d(np.asarray(high, dtype=float)))

    def __add__(self, other: Interval) -> Interval:
        return outward(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        return outward(self.low - other.high, self.high - other.low)

    def __mul__(self, other: Interval) -> Interval:
        """Return the products; zero times infinity is anything."""
        corners = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return outward(np.minimum.reduce(corners), np.maximum.reduce(corners))

    def __neg__(self) -> Interval:
        """Return the negatives, exactly."""
        return Interval(-self.high, -self.low)

    def scaled(self, factor: float) -> Interval:
        """Return a multiple."""
        return self * Interval.of(factor, factor)

    @property
    def largest(self) -> Array:
        """Return the largest absolute value of each."""
        return np.asarray(np.maximum(np.abs(self.low), np.abs(self.high)))

    @property
    def smallest(self) -> Array:
        """Return the least absolute value of each."""
        return np.asarray(np.maximum(np.maximum(self.low, -self.high), 0.0))

    def choose(self, where: npt.NDArray[np.bool_], other: Interval) -> Interval:
        """Return these where a condition holds, the other ones elsewhere."""
        return Interval(np.where(where, self.low, other.low), np.where(where, self.high, other.high))

    def hull(self, other: Interval) -> Interval:
        """Return the smallest intervals that hold both."""
        return Interval(np.minimum(self.low, other.low), np.maximum(self.high, other.high))


def outward(low: Array, high: Array) -> Interval:
    """Return computed ends moved outward; NaN means unknown, and infinity may stand for a large number.

    >>> bool(outward(np.array([1.0]), np.array([1.0])).low[0] < 1.0)
    True
    """
    low = np.where(np.isnan(low), -np.inf, np.minimum(low, sys.float_info.max))
    high = np.where(np.isnan(high), np.inf, np.maximum(high, -sys.float_info.max))
    return Interval(
        np.where(np.isinf(low), low, low - _ROOM * np.abs(low) - _FLOOR),
        np.where(np.isinf(high), high, high + _ROOM * np.abs(high) + _FLOOR),
    )


#: Enclosures of a function and its first two derivatives on intervals.
Derivatives = tuple[Interval, Interval, Interval]
#: The image of intervals under a monotone function.
Image = Callable[[Callable[[Array], Any], Interval], Interval]


def _rising(function: Callable[[Array], Any], u: Interval) -> Interval:
    return outward(function(u.low), function(u.high))


def _falling(function: Callable[[Array], Any], size: Interval) -> Interval:
    return outward(function(size.high), function(size.low))


def _even(function: Callable[[Array], Any], u: Interval) -> Interval:
    """Return the image under an even function that decreases away from zero."""
    return _falling(function, Interval(u.smallest, u.largest))


def _everything(like: Interval) -> Interval:
    return Interval(np.full_like(like.low, -np.inf), np.full_like(like.low, np.inf))


def _exp(u: Interval) -> Derivatives:
    found = _rising(np.exp, u)
    return found, found, found


def _sigmoid(u: Interval) -> Derivatives:
    from scipy.special import expit  # slow to load, and most networks never get here

    slope = _even(lambda x: expit(x) * expit(-x), u)
    return _rising(expit, u), slope, slope * _rising(lambda x: np.tanh(x / 2), u).scaled(-1.0)


def _softplus(u: Interval) -> Derivatives:
    value, slope, _ = _sigmoid(u)
    return _rising(lambda x: np.logaddexp(0.0, x), u), value, slope


def _tanh(u: Interval) -> Derivatives:
    from scipy.special import expit

    value = _rising(np.tanh, u)
    slope = _even(lambda x: 4.0 * expit(2.0 * x) * expit(-2.0 * x), u)
    return value, slope, (value * slope).scaled(-2.0)


def _erf(u: Interval) -> Derivatives:
    from scipy.special import erf

    # x^2 is rounded: beyond 27 its exponential is below every float, before that the error is at most 800 units
    def bell(x: Array) -> Array:
        return np.asarray(2.0 / math.sqrt(math.pi) * np.exp(-np.minimum(x * x, 800.0)))

    slope = _even(bell, u)
    slope = outward(slope.low * (1.0 - 2.0**-40), slope.high * (1.0 + 2.0**-40))
    return _rising(erf, u), slope, (u * slope).scaled(-2.0)


def _atan(u: Interval) -> Derivatives:
    slope = _even(lambda x: 1.0 / (1.0 + x * x), u)
    return _rising(np.arctan, u), slope, (u * slope * slope).scaled(-2.0)


def _wave(function: Callable[[Array], Any], first: float, u: Interval) -> Interval:
    """Return the image under a sine that has a maximum at ``first``, one everywhere if the interval is long."""
    a, b = function(u.low), function(u.high)
    low, high = np.minimum(a, b), np.maximum(a, b)
    start, stop = (u.low - first) / math.pi, (u.high - first) / math.pi
    room = 1e-9 * (1.0 + np.abs(start) + np.abs(stop))  # where rounding may hide an extremum, one is assumed
    unknown = ~(u.largest < 1e6)
    top = unknown | (np.floor((stop + room) / 2) >= np.ceil((start - room) / 2))
    bottom = unknown | (np.floor((stop + room - 1) / 2) >= np.ceil((start - room - 1) / 2))
    found = outward(np.where(bottom, -1.0, low), np.where(top, 1.0, high))
    return Interval(np.maximum(found.low, -1.0), np.minimum(found.high, 1.0))


def _sin(u: Interval) -> Derivatives:
    value = _wave(np.sin, math.pi / 2, u)
    return value, _wave(np.cos, 0.0, u), value.scaled(-1.0)


def _cos(u: Interval) -> Derivatives:
    value = _wave(np.cos, 0.0, u)
    return value, _wave(np.sin, math.pi / 2, u).scaled(-1.0), value.scaled(-1.0)


def _relu(u: Interval) -> Derivatives:
    above, below = u.low >= 0, u.high <= 0
    zero, one = Interval.of(0.0, 0.0), Interval.of(1.0, 1.0)
    value = Interval(np.maximum(u.low, 0.0), np.maximum(u.high, 0.0))
    slope = one.choose(above, zero.choose(below, Interval.of(0.0, 1.0)))
    return value, slope, zero.choose(above | below, _everything(u))


#: Functions of positive arguments: value, slope and second derivative, and whether each rises or falls.
_POSITIVE: dict[str, tuple[tuple[Image, Callable[[Array], Any]], ...]] = {
    "log": ((_rising, np.log), (_falling, lambda x: 1.0 / x), (_rising, lambda x: -1.0 / (x * x))),
    "sqrt": (
        (_rising, np.sqrt),
        (_falling, lambda x: 0.5 / np.sqrt(x)),
        (_rising, lambda x: -0.25 / (x * np.sqrt(x))),
    ),
    "rsqrt": (
        (_falling, lambda x: 1.0 / np.sqrt(x)),
        (_rising, lambda x: -0.5 / (x * np.sqrt(x))),
        (_falling, lambda x: 0.75 / (x * x * np.sqrt(x))),
    ),
    "inverse": (
        (_falling, lambda x: 1.0 / x),
        (_rising, lambda x: -1.0 / (x * x)),
        (_falling, lambda x: 2.0 / (x * x * x)),
    ),
}


def _positive(name: str, u: Interval) -> Derivatives:
    """Return a function of positive arguments; nothing is known where an argument may not be positive."""
    inside, line = u.low > 0, _everything(u)
    ones = Interval(np.where(inside, u.low, 1.0), np.where(inside, u.high, 1.0))
    value, slope, bend = (image(function, ones).choose(inside, line) for image, function in _POSITIVE[name])
    return value, slope, bend


def _inverse(u: Interval) -> Derivatives:
    value, slope, bend = _positive("inverse", Interval(u.smallest, u.largest))
    negative = u.high < 0
    return value.scaled(-1.0).choose(negative, value), slope, bend.scaled(-1.0).choose(negative, bend)


#: Functions of one argument with their derivatives, on intervals.
FUNCTIONS: dict[str, Callable[[Interval], Derivatives]] = {
    "exp": _exp,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "tanh": _tanh,
    "erf": _erf,
    "atan": _atan,
    "sin": _sin,
    "cos": _cos,
    "relu": _relu,
    **{name: functools.partial(_positive, name) for name in ("log", "sqrt", "rsqrt")},
    "inverse": _inverse,
}


def power(u: Interval, n: int) -> Derivatives:
    """Return ``u^n`` with its derivatives, for an integer ``n >= 2``."""

    def raised(k: int) -> Interval:
        if k == 0:
            return Interval.of(np.ones_like(u.low), np.ones_like(u.low))
        if k % 2:
            return _rising(lambda x: x**k, u)
        return _falling(lambda x: -(x**k), Interval(u.smallest, u.largest)).scaled(-1.0)

    return raised(n), raised(n - 1).scaled(float(n)), raised(n - 2).scaled(float(n * (n - 1)))


def chain(outer: Derivatives, inner: Derivatives) -> Derivatives:
    """Return the derivatives of a composition: ``f'(u) u'`` and ``f''(u) u'^2 + f'(u) u''``."""
    value, slope, bend = outer
    return value, slope * inner[1], bend * inner[1] * inner[1] + slope * inner[2]


def product(f: Derivatives, g: Derivatives) -> Derivatives:
    """Return the derivatives of a product."""
    mixed = f[1] * g[1]
    return f[0] * g[0], f[1] * g[0] + f[0] * g[1], f[2] * g[0] + mixed + mixed + f[0] * g[2]
