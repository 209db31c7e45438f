"""Huber's loss and its smooth l1 form: squares near the target, absolute errors away from it."""

from __future__ import annotations

from fractions import Fraction

from normscope.core.statement import statement
from normscope.core.value import Value
from normscope.lipschitz.loss.reduction import constant, elementwise, nonnegative


@statement("normscope", "Proposition LOSS-6")
def huber(outputs: int, *, batch: int = 1, reduction: str = "mean", delta: float = 1.0) -> Value:
    """Return the constant of Huber's loss: slopes up to ``delta``, so ``delta sqrt(n)`` for the sum over one sample.

    Args:
        outputs: ``n``, outputs of one sample.
        batch: samples stacked into one input.
        reduction: ``mean`` over all entries, ``sum`` or ``none``.
        delta: error from which on the loss is linear.

    Raises:
        InputError: if a count is not positive, ``delta`` negative, or the reduction unknown.

    >>> round(huber(4, delta=3.0, reduction="sum").value, 9), round(huber(4, delta=3.0).value, 9)
    (6.0, 1.5)
    """
    return constant(elementwise(nonnegative(delta, "delta"), outputs, batch, reduction), "LOSS-6")


@statement("normscope", "Proposition LOSS-6")
def smooth_l1(outputs: int, *, batch: int = 1, reduction: str = "mean", beta: float = 1.0) -> Value:
    """Return the constant of the smooth l1 loss, Huber's divided by its ``beta``: that of l1, whatever ``beta`` is.

    >>> round(smooth_l1(4, reduction="sum", beta=0.1).value, 9)
    2.0
    """
    nonnegative(beta, "beta")
    return constant(elementwise(Fraction(1), outputs, batch, reduction), "LOSS-6")
