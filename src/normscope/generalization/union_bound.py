"""Union bound over powers of a base, for scales that are read off the trained network."""

import math
from typing import NamedTuple

from normscope.core.statement import statement

#: ``sum over all integers of 1/(1 + |j|)^2 = pi^2/3 - 1``.
_TOTAL = math.pi**2 / 3 - 1


class Rounded(NamedTuple):
    """A scale rounded up to a power of the base."""

    log: float  #: natural logarithm of that power
    price: float  #: ``ln(1/w_j)``, added to ``ln(1/delta)`` for the choice of ``j``


@statement("normscope", "Proposition GEN-8", holds="a bound that increases with the scale")
def rounded_up(log_scale: float, base: float = 2.0) -> Rounded:
    r"""Return a scale rounded up to ``b^j`` and the price of ``j``, with weights ``w_j = 1/((pi^2/3 - 1)(1 + |j|)^2)``.

    A bound proved for every fixed scale ``b^j`` with probability ``1 - delta w_j`` holds for all ``j`` at once with
    probability ``1 - delta``, since the weights sum to one; then it may be used at the scale that training gave.

    Args:
        log_scale: natural logarithm of the scale.
        base: ``b``.

    >>> rounded = rounded_up(math.log(3.0))
    >>> round(math.exp(rounded.log), 6), round(rounded.price, 3)
    (4.0, 3.026)
    """
    if math.isinf(log_scale):
        return Rounded(log_scale, 0.0)
    place = math.ceil(log_scale / math.log(base) - 1e-12)
    return Rounded(place * math.log(base) + 1e-9, math.log(_TOTAL) + 2 * math.log(1 + abs(place)))
