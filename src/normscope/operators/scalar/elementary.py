"""Elementary functions as curves: exponentials, logarithms, circular and hyperbolic functions, the error function."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from normscope.core.rounding import up
from normscope.operators.scalar.curve import Curve, Enclosed, Evaluation, Piece, Points, nowhere, periodic, points
from normscope.operators.scalar.smooth import FLOOR, near

_INF = math.inf


@dataclass(frozen=True)
class _Known:
    """What is known of a function besides its formulas.

    Attributes:
        ends: value and derivative in the limits ``-inf`` and ``inf``.
        domain: where it is defined.
        condition: how much the relative error of the formulas grows with the argument.
        bends: where the derivative has extrema.
        turns: where the function has extrema.
        least: an exact lower bound.
        most: an exact upper bound.
        steepest: an exact upper bound of ``|g'|``.
    """

    ends: tuple[tuple[float, float], tuple[float, float]] = ((0.0, 0.0), (0.0, 0.0))
    domain: tuple[float, float] = (-_INF, _INF)
    condition: Callable[[float], float] = lambda x: 1.0
    bends: Points = nowhere
    turns: Points = nowhere
    least: float = -_INF
    most: float = _INF
    steepest: float = _INF


def _curve(value: Callable[[float], float], slope: Callable[[float], float], known: _Known) -> Curve:
    """Return the curve of one piece with these formulas for value and derivative."""

    def enclosed(function: Callable[[float], float], floor: float) -> Evaluation:
        def evaluate(x: float) -> Enclosed:
            try:
                result, error = near(function(x), known.condition(x))
            except (OverflowError, ZeroDivisionError):  # both happen where the function grows beyond every bound
                return _beyond(value, x) if function is value else (_INF, 0.0)
            return result, error + floor

        return evaluate

    # a derivative or a positive function that underflowed to zero is not zero
    floor = FLOOR if known.least == 0.0 else 0.0
    piece = Piece(*known.domain, enclosed(value, floor), enclosed(slope, FLOOR), known.bends, known.turns, *known.ends)
    return Curve((piece,), least=known.least, most=known.most, steepest=known.steepest)


def _beyond(value: Callable[[float], float], x: float) -> Enclosed:
    """Return the infinity that a function overflows to: odd functions to the sign of the argument."""
    return math.copysign(_INF, x) if value is math.sinh else _INF, 0.0


def exp() -> Curve:
    """Return the exponential, steep without bound to the right.

    >>> exp().slope(), round(exp().slope(-1.0, 0.0), 9)
    (inf, 1.0)
    """
    return _curve(math.exp, math.exp, _Known(((0.0, 0.0), (_INF, _INF)), least=0.0))


def exp2() -> Curve:
    """Return ``2^x``: ``g' = log(2) 2^x``.

    >>> round(exp2().slope(-1.0, 1.0), 9)
    1.386294361
    """
    known = _Known(((0.0, 0.0), (_INF, _INF)), least=0.0)
    return _curve(lambda x: 2.0**x, lambda x: math.log(2.0) * 2.0**x, known)


def expm1() -> Curve:
    """Return ``exp(x) - 1``.

    >>> expm1().image(-1e9, 0.0)
    (-1.0, 0.0)
    """
    return _curve(math.expm1, math.exp, _Known(((-1.0, 0.0), (_INF, _INF)), least=-1.0))


def _logarithm(value: Callable[[float], float], start: float, factor: float) -> Curve:
    """Return a logarithm that begins at ``start``, with derivative ``factor/(x - start)``."""
    return _curve(
        lambda x: -_INF if x == start else value(x),
        lambda x: factor / (x - start),
        _Known(((0.0, 0.0), (_INF, 0.0)), (start, _INF)),
    )


def log() -> Curve:
    """Return the logarithm on ``x >= 0``: ``g' = 1/x``, unbounded at zero.

    >>> log().slope(0.0, 1.0), round(log().slope(0.5, 4.0), 9)
    (inf, 2.0)
    """
    return _logarithm(math.log, 0.0, 1.0)


def log2() -> Curve:
    """Return the logarithm to base two.

    >>> log2().image(2.0, 8.0)[1] >= 3.0
    True
    """
    return _logarithm(math.log2, 0.0, 1.0 / math.log(2.0))


def log10() -> Curve:
    """Return the logarithm to base ten.

    >>> round(log10().slope(1.0, 2.0), 6)
    0.434294
    """
    return _logarithm(math.log10, 0.0, 1.0 / math.log(10.0))


def log1p() -> Curve:
    """Return ``log(1 + x)`` on ``x >= -1``.

    >>> log1p().slope(-1.0, 0.0), log1p().slope(0.0, 3.0) >= 1.0
    (inf, True)
    """
    return _logarithm(math.log1p, -1.0, 1.0)


def _wave(value: Callable[[float], float], slope: Callable[[float], float], bend: float, turn: float) -> Curve:
    """Return sine or cosine."""
    known = _Known(
        ((0.0, 1.0), (0.0, 1.0)),
        bends=periodic(bend, math.pi),
        turns=periodic(turn, math.pi),
        least=-1.0,
        most=1.0,
        steepest=1.0,
    )
    return _curve(value, slope, known)


def sin() -> Curve:
    """Return the sine.

    >>> sin().slope(), sin().image(0.0, 1.0)[0]
    (1.0, 0.0)
    """
    return _wave(math.sin, math.cos, 0.0, math.pi / 2)


def cos() -> Curve:
    """Return the cosine.

    >>> cos().image(-1.0, 1.0)[1]
    1.0
    """
    return _wave(math.cos, lambda x: -math.sin(x), math.pi / 2, 0.0)


def sinh() -> Curve:
    """Return the hyperbolic sine.

    >>> sinh().slope(), round(sinh().slope(-1.0, 1.0), 6)
    (inf, 1.543081)
    """
    return _curve(math.sinh, math.cosh, _Known(((-_INF, _INF), (_INF, _INF))))


def cosh() -> Curve:
    """Return the hyperbolic cosine, smallest at zero.

    >>> round(cosh().image(-1.0, 2.0)[0], 9)
    1.0
    """
    return _curve(math.cosh, math.sinh, _Known(((_INF, _INF), (_INF, _INF)), turns=points(0.0), least=1.0))


def asin() -> Curve:
    """Return the arc sine on [-1, 1], unbounded slope at both ends.

    >>> asin().slope(-1.0, 0.0), round(asin().slope(-0.6, 0.6), 9)
    (inf, 1.25)
    """
    return _curve(math.asin, lambda x: 1.0 / math.sqrt((1.0 - x) * (1.0 + x)), _Known(domain=(-1.0, 1.0)))


def acos() -> Curve:
    """Return the arc cosine on [-1, 1].

    >>> acos().image(-1.0, 1.0)[1] >= math.pi
    True
    """
    return _curve(math.acos, lambda x: -1.0 / math.sqrt((1.0 - x) * (1.0 + x)), _Known(domain=(-1.0, 1.0)))


def atan() -> Curve:
    """Return the arc tangent: ``g' = 1/(1 + x^2)``, steepest at 0 with 1.

    >>> atan().slope()
    1.0
    """
    half = up(math.pi / 2)

    def slope(x: float) -> float:
        return (1.0 / math.hypot(1.0, x)) ** 2

    ends = ((-half, 0.0), (half, 0.0))
    return _curve(math.atan, slope, _Known(ends, bends=points(0.0), least=-half, most=half, steepest=1.0))


def asinh() -> Curve:
    """Return the inverse hyperbolic sine: ``g' = 1/sqrt(1 + x^2)``, steepest at 0 with 1.

    >>> asinh().slope()
    1.0
    """
    ends = ((-_INF, 0.0), (_INF, 0.0))
    return _curve(math.asinh, lambda x: 1.0 / math.hypot(1.0, x), _Known(ends, bends=points(0.0), steepest=1.0))


def acosh() -> Curve:
    """Return the inverse hyperbolic cosine on ``x >= 1``, unbounded slope at one.

    >>> acosh().slope(1.0, 2.0), round(acosh().slope(1.25, 2.0), 6)
    (inf, 1.333333)
    """

    def slope(x: float) -> float:
        return 1.0 / (math.sqrt(x - 1.0) * math.sqrt(x + 1.0))

    return _curve(math.acosh, slope, _Known(((0.0, 0.0), (_INF, 0.0)), (1.0, _INF)))


def atanh() -> Curve:
    """Return the inverse hyperbolic tangent on [-1, 1], unbounded at both ends.

    >>> atanh().slope(-0.5, 0.5) >= 4 / 3, atanh().slope(0.0, 1.0)
    (True, inf)
    """

    def value(x: float) -> float:
        return math.copysign(_INF, x) if abs(x) == 1 else math.atanh(x)

    return _curve(value, lambda x: 1.0 / ((1.0 - x) * (1.0 + x)), _Known(domain=(-1.0, 1.0)))


def _bell(x: float) -> float:
    """Return ``2/sqrt(pi) exp(-x^2)``."""
    return 2.0 / math.sqrt(math.pi) * math.exp(-min(x * x, 800.0))


def _bell_condition(x: float) -> float:
    """Return the condition of the bell curve in its rounded argument."""
    return 1.0 + min(x * x, 800.0)


def erf() -> Curve:
    """Return the error function: ``g' = 2/sqrt(pi) exp(-x^2)``, steepest at 0.

    >>> round(erf().slope(), 6)
    1.128379
    """
    top = up(2.0 / math.sqrt(math.pi))
    ends = ((-1.0, 0.0), (1.0, 0.0))
    known = _Known(ends, condition=_bell_condition, bends=points(0.0), least=-1.0, most=1.0, steepest=top)
    return _curve(math.erf, _bell, known)


def erfc() -> Curve:
    """Return the complementary error function ``1 - erf(x)``.

    >>> erfc().image()
    (0.0, 2.0)
    """
    top = up(2.0 / math.sqrt(math.pi))
    ends = ((2.0, 0.0), (0.0, 0.0))
    known = _Known(ends, condition=_bell_condition, bends=points(0.0), least=0.0, most=2.0, steepest=top)
    return _curve(math.erfc, lambda x: -_bell(x), known)
