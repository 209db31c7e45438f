"""Losses of several labels per sample: margins between all pairs, and soft margins."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from normscope.core.statement import statement
from normscope.core.value import Value
from normscope.lipschitz.loss.reduction import constant, elementwise, per_output, positive_count, samplewise


@statement("normscope", "Proposition LOSS-12")
def multilabel_margin(outputs: int, *, batch: int = 1, reduction: str = "mean") -> Value:
    """Return the constant of ``(1/k) sum_{y in Y, j not in Y} max(0, 1 - h_y + h_j)``.

    With ``a`` labels and ``b = k - a`` others, all pairs active, the gradient has ``a`` entries ``-b`` and ``b``
    entries ``a``: ``sqrt(a b k)/k``, most for ``a = floor(k/2)``. Fewer active pairs make every entry smaller.

    Args:
        outputs: ``k``, the number of classes.
        batch: samples stacked into one input.
        reduction: ``mean`` over samples, ``sum`` or ``none``.

    Raises:
        InputError: if a count is not positive or the reduction unknown.

    >>> round(multilabel_margin(4).value, 9), round(multilabel_margin(1).value, 9)
    (1.0, 0.0)
    """
    k = positive_count(outputs, "outputs")
    return constant(samplewise(Fraction((k // 2) * (k - k // 2), k), batch, reduction), "LOSS-12")


@statement("normscope", "Proposition LOSS-12", holds="targets +1 and -1; a supremum that no finite outputs attain")
def soft_margin(outputs: int, *, batch: int = 1, reduction: str = "mean") -> Value:
    """Return the constant of ``sum_j log(1 + exp(-y_j h_j))``: slopes below one.

    >>> round(soft_margin(4).value, 9), round(soft_margin(4, reduction="sum").value, 9)
    (0.5, 2.0)
    """
    return constant(elementwise(Fraction(1), outputs, batch, reduction), "LOSS-12")


@statement("normscope", "Proposition LOSS-12", holds="targets between 0 and 1; no finite outputs attain it")
def multilabel_soft_margin(
    outputs: int, *, batch: int = 1, reduction: str = "mean", weight: Sequence[float] | None = None
) -> Value:
    """Return the constant of the mean over ``k`` classes of weighted binary cross-entropies: ``||w||/k``.

    >>> round(multilabel_soft_margin(4).value, 9)
    0.5
    """
    k = positive_count(outputs, "outputs")
    weights = per_output(weight, k, "weight")
    total = Fraction(k) if weights is None else sum((w**2 for w in weights), Fraction(0))
    return constant(samplewise(total / k**2, batch, reduction), "LOSS-12")
