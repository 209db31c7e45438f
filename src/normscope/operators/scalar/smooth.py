"""Smooth activations without a gate as curves: value, derivative, zeros of g'' and g', each with its rounding error.

The errors are stated as ``64 u`` times the sum of the magnitudes of the terms, times the condition of the inner
function where its argument is rounded; the elementary functions of the C library err by a few ``u``.
"""

from __future__ import annotations

import math

from normscope.core.errors import InputError
from normscope.core.rounding import UNIT
from normscope.operators.scalar.curve import Curve, Enclosed, Piece, affine, points

_INF = math.inf
#: Relative error allowed to a short formula of elementary functions.
ERROR = 64.0 * UNIT
#: Added to the error of every number that is not exactly zero: it may have underflowed.
FLOOR = 1e-300
#: The largest argument of exp that does not overflow.
LARGE = 709.0


def near(value: float, condition: float = 1.0) -> Enclosed:
    """Return a computed number with its error; an exact zero has none, and nothing is added to infinity.

    >>> near(0.0), near(1.0)[1] < 1e-14
    ((0.0, 0.0), True)
    """
    return value, ERROR * condition * abs(value) + FLOOR if value and math.isfinite(value) else 0.0


def logistic(x: float) -> float:
    """Return ``1/(1 + exp(-x))`` with small relative error on both sides."""
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-min(x, LARGE)))
    e = math.exp(max(x, -745.0))
    return e / (1.0 + e)


def bounded_exp(x: float) -> float:
    """Return ``exp(x)``, infinity where it overflows."""
    return math.exp(x) if x <= LARGE else _INF


def softplus_of(x: float) -> float:
    """Return ``log(1 + exp(x))``."""
    return max(x, 0.0) + math.log1p(math.exp(-min(abs(x), 745.0)))


def sigmoid() -> Curve:
    """Return ``s(x) = 1/(1 + exp(-x))``: ``s' = s(x) s(-x)``, steepest at 0 with 1/4.

    >>> sigmoid().slope()
    0.25
    """

    def value(x: float) -> Enclosed:
        return near(logistic(x))

    def slope(x: float) -> Enclosed:
        return near(logistic(x) * logistic(-x))

    piece = Piece(-_INF, _INF, value, slope, bends=points(0.0), left=(0.0, 0.0), right=(1.0, 0.0))
    return Curve((piece,), least=0.0, most=1.0, steepest=0.25)


def log_sigmoid() -> Curve:
    """Return ``log s(x) = -log(1 + exp(-x))``, whose derivative ``s(-x)`` decreases from 1 to 0.

    >>> log_sigmoid().slope()
    1.0
    """
    piece = Piece(
        -_INF,
        _INF,
        lambda x: near(-softplus_of(-x)),
        lambda x: near(logistic(-x)),
        left=(-_INF, 1.0),
        right=(0.0, 0.0),
    )
    return Curve((piece,), most=0.0, steepest=1.0)


#: A jump is taken for rounding where it is at most half a unit of float32 in the last place of the value.
_HALF_UNIT = 2.0**-24


def softplus(beta: float, threshold: float) -> Curve:
    """Return ``log(1 + exp(beta x))/beta``, and ``x`` itself where ``beta x > threshold``, as PyTorch does.

    The branches differ by ``log(1 + exp(-threshold))/beta`` where they meet. At the default threshold of 20 that is
    ``1e-10`` of the value, less than the rounding of float32, and taken for rounding; a larger one is a discontinuity.

    >>> softplus(2.0, 20.0).slope(), softplus(5.0, 1.0).slope(), softplus(5.0, 1.0).slope(-9.0, 0.0) < 0.501
    (1.0, inf, True)
    """
    if not beta > 0:
        raise InputError(f"softplus needs beta > 0, got {beta}")

    def value(x: float) -> Enclosed:
        return near(softplus_of(beta * x) / beta, 1.0 + min(abs(beta * x), 745.0))

    def slope(x: float) -> Enclosed:
        return near(logistic(beta * x), 1.0 + min(abs(beta * x), 745.0))

    piece = Piece(-_INF, _INF, value, slope, left=(0.0, 0.0), right=(_INF, 1.0))
    switch = threshold / beta
    start, stop = switch - 4.0 * UNIT * abs(switch), switch + 4.0 * UNIT * abs(switch)
    jumps: tuple[tuple[float, bool], ...] = ()
    if not softplus_of(-threshold) <= _HALF_UNIT * threshold:  # the switch itself is known up to rounding only
        jumps = tuple((where, left) for where in (start, switch, stop) for left in (True, False))
    return Curve((piece, affine(start, _INF, 1.0)), jumps=jumps, steepest=1.0)


