"""The terms of Theorem 20 of than2025 that are due to the number of samples: as printed, and smaller ones."""

import math

from normscope.core.errors import InputError
from normscope.core.rounding import up
from normscope.core.statement import statement
from normscope.core.value import Kind, Value

_FIXED = "cells chosen before the data"
#: Roundings of each term, generously.
_UNITS = 64.0


@statement("than2025", "Theorem 20", holds="the term g as printed; a bound for cells chosen before the data, not tight")
def g_paper(largest: float, occupied: int, cells: int, samples: int, delta: float) -> Value:
    """Return ``C [(sqrt(2) + 1) sqrt(t) + 2 t]`` with ``t = T ln(2 N/delta)/m``.

    Args:
        largest: ``C``, the largest loss.
        occupied: ``T``, cells with a sample.
        cells: ``N``, all cells.
        samples: ``m``.
        delta: probability with which it may fail.

    Raises:
        InputError: if a number is out of its range.

    >>> round(g_paper(1.0, 5, 10, 1000, 0.05).value, 6)
    0.477771
    """
    _check(largest, occupied, cells, samples, delta)
    t = occupied * math.log(2 * cells / delta) / samples
    return _value(largest * ((math.sqrt(2) + 1) * math.sqrt(t) + 2 * t), delta, "than2025 Theorem 20")


@statement("normscope", "Proposition GEN-2", holds="cells chosen before the data, 0 <= loss <= C")
def g_tight(largest: float, occupied: int, cells: int, samples: int, delta: float) -> Value:
    """Return ``C [sqrt(2 t) + 2 t/3]`` with ``t = T ln(N/delta)/m``, about half of what is printed.

    Raises:
        InputError: if a number is out of its range.

    >>> round(g_tight(1.0, 5, 10, 1000, 0.05).value, 6)
    0.247842
    """
    _check(largest, occupied, cells, samples, delta)
    t = occupied * math.log(cells / delta) / samples
    return _value(largest * (math.sqrt(2 * t) + 2 * t / 3), delta, "normscope Proposition GEN-2")


@statement("normscope", "Proposition GEN-3", holds="cells chosen before the data, 0 <= loss <= C")
def g_total_variation(largest: float, cells: int, samples: int, delta: float) -> Value:
    """Return ``C [sqrt(N/m)/2 + sqrt(ln(1/delta)/(2 m))]``: free of the data, best for few cells.

    Raises:
        InputError: if a number is out of its range.

    >>> round(g_total_variation(1.0, 10, 1000, 0.05).value, 6)
    0.088702
    """
    _check(largest, 1, cells, samples, delta)
    size = largest * (0.5 * math.sqrt(cells / samples) + math.sqrt(math.log(1 / delta) / (2 * samples)))
    return _value(size, delta, "normscope Proposition GEN-3")


@statement("normscope", "Proposition GEN-12", holds="cells chosen before the data, 0 <= loss <= C")
def g_multinomial(largest: float, cells: int, samples: int, delta: float) -> Value:
    """Return ``C sqrt((N ln 2 + ln(1/delta))/(2 m))``, by a union over all sets of cells.

    Raises:
        InputError: if a number is out of its range.

    >>> round(g_multinomial(1.0, 100, 50_000, 0.05).value, 4)
    0.0269
    """
    _check(largest, 1, cells, samples, delta)
    size = largest * math.sqrt((cells * math.log(2) + math.log(1 / delta)) / (2 * samples))
    return _value(size, delta, "normscope Proposition GEN-12")


def _check(largest: float, occupied: int, cells: int, samples: int, delta: float) -> None:
    if not (math.isfinite(largest) and largest >= 0):
        raise InputError(
            f"Expected a bounded loss, got a largest loss of {largest}. Clip the loss: cross-entropy is unbounded."
        )
    if not 1 <= occupied <= min(cells, samples):
        raise InputError(
            f"Expected occupied cells between 1 and the number of cells ({cells}) and samples ("
            f"{samples}), got {occupied}."
        )
    if not 0 < delta < 1:
        raise InputError(f"Expected a probability between 0 and 1, got {delta}.")


def _value(x: float, delta: float, statement: str) -> Value:
    return Value.of(up(x, _UNITS), Kind.PROBABILISTIC, statement=statement, assumptions=(_FIXED,), delta=delta)
