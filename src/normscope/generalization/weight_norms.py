"""Rates in norms of weights, as the slides print them: without margins, constants and the factors they hide."""

from __future__ import annotations

import math
from collections.abc import Iterable

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.core.value import Kind, Value, product


@statement(
    "than2025slides", "Weight norm", holds="printed as an order; margins, constants and factors of depth left out"
)
def weight_norm_rates(norms: Iterable[Value], samples: int) -> Value:
    """Return ``prod ||W_k||/sqrt(m)``, with Frobenius norms (Golowich et al.) or spectral ones (Bartlett et al.).

    Args:
        norms: one for each layer.
        samples: ``m``.

    Raises:
        InputError: if there is no sample.

    >>> round(weight_norm_rates([Value.of(3.0, Kind.CERTIFIED)] * 2, 9).value, 9)
    3.0
    """
    if samples < 1:
        raise InputError(f"Expected at least one sample, got {samples}.")
    log = product(norms).log - 0.5 * math.log(samples)
    assumed = ("an order: margins, constants and further factors are left out",)
    return Value(log, Kind.PRINTED, statement="than2025slides Weight norm", assumptions=assumed)
