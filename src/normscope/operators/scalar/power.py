"""Powers ``x^p`` as curves: squares, roots, reciprocals."""

from __future__ import annotations

import math

from normscope.core.errors import InputError
from normscope.core.rounding import UNIT
from normscope.operators.scalar.curve import Curve, Enclosed, Piece, affine

_INF = math.inf


def _raised(x: float, p: float) -> float:
    """Return ``|x|^p`` with ``0^negative = inf``, and infinity where it overflows."""
    if x == 0 and p < 0:
        return _INF
    try:
        return math.pow(abs(x), p)
    except OverflowError:
        return _INF


def power(exponent: float) -> Curve:
    r"""Return ``x^p``.

    Its domain is the line for an integer ``p`` (without zero if negative), and ``x >= 0`` otherwise. The derivative,
    ``|g'| = |p| |x|^{p-1}``, is monotone in ``|x|``: its supremum is at an end of the interval, infinite at zero for
    ``p < 1`` (``p`` not 0) and at infinity for ``p > 1``.

    Args:
        exponent: ``p``.

    Raises:
        InputError: if it is not finite.

    >>> power(2.0).slope(-3.0, 1.0) >= 6.0, power(0.5).slope(0.0, 1.0), power(-1.0).slope(-1.0, 1.0)
    (True, inf, inf)
    """
    p = exponent
    if not math.isfinite(p):
        raise InputError(f"a power needs a finite exponent, got {p}")
    if p == 0:
        return Curve((affine(-_INF, _INF, 0.0, 1.0),))
    if p == 1:
        return Curve((affine(-_INF, _INF, 1.0),))
    whole = p == int(p)
    sign = -1.0 if whole and int(p) % 2 else 1.0

    def error(x: float, size: float) -> float:
        grown = (64.0 + 8.0 * abs(p)) * UNIT * size
        return max(grown, 5e-324) if math.isfinite(size) and x else 0.0

    def value(x: float) -> Enclosed:
        size = _raised(x, p)
        return size, error(x, size)

    def mirrored(x: float) -> Enclosed:
        size, wide = value(x)
        return sign * size, wide

    def slope(x: float) -> Enclosed:
        size = abs(p) * _raised(x, p - 1)
        return size, error(x, size)

    far = (_INF if p > 0 else 0.0, _INF if p > 1 else 0.0)
    right = Piece(0.0, _INF, value, slope, right=far)
    if not whole:
        return Curve((right,), least=0.0)
    left = Piece(-_INF, 0.0, mirrored, slope, left=(sign * far[0], far[1]))
    pole = ((0.0, True), (0.0, False)) if p < 0 else ()
    return Curve((left, right), jumps=pole, least=0.0 if sign > 0 else -_INF)
