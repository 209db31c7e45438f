"""The error of a classifier from samples it has never seen: the exact limit of Clopper and Pearson."""

from __future__ import annotations

from scipy.stats import beta

from normscope.core.errors import InputError
from normscope.core.numbers import check_fraction
from normscope.core.rounding import up
from normscope.core.statement import statement
from normscope.core.value import Kind, Value

#: Relative error of the incomplete beta function and its inverse, generously, in unit roundoffs.
_UNITS = 1e5


@statement("clopper1934", "upper limit", holds="samples drawn after the classifier was chosen")
def clopper_pearson(errors: int, samples: int, delta: float) -> Value:
    r"""Return the largest error probability ``p`` with ``P(Bin(n, p) <= k) >= delta``.

    It is the quantile ``1 - delta`` of a Beta distribution with parameters ``k + 1`` and ``n - k``, and exceeds the
    true error with probability at least ``1 - delta``.

    Args:
        errors: ``k``, how many of the samples are wrong.
        samples: ``n``, drawn independently of the classifier.
        delta: probability with which the limit may fail.

    Raises:
        InputError: if a number is out of its range.

    >>> round(clopper_pearson(600, 10_000, 0.05).value, 4)
    0.0641
    """
    check_fraction(delta, "delta, a probability,")
    if samples < 1 or not 0 <= errors <= samples:
        raise InputError(f"Expected at least one sample and 0 <= errors <= samples, got {errors} of {samples}.")
    limit = 1.0 if errors == samples else min(1.0, up(float(beta.isf(delta, errors + 1, samples - errors)), _UNITS))
    assumed = ("the samples are independent of how the classifier was chosen",)
    return Value.of(limit, Kind.PROBABILISTIC, statement="clopper1934 upper limit", assumptions=assumed, delta=delta)
