"""The multi-class margin loss of PyTorch, with its power, margin and class weights."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.core.value import Value
from normscope.lipschitz.loss.reduction import (
    constant,
    nonnegative,
    per_output,
    positive_count,
    root_up,
    samplewise,
    unbounded,
)

_REASON = "the gradient of squared margins grows with the outputs: give a radius B for a constant on ||h|| <= B"


@statement("normscope", "Proposition LOSS-11", holds="p = 2: on ||h|| <= B for each sample, no constant on all outputs")
def multi_margin(
    outputs: int,
    *,
    batch: int = 1,
    reduction: str = "mean",
    p: int = 1,
    margin: float = 1.0,
    weight: Sequence[float] | None = None,
    radius: float | None = None,
) -> Value:
    """Return the constant of ``(w_y/k) sum_{j != y} max(0, margin - h_y + h_j)^p`` of ``k`` classes.

    For ``p = 1`` it is ``max w sqrt((k - 1)/k)``, a ``k``-th of the sum over all rivals. For ``p = 2`` the gradient
    is ``(2 w_y/k) A^T z`` with ``z = (margin + A h)_+`` and rows ``e_j - e_y`` of ``A``; since ``||A^T 1|| =
    sqrt(k (k - 1))`` and ``||A^T A|| = k`` its norm on ``||h|| <= B`` is at most ``(2 w/k)(margin sqrt(k (k - 1)) +
    k B)``, attained for ``h`` along ``A^T 1``.

    Args:
        outputs: ``k``, the number of classes.
        batch: samples stacked into one input.
        reduction: ``mean`` over samples, ``sum`` or ``none``.
        p: the power, 1 or 2.
        margin: wanted distance of the target's output from the others, >= 0.
        weight: one number >= 0 for each class; ones if not given.
        radius: ``B`` for ``p = 2``; without it the value is "no bound" and says why.

    Raises:
        InputError: if an argument is out of its range.

    >>> round(multi_margin(4).value ** 2, 12), multi_margin(4, p=2).log
    (0.75, inf)
    """
    k, distance = positive_count(outputs, "outputs"), nonnegative(margin, "margin")
    if p not in (1, 2):
        raise InputError(f"the power of margins is 1 or 2, got {p}")
    largest = max(per_output(weight, k, "weight") or (Fraction(1),))
    if p == 1 or k == 1:
        return constant(samplewise(largest**2 * Fraction(k - 1, k), batch, reduction), "LOSS-11")
    if radius is None:
        samplewise(largest, batch, reduction)
        return unbounded(_REASON, "LOSS-11")
    spread = Fraction(root_up(Fraction(k * (k - 1))))
    norm = 2 * largest / k * (distance * spread + k * nonnegative(radius, "the radius"))
    return constant(samplewise(norm**2, batch, reduction), "LOSS-11", f"outputs with ||h|| <= {radius:g} each sample")
