"""PAC-Bayes bounds on the average gap over a posterior, from its divergence from a prior."""

from __future__ import annotations

import math

from normscope.core.errors import InputError
from normscope.core.rounding import up
from normscope.core.statement import statement
from normscope.core.value import Kind, Value


@statement("than2025slides", "PAC-Bayes", holds="printed; implied by the bound below for m >= 8")
def pac_bayes_printed(divergence: float, samples: int, delta: float) -> Value:
    """Return ``sqrt((KL + log(m/delta))/(2 m - 1))``, as the slides print it.

    >>> round(pac_bayes_printed(5.0, 1000, 0.05).value, 5)
    0.08635
    """
    _check(divergence, samples, delta)
    size = math.sqrt((divergence + math.log(samples / delta)) / (2 * samples - 1))
    return Value.of(size, Kind.PRINTED, statement="than2025slides PAC-Bayes", delta=delta)


@statement(
    "normscope", "Proposition GEN-6", holds="cited (Maurer 2004); losses in [0, 1], m >= 8, prior before the data"
)
def pac_bayes_bound(divergence: float, samples: int, delta: float) -> Value:
    """Return ``sqrt((KL + log(2 sqrt(m)/delta))/(2 m))``, a bound on the average gap over a posterior.

    Args:
        divergence: ``KL(posterior || prior)``, the prior chosen before the data.
        samples: ``m >= 8``.
        delta: probability with which it may fail.

    Raises:
        InputError: if a number is out of its range.

    >>> round(pac_bayes_bound(5.0, 1000, 0.05).value, 5)
    0.07792
    """
    _check(divergence, samples, delta)
    size = math.sqrt((divergence + math.log(2 * math.sqrt(samples) / delta)) / (2 * samples))
    assumed = ("losses between 0 and 1", "a prior chosen before the data")
    return Value.of(
        up(size, 32.0), Kind.PROBABILISTIC, statement="normscope Proposition GEN-6", assumptions=assumed, delta=delta
    )


def _check(divergence: float, samples: int, delta: float) -> None:
    if not (math.isfinite(divergence) and divergence >= 0):
        raise InputError(f"Expected a finite non-negative divergence, got {divergence}.")
    if samples < 8 or not 0 < delta < 1:
        raise InputError(f"Expected at least 8 samples and a probability between 0 and 1, got {samples} and {delta}.")
