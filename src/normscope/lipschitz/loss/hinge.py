"""Hinge losses: of one margin, of the best rival class, of all rival classes, and of embeddings."""

from __future__ import annotations

from fractions import Fraction

from normscope.core.statement import statement
from normscope.core.value import Value
from normscope.lipschitz.loss.reduction import constant, elementwise, positive_count, samplewise


@statement("normscope", "Proposition LOSS-10", holds="targets +1 and -1")
def hinge(outputs: int, *, batch: int = 1, reduction: str = "mean") -> Value:
    """Return the constant of ``sum_j max(0, 1 - y_j h_j)``: slopes up to one, so one for a single output.

    It is also that of ``h_j`` for ``y_j = 1`` and ``max(0, margin - h_j)`` for ``y_j = -1``, the embedding form.

    Args:
        outputs: ``n``, outputs of one sample.
        batch: samples stacked into one input.
        reduction: ``mean`` over all entries, ``sum`` or ``none``.

    Raises:
        InputError: if a count is not positive or the reduction unknown.

    >>> round(hinge(1).value, 9), round(hinge(4, reduction="sum").value, 9)
    (1.0, 2.0)
    """
    return constant(elementwise(Fraction(1), outputs, batch, reduction), "LOSS-10")


@statement("normscope", "Proposition LOSS-10")
def crammer_singer(outputs: int, *, batch: int = 1, reduction: str = "mean") -> Value:
    """Return the constant of ``max(0, 1 + max_{j != y} h_j - h_y)``: its gradient is ``e_j - e_y``, so ``sqrt(2)``.

    >>> round(crammer_singer(10).value, 6), round(crammer_singer(1).value, 9)
    (1.414214, 0.0)
    """
    square = Fraction(0 if positive_count(outputs, "outputs") == 1 else 2)
    return constant(samplewise(square, batch, reduction), "LOSS-10")


@statement("normscope", "Proposition LOSS-10")
def weston_watkins(outputs: int, *, batch: int = 1, reduction: str = "mean") -> Value:
    """Return the constant of ``sum_{j != y} max(0, 1 + h_j - h_y)`` for ``k`` classes: ``sqrt(k (k - 1))``.

    With ``a`` active rivals the gradient has ``a`` ones and one ``-a``: ``sqrt(a + a^2)``, most for all ``k - 1``.

    >>> round(weston_watkins(3).value ** 2, 12)
    6.0
    """
    k = positive_count(outputs, "outputs")
    return constant(samplewise(Fraction(k * (k - 1)), batch, reduction), "LOSS-10")
