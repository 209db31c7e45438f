"""Nonlinear operations: each turns bounds on its inputs into a Lipschitz constant and a range of its output."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from normscope.core.rounding import product_up
from normscope.core.value import log_of, log_sum
from normscope.operators.expression import Expr
from normscope.operators.scalar.curve import Curve

INF = math.inf


@dataclass(frozen=True)
class Lip:
    """A Lipschitz constant with respect to each block of the network input, as natural logarithms.

    ``||dz|| <= sum_i exp(log_i) ||dx_i||`` over the blocks x_i of the input.
    """

    certified: tuple[float, ...]  #: deterministic upper bounds
    probable: tuple[float, ...]  #: upper bounds that may use probabilistic spectral norms; never larger
    delta: float = 0.0  #: the probability that any of those fails

    @classmethod
    def constant(cls, log: float, blocks: int) -> Lip:
        """Return the same bound for every block."""
        return cls((log,) * blocks, (log,) * blocks)

    def __add__(self, other: Lip) -> Lip:
        return self._join((other,), lambda logs: log_sum(logs, INF))

    def scaled(self, log_certified: float, log_probable: float | None = None, delta: float = 0.0) -> Lip:
        """Return the constant after a map of a given norm."""
        probable = log_certified if log_probable is None else log_probable
        return Lip(
            tuple(_times(log, log_certified) for log in self.certified),
            tuple(_times(log, probable) for log in self.probable),
            min(1.0, self.delta + delta),
        )

    def times(self, factor: float) -> Lip:
        """Return the constant times a factor, which may be zero or infinite."""
        return self.scaled(INF if factor == INF else log_of(factor))

    def _join(self, others: tuple[Lip, ...], combine: Callable[[list[float]], float]) -> Lip:
        items = (self, *others)
        return Lip(
            tuple(combine(list(logs)) for logs in zip(*(i.certified for i in items), strict=True)),
            tuple(combine(list(logs)) for logs in zip(*(i.probable for i in items), strict=True)),
            min(1.0, sum(i.delta for i in items)),
        )

    def root_sum_square(self, *others: Lip) -> Lip:
        """Return the constant of a concatenation."""
        return self._join(others, _root_sum_square)

    def minimum(self, other: Lip) -> Lip:
        """Return the better of two bounds on the same function, block by block."""
        return self._join((other,), min)

    def total(self) -> tuple[float, float]:
        """Return (certified, probable) logs of the constant with respect to the whole input."""
        return _root_sum_square(self.certified), _root_sum_square(self.probable)


def _root_sum_square(logs: Iterable[float]) -> float:
    """Return the logarithm of the root of a sum of squares, rounded up."""
    return log_sum((2 * log for log in logs), INF) / 2


def _times(a: float, b: float) -> float:
    """Multiply by a factor ``exp(b)`` in the log domain, rounded up; "no bound" times zero is zero.

    A zero constant is exact (nothing depends on the input), so it wins over an infinite factor. The logarithm of a
    factor errs by a few units of one and of its own last place.

    >>> _times(1e6, 1.0) > 1e6 + 1.0, _times(3.0, 0.0)
    (True, 3.0)
    """
    if -INF in (a, b):
        return -INF
    if b == 0.0 or math.isinf(a + b):
        return a + b
    return math.nextafter(a + (b + 2.0**-50 * (1.0 + abs(b))), INF)


@dataclass(frozen=True)
class Range:
    """Where a tensor lies: bounds on entries, on the norm of each slice along the last axis, and on the whole."""

    low: float = -INF  #: least entry
    high: float = INF  #: largest entry
    row: float = INF  #: largest l2 norm of a slice along the last axis
    norm: float = INF  #: l2 norm of the whole tensor

    @property
    def sup(self) -> float:
        """Return the largest absolute entry."""
        return max(abs(self.low), abs(self.high))

    def tightened(self, shape: tuple[int, ...]) -> Range:
        """Return the range with every bound that follows from the others."""
        last = shape[-1] if shape else 1
        rows = math.prod(shape[:-1]) if shape else 1
        room = 1 + 2.0**-50  # the roots and products are rounded
        norm = min(
            self.norm, product(self.row, math.sqrt(rows) * room), product(self.sup, math.sqrt(rows * last) * room)
        )
        row = min(self.row, norm, product(self.sup, math.sqrt(last) * room))
        return Range(max(self.low, -row), min(self.high, row), row, norm)

    def meet(self, other: Range) -> Range:
        """Return what holds if both hold."""
        return Range(
            max(self.low, other.low), min(self.high, other.high), min(self.row, other.row), min(self.norm, other.norm)
        )


def product(a: float, b: float) -> float:
    """Multiply bounds, zero times infinity being zero (an empty or constant-zero tensor)."""
    return 0.0 if 0.0 in (a, b) else a * b


def product_above(a: float, b: float) -> float:
    """Multiply bounds that are not negative, rounded up, zero times infinity being zero.

    >>> product_above(0.1, 0.1) > 0.01, product_above(2.0, 3.0), product_above(0.0, INF)
    (True, 6.0, 0.0)
    """
    return 0.0 if 0.0 in (a, b) else product_up(a, b)


def outward(low: float, high: float) -> tuple[float, float]:
    """Return an interval widened by more than one product or quotient can lose in float64.

    >>> outward(-1.0, 1.0)[0] < -1.0
    True
    """
    room = 2.0**-50
    return (
        low if math.isinf(low) else low - room * abs(low),
        high if math.isinf(high) else high + room * abs(high),
    )


class Context(Protocol):
    """What a nonlinear rule may request from the analysis: bounds on its inputs, on the current domain."""

    blocks: int

    def lipschitz(self, expr: Expr) -> Lip:
        """Return the Lipschitz constant of an expression with respect to the network input."""

    def range(self, expr: Expr) -> Range:
        """Return the range of an expression."""

    def centered_row(self, expr: Expr) -> float:
        """Return the largest row norm of an expression, a shift common to all rows removed."""

    def input_range(self, block: int) -> Range:
        """Return the range the domain gives a block of the input."""

    def floor(self, name: str) -> Tensor | float:
        """Return the least standard deviation the domain allows before a normalizer (per group or channel)."""


class Nonlinear(ABC):
    """A nonlinear operation on expressions."""

    inputs: tuple[Expr, ...]  #: what it acts on
    name: str = ""  #: its graph node
    owner: str = ""  #: its module path
    op: str = ""  #: its operation name

    @abstractmethod
    def constant(self, context: Context) -> Lip:
        """Return the Lipschitz constant with respect to the network input, on the context's domain."""

    def image(self, context: Context) -> Range:
        """Return the range of the output on the context's domain."""
        return Range()

    @property
    def sector(self) -> tuple[float, float] | None:
        """Return the least and the largest slope of an entrywise function on all inputs, ``None`` for all others."""
        return None


