"""Non-smooth, non-convex problems: what can be reached in finite time is a (delta, alpha)-Goldstein point."""

from __future__ import annotations

from fractions import Fraction

from normscope.core.statement import statement
from normscope.core.value import Kind, Value, product
from normscope.papers.than2025.complexity.positive import factor, positive

ORDER = "an order of magnitude: constants and logarithms are left out"
GOLDSTEIN = "some average of gradients within delta of the point is shorter than alpha"


@statement(
    "normscope", "Proposition OPT-5", holds="cited (Zhang et al. 2020, Davis et al. 2022), up to constants and logs"
)
def goldstein(lipschitz: Value, gap: float, delta: float, alpha: float) -> Value:
    """Return ``D L^2/(delta alpha^3)``: the order of gradients that find a (delta, alpha)-Goldstein stationary point.

    There some convex combination of gradients at points within ``delta`` has norm at most ``alpha``. A point whose own
    gradient is that small cannot be found in any finite number of steps for all Lipschitz functions.

    Args:
        lipschitz: ``L``.
        gap: ``D``, how far the start is above the infimum.
        delta: radius.
        alpha: length of the average gradient.

    Returns:
        An estimate, whatever the kind of ``L``: constants are not known here.

    Raises:
        InputError: if a number is not positive.

    >>> round(goldstein(Value.of(2.0, Kind.CERTIFIED), 1.0, 0.5, 0.5).value, 9)
    64.0
    """
    ratio = Fraction(positive(gap, "gap")) / (
        Fraction(positive(delta, "delta")) * Fraction(positive(alpha, "alpha")) ** 3
    )
    count = product((lipschitz**2, factor(ratio, Kind.ESTIMATE)))
    assumptions = tuple(dict.fromkeys((*lipschitz.assumptions, GOLDSTEIN, ORDER)))
    kind = Kind.PRINTED if lipschitz.kind is Kind.PRINTED else Kind.ESTIMATE
    return Value(
        count.log, kind, lipschitz.domain, lipschitz.mode, "normscope Proposition OPT-5", assumptions=assumptions
    )
