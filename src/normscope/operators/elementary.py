"""Elementary functions as curves: exponentials, logarithms, circular and hyperbolic functions, the error function."""

from __future__ import annotations

import math

from normscope.operators.curve import Curve, Enclosed, Piece, periodic, points
from normscope.operators.rounding import up
from normscope.operators.smooth import ERROR, LARGE, bounded_exp

_INF = math.inf


def _relative(function: object) -> object:
    raise NotImplementedError


def erf() -> Curve:
    """Return the error function: ``g' = 2/sqrt(pi) exp(-x^2)``, steepest at 0.

    >>> round(erf().slope(), 6)
    1.128379
    """
    top = 2.0 / math.sqrt(math.pi)

    def slope(x: float) -> Enclosed:
        height = top * math.exp(-min(x * x, 745.0))
        return height, ERROR * (1.0 + min(x * x, 745.0)) * height

    piece = Piece(
        -_INF,
        _INF,
        lambda x: (math.erf(x), ERROR * abs(math.erf(x))),
        slope,
        bends=points(0.0),
        left=(-1.0, 0.0),
        right=(1.0, 0.0),
    )
    return Curve((piece,), least=-1.0, most=1.0, steepest=up(top))


def atan() -> Curve:
    """Return the arc tangent: ``g' = 1/(1 + x^2)``, steepest at 0 with 1.

    >>> atan().slope()
    1.0
    """

    def slope(x: float) -> Enclosed:
        height = 1.0 / math.hypot(1.0, x) ** 2 if abs(x) < 1e150 else 0.0
        return height, ERROR * height if height else 1e-299

    half = up(math.pi / 2)
    piece = Piece(
        -_INF,
        _INF,
        lambda x: (math.atan(x), ERROR * abs(math.atan(x))),
        slope,
        bends=points(0.0),
        left=(-half, 0.0),
        right=(half, 0.0),
    )
    return Curve((piece,), least=-half, most=half, steepest=1.0)


def _wave(value_function: str) -> Curve:
    """Return sine or cosine."""
    f, g = (math.sin, math.cos) if value_function == "sin" else (math.cos, math.sin)
    first = 0.0 if value_function == "sin" else math.pi / 2
    piece = Piece(
        -_INF,
        _INF,
        lambda x: (f(x), ERROR * abs(f(x))),
        lambda x: (g(x), ERROR * abs(g(x))),
        bends=periodic(first, math.pi),
        turns=periodic(math.pi / 2 - first, math.pi),
        left=(0.0, 1.0),
        right=(0.0, 1.0),
    )
    return Curve((piece,), least=-1.0, most=1.0, steepest=1.0)


def sin() -> Curve:
    """Return the sine.

    >>> sin().slope(), sin().image(0.0, 1.0)[0] <= 0.0
    (1.0, True)
    """
    return _wave("sin")


def cos() -> Curve:
    """Return the cosine.

    >>> cos().image(-1.0, 1.0)[1]
    1.0
    """
    return _wave("cos")


def exp() -> Curve:
    """Return the exponential, steep without bound to the right.

    >>> exp().slope(), round(exp().slope(-1.0, 0.0), 9)
    (inf, 1.0)
    """

    def value(x: float) -> Enclosed:
        return bounded_exp(x), ERROR * bounded_exp(x) if x <= LARGE else 0.0

    return Curve((Piece(-_INF, _INF, value, value, left=(0.0, 0.0), right=(_INF, _INF)),), least=0.0)


def expm1() -> Curve:
    """Return ``exp(x) - 1``.

    >>> expm1().image(-1e9, 0.0)
    (-1.0, 0.0)
    """

    def value(x: float) -> Enclosed:
        return (math.expm1(x), ERROR * abs(math.expm1(x))) if x <= LARGE else (_INF, 0.0)

    slope = exp().pieces[0].slope
    return Curve((Piece(-_INF, _INF, value, slope, left=(-1.0, 0.0), right=(_INF, _INF)),), least=-1.0)


def log() -> Curve:
    """Return the logarithm on ``x >= 0``: ``g' = 1/x``, unbounded at zero.

    >>> log().slope(0.0, 1.0), round(log().slope(0.5, 4.0), 9)
    (inf, 2.0)
    """

    def value(x: float) -> Enclosed:
        return (-_INF, 0.0) if x == 0 else (math.log(x), ERROR * abs(math.log(x)))

    def slope(x: float) -> Enclosed:
        return (_INF, 0.0) if x == 0 else (1.0 / x, ERROR / x)

    return Curve((Piece(0.0, _INF, value, slope, right=(_INF, 0.0)),))


def log1p() -> Curve:
    """Return ``log(1 + x)`` on ``x >= -1``.

    >>> log1p().slope(-1.0, 0.0), log1p().slope(0.0, 3.0) >= 1.0
    (inf, True)
    """

    def value(x: float) -> Enclosed:
        return (-_INF, 0.0) if x == -1 else (math.log1p(x), ERROR * abs(math.log1p(x)))

    def slope(x: float) -> Enclosed:
        return (_INF, 0.0) if x == -1 else (1.0 / (1.0 + x), ERROR / (1.0 + x))

    return Curve((Piece(-1.0, _INF, value, slope, right=(_INF, 0.0)),))


