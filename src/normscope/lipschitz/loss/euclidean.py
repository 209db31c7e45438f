"""The Euclidean distance ``||h - y||_2`` as a loss."""

from __future__ import annotations

from fractions import Fraction

from normscope.core.statement import statement
from normscope.core.value import Value
from normscope.lipschitz.loss.reduction import constant, positive_count, samplewise


@statement("normscope", "Proposition LOSS-4")
def l2(outputs: int, *, batch: int = 1, reduction: str = "mean") -> Value:
    """Return the constant of ``||h - y||_2``: one, since its gradient is a unit vector.

    Args:
        outputs: outputs of one sample; they do not matter.
        batch: ``m`` samples stacked into one input; the mean over them has the constant ``1/sqrt(m)``.
        reduction: ``mean`` over samples, ``sum`` or ``none``.

    Raises:
        InputError: if a count is not positive or the reduction unknown.

    >>> round(l2(7).value, 9), round(l2(7, batch=4).value, 9), round(l2(7, batch=4, reduction="sum").value, 9)
    (1.0, 0.5, 2.0)
    """
    positive_count(outputs, "outputs")
    return constant(samplewise(Fraction(1), batch, reduction), "LOSS-4")