class Stretch(Nonlinear):
    """An operation on one tensor whose constant is a number: ``||dz|| <= factor ||dx||``."""

    def __init__(self, x: Expr, factor: float) -> None:
        self.inputs, self.factor = (x,), factor

    def constant(self, context: Context) -> Lip:
        """Return the factor times the constant of the input."""
        return context.lipschitz(self.inputs[0]).times(self.factor)


class Opaque(Nonlinear):
    """An operation no rule understands, or one that is not Lipschitz: every bound through it is infinite."""

    def __init__(self, inputs: tuple[Expr, ...], reason: str, known: bool = False) -> None:
        self.inputs, self.reason, self.known = inputs, reason, known

    def constant(self, context: Context) -> Lip:
        """Return infinity."""
        return Lip.constant(INF, context.blocks)


class Input(Nonlinear):
    """A block of the network input."""

    def __init__(self, block: int, kind: str) -> None:
        self.inputs, self.block, self.kind = (), block, kind

    def constant(self, context: Context) -> Lip:
        """Return the constant one for its own block, zero for all others."""
        logs = tuple(0.0 if i == self.block else -INF for i in range(context.blocks))
        return Lip(logs, logs)

    def image(self, context: Context) -> Range:
        """Return the range the domain gives its block."""
        return context.input_range(self.block)


class Pointwise(Nonlinear):
    """An entrywise function: ``||g(a) - g(b)|| <= sup|g'| ||a - b||`` over the interval the entries lie in.

    Attributes:
        slope: ``slope(low, high)``, a certified bound on the slope on an interval.
        enclosure: ``enclosure(low, high)``, a certified enclosure of the values on an interval.
        curve: the pieces of the function, where they are known.
        apply: the function itself on tensors, where it is known.
        inexact: how far torch's derivative may be off, relative to the slope.
    """

    def __init__(
        self,
        x: Expr,
        slope: Callable[[float, float], float],
        enclosure: Callable[[float, float], tuple[float, float]],
        *,
        needs_range: bool,
        vanishing: bool = False,
        curve: Curve | None = None,
        apply: Callable[[Tensor], Tensor] | None = None,
        inexact: float = 0.0,
    ) -> None:
        self.inputs, self.slope, self.enclosure = (x,), slope, enclosure
        self.needs_range, self.vanishing = needs_range, vanishing
        self.curve, self.apply, self.inexact = curve, apply, inexact

    @functools.cached_property
    def sector(self) -> tuple[float, float] | None:
        """Return the least and the largest slope on the whole line."""
        steepest = self.slope(-INF, INF)
        if steepest == INF:
            return None
        least = -INF if self.curve is None else self.curve.slopes()[0]
        return max(-steepest, least - self.inexact * abs(least) if least > -INF else least), steepest

    def _slope(self, context: Context) -> float:
        """Return the slope on the interval the entries lie in, or on the whole line where that is finite."""
        if not self.needs_range:
            return self.slope(-INF, INF)
        inside = context.range(self.inputs[0])
        return self.slope(inside.low, inside.high)

    def constant(self, context: Context) -> Lip:
        """Return slope times the constant of the input."""
        return context.lipschitz(self.inputs[0]).times(self._slope(context))

    def image(self, context: Context) -> Range:
        """Return the image of the interval the entries lie in."""
        inside = context.range(self.inputs[0])
        low, high = self.enclosure(inside.low, inside.high)
        if not self.vanishing:
            return Range(low, high)
        # g(0) = 0, so |g(t)| <= |t| sup|g'| over the interval from 0 to t
        slope = self.slope(min(inside.low, 0.0), max(inside.high, 0.0))
        return Range(low, high, product_above(slope, inside.row), product_above(slope, inside.norm))
