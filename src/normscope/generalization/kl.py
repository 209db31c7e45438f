"""The divergence of two Bernoulli distributions, and the largest parameter that a divergence allows."""

from __future__ import annotations

import math

from normscope.core.errors import InputError
from normscope.core.statement import statement


@statement("normscope", "Proposition GEN-7", holds="0 <= q, p <= 1")
def binary_kl(q: float, p: float) -> float:
    r"""Return ``kl(q || p) = q ln(q/p) + (1 - q) ln((1 - q)/(1 - p))``.

    Raises:
        InputError: if a number is not between 0 and 1.

    >>> round(binary_kl(0.0, 0.5), 6), binary_kl(0.5, 1.0)
    (0.693147, inf)
    """
    if not (0 <= q <= 1 and 0 <= p <= 1):
        raise InputError(f"Expected two probabilities, got {q} and {p}.")
    if (p == 0 and q > 0) or (p == 1 and q < 1):
        return math.inf
    first = q * math.log(q / p) if q > 0 else 0.0
    return first + ((1 - q) * (math.log1p(-q) - math.log1p(-p)) if q < 1 else 0.0)


@statement("normscope", "Proposition GEN-7", holds="0 <= q <= 1, c >= 0; rounded up")
def inverse_kl(q: float, budget: float) -> float:
    r"""Return the largest ``p`` with ``kl(q || p) <= c``, rounded up: at least ``q``, at most 1.

    Bisection on ``[q, 1]``, where the divergence increases; the upper end is returned.

    Args:
        q: the share that was observed.
        budget: ``c``, at least zero.

    Raises:
        InputError: if a number is out of its range.

    >>> round(inverse_kl(0.0, 0.693147), 4), inverse_kl(0.1, math.inf)
    (0.5, 1.0)
    """
    if not (0 <= q <= 1 and budget >= 0):
        raise InputError(f"Expected a share and a divergence >= 0, got {q} and {budget}.")
    if budget == math.inf:
        return 1.0
    low, high = q, 1.0
    while high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if binary_kl(q, middle) > budget else (middle, high)
    return min(1.0, high * (1 + 1e-12))
