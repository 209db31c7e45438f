"""Capacity by shattering: VC dimension of linear classifiers, and the classical bound."""

from __future__ import annotations

import math

from normscope.core.errors import InputError
from normscope.core.rounding import up
from normscope.core.statement import statement
from normscope.core.value import Kind, Value


@statement("than2025slides", "VC dimension", holds="affine classifiers of inputs in general position")
def vc_dimension_linear(inputs: int) -> int:
    """Return ``n + 1``, the VC dimension of affine classifiers of ``n`` numbers.

    >>> vc_dimension_linear(2)
    3
    """
    if inputs < 1:
        raise InputError(f"Expected at least one input, got {inputs}.")
    return inputs + 1


@statement("than2025slides", "VC dimension", holds="printed; implied by the bound below for m >= VC")
def vc_bound_printed(dimension: int, samples: int, delta: float) -> Value:
    """Return ``sqrt((2/m) d log(2 e m/d) + (1/m) log(2/delta))``, as the slides print it.

    >>> round(vc_bound_printed(10, 1000, 0.05).value, 4)
    0.3601
    """
    d, m = _checked(dimension, samples, delta)
    square = (2 * d * math.log(2 * math.e * m / d) + math.log(2 / delta)) / m
    return Value.of(math.sqrt(square), Kind.PRINTED, statement="than2025slides VC dimension", delta=delta)


@statement("normscope", "Proposition GEN-5", holds="cited (Vapnik 1998); 0-1 loss, m >= VC")
def vc_bound(dimension: int, samples: int, delta: float) -> Value:
    """Return ``sqrt((d log(2 e m/d) + log(4/delta))/m)``, a bound on the gap of the 0-1 loss for a whole family.

    Args:
        dimension: ``d``, the VC dimension of the family.
        samples: ``m >= d``.
        delta: probability with which it may fail.

    Raises:
        InputError: if a number is out of its range, as where there are fewer samples than the dimension.

    >>> round(vc_bound(10, 1000, 0.05).value, 4)
    0.2595
    """
    d, m = _checked(dimension, samples, delta)
    size = math.sqrt((d * math.log(2 * math.e * m / d) + math.log(4 / delta)) / m)
    assumed = ("0-1 loss",)
    return Value.of(
        up(size, 32.0), Kind.PROBABILISTIC, statement="normscope Proposition GEN-5", assumptions=assumed, delta=delta
    )


def _checked(dimension: int, samples: int, delta: float) -> tuple[int, int]:
    if dimension < 1 or samples < dimension:
        raise InputError(f"samples are at least the dimension, which is at least one; got {samples} and {dimension}")
    if not 0 < delta < 1:
        raise InputError(f"Expected a probability between 0 and 1, got {delta}.")
    return dimension, samples
