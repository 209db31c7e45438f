"""Capacity by shattering: VC dimension of linear classifiers, and the classical bound."""

import math
from collections.abc import Sequence

from normscope.core.errors import InputError
from normscope.core.numbers import check_fraction
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
        delta: failure probability.

    Raises:
        InputError: if a number is out of its range, as where there are fewer samples than the dimension.

    >>> round(vc_bound(10, 1000, 0.05).value, 4)
    0.2595
    """
    d, m = _checked(dimension, samples, delta)
    return _gap(d * math.log(2 * math.e * m / d), m, delta, "GEN-5")


@statement("normscope", "Proposition GEN-13", holds="cited (Vapnik 1998); 0-1 loss, any number of samples")
def vc_gap(dimension: float, samples: int, delta: float) -> Value:
    """Return ``sqrt((ln S + log(4/delta))/m)``, ``S`` the most patterns on ``2 m`` samples.

    ``ln S`` is at most ``d ln(2 e m/d)`` for ``d <= 2 m`` and ``2 m ln 2`` always, so that a network with more
    dimensions than samples gets a number above one, which says nothing.

    Args:
        dimension: ``d``, the VC dimension of the wrong decisions of the family.
        samples: ``m``.
        delta: failure probability.

    >>> round(vc_gap(10, 1000, 0.05).value, 4), round(vc_gap(1e8, 50_000, 0.05).value, 2)
    (0.2595, 1.18)
    """
    if dimension < 1 or samples < 1 or not 0 < delta < 1:
        raise InputError(f"Expected a dimension, samples and a probability, got {dimension}, {samples} and {delta}.")
    patterns = 2 * samples * math.log(2)
    if dimension <= 2 * samples:
        patterns = min(patterns, dimension * math.log(2 * math.e * samples / dimension))
    return _gap(patterns, samples, delta, "GEN-13")


@statement("bartlett2019", "Theorem 7", holds="piecewise linear activations; weights may be shared and layers skipped")
def vc_dimension_network(parameters: Sequence[int], units: Sequence[int], breakpoints: int = 1) -> float:
    r"""Return an upper bound on the VC dimension of a network of piecewise linear units.

    .. math:: L + \bar L W \log_2\big(4 e p R \log_2(2 e p R)\big), \quad R = \sum_i i k_i, \quad
        \bar L W = \sum_i W_i

    Args:
        parameters: ``W_i``, how many parameters the layers up to the ``i``-th have together.
        units: ``k_i``, units of layer ``i``.
        breakpoints: ``p`` of the activation, one for ReLU.

    >>> round(vc_dimension_network([3], [1]))
    15
    """
    if not units or len(units) != len(parameters):
        raise InputError(f"Expected one number of units for each layer, got {len(units)} and {len(parameters)}.")
    size = 2 * math.e * breakpoints * sum(i * k for i, k in enumerate(units, 1))
    return len(units) + sum(parameters) * math.log2(2 * size * math.log2(size))


def _gap(patterns: float, samples: int, delta: float, number: str) -> Value:
    """Return the bound on the gap from the logarithm of the number of patterns."""
    size = up(math.sqrt((patterns + math.log(4 / delta)) / samples), 32.0)
    label = f"normscope Proposition {number}"
    return Value.of(size, Kind.PROBABILISTIC, statement=label, assumptions=("0-1 loss",), delta=delta)


def _checked(dimension: int, samples: int, delta: float) -> tuple[int, int]:
    if dimension < 1 or samples < dimension:
        raise InputError(f"Expected samples >= dimension >= 1, got {samples} and {dimension}.")
    check_fraction(delta, "delta, a probability,")
    return dimension, samples
