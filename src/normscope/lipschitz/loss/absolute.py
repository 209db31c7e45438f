"""The absolute error ``||h - y||_1``."""

from __future__ import annotations

from fractions import Fraction

from normscope.core.statement import statement
from normscope.core.value import Value
from normscope.lipschitz.loss.reduction import constant, elementwise


@statement("normscope", "Proposition LOSS-3")
def l1(outputs: int, *, batch: int = 1, reduction: str = "mean") -> Value:
    """Return the constant of ``sum_j |h_j - y_j|``: ``sqrt(n)``, for the mean ``1/sqrt(n)``.

    The gradient has entries ``+-1``; it is attained wherever no entry of ``h - y`` is zero. than2025 takes it to be one
    before its Corollary 14.

    Args:
        outputs: ``n``, outputs of one sample.
        batch: samples stacked into one input.
        reduction: ``mean`` over all entries, ``sum`` or ``none``.

    Raises:
        InputError: if a count is not positive or the reduction unknown.

    >>> round(l1(4, reduction="sum").value, 9), round(l1(4).value, 9)
    (2.0, 0.5)
    """
    return constant(elementwise(Fraction(1), outputs, batch, reduction), "LOSS-3")
