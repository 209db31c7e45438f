"""Positive numbers as factors and divisors of values."""

from __future__ import annotations

import math
from fractions import Fraction

from normscope.core.errors import InputError
from normscope.core.value import Kind, Value, safe_side


def positive(x: float, name: str) -> float:
    """Return a finite positive number.

    Raises:
        InputError: if it is none.
    """
    if isinstance(x, bool) or not (math.isfinite(x) and x > 0):
        raise InputError(f"Expected {name} to be positive, got {x}.")
    return float(x)


def factor(x: Fraction | float, kind: Kind) -> Value:
    """Return a positive number as a value of some kind, rounded to its safe side.

    >>> factor(Fraction(1, 3), Kind.CERTIFIED).value >= 1 / 3
    True
    """
    exact = Fraction(x)
    near = float(exact)
    side = safe_side(kind)
    if not math.isnan(side) and Fraction(near) != exact and (Fraction(near) < exact) == (side > 0):
        near = math.nextafter(near, side)
    return Value.of(near, kind)