def tanh() -> Curve:
    """Return the hyperbolic tangent: ``g' = 4 s(2x) s(-2x)``, steepest at 0 with 1.

    >>> tanh().slope()
    1.0
    """

    def slope(x: float) -> Enclosed:
        return near(4.0 * logistic(2.0 * x) * logistic(-2.0 * x))

    piece = Piece(
        -_INF,
        _INF,
        lambda x: near(math.tanh(x)),
        slope,
        bends=points(0.0),
        left=(-1.0, 0.0),
        right=(1.0, 0.0),
    )
    return Curve((piece,), least=-1.0, most=1.0, steepest=1.0)


def tanhshrink() -> Curve:
    """Return ``x - tanh(x)``, whose derivative ``tanh^2`` grows with ``|x|`` to 1.

    >>> tanhshrink().slope(), tanhshrink().slope(0.0, 0.0)
    (1.0, 0.0)
    """
    piece = Piece(
        -_INF,
        _INF,
        lambda x: (x - math.tanh(x), ERROR * abs(x)),
        lambda x: (math.tanh(x) ** 2, ERROR * math.tanh(x) ** 2 + (FLOOR if x else 0.0)),
        left=(-_INF, 1.0),
        right=(_INF, 1.0),
    )
    return Curve((piece,), steepest=1.0)


def softsign() -> Curve:
    """Return ``x/(1 + |x|)``, steepest at 0 with 1.

    >>> softsign().slope()
    1.0
    """

    def slope(x: float) -> Enclosed:
        return near((1.0 / (1.0 + abs(x))) ** 2)

    piece = Piece(
        -_INF,
        _INF,
        lambda x: near(x / (1.0 + abs(x))),
        slope,
        bends=points(0.0),
        left=(-1.0, 0.0),
        right=(1.0, 0.0),
    )
    return Curve((piece,), least=-1.0, most=1.0, steepest=1.0)


def exponential_below_zero(height: float, rate: float, limit: float) -> Piece:
    """Return the piece ``height (exp(rate x) - 1)`` on ``x <= 0``, the left half of ELU and CELU.

    Args:
        height: the factor.
        rate: the factor inside.
        limit: an upper bound of the exact ``|height|``, which the values approach on the left.

    >>> exponential_below_zero(2.0, 1.0, 2.0).slope(0.0)[0]
    2.0
    """

    def value(x: float) -> Enclosed:
        inner = math.expm1(rate * x) if rate * x <= LARGE else _INF
        # expm1 is well conditioned on the left: |z e^z| <= |e^z - 1|
        return near(height * inner if height else 0.0, 1.0 + max(rate * x, 0.0))

    def slope(x: float) -> Enclosed:
        steep = height * rate * bounded_exp(rate * x) if height * rate else 0.0
        return near(steep, 1.0 + min(abs(rate * x), 745.0))

    if rate > 0 or height == 0:
        far = (-math.copysign(limit, height), 0.0)
    elif rate == 0:
        far = (0.0, 0.0)
    else:
        far = (math.copysign(_INF, height), math.copysign(_INF, height * rate))
    return Piece(-_INF, 0.0, value, slope, left=far)
