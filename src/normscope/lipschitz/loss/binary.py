"""Binary cross-entropy, on logits and on probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.core.value import Value
from normscope.lipschitz.loss.reduction import constant, elementwise, per_output, positive_count, unbounded

_TARGETS = "targets are between 0 and 1"
_REASON = (
    "the gradient 1/p grows as a probability p goes to zero: give a floor t for a constant on t <= p <= 1 - t, "
    "or use the loss on logits"
)


@statement("normscope", "Proposition LOSS-9", holds="targets between 0 and 1; a supremum that no finite logits attain")
def bce_with_logits(
    outputs: int,
    *,
    batch: int = 1,
    reduction: str = "mean",
    weight: Sequence[float] | None = None,
    pos_weight: Sequence[float] | None = None,
) -> Value:
    """Return the constant of binary cross-entropy on logits: slopes below ``w_j max(1, b_j)``, so ``sqrt(n)`` plain.

    The derivative of ``w (b y log(1 + e^-h) + (1 - y) log(1 + e^h))`` is ``w ((1 - y) q - b y (1 - q))`` with ``q``
    the sigmoid of ``h``: between ``-w b`` and ``w``.

    Args:
        outputs: ``n``, outputs of one sample.
        batch: samples stacked into one input.
        reduction: ``mean`` over all entries, ``sum`` or ``none``.
        weight: ``w``, one number >= 0 for each output; ones if not given.
        pos_weight: ``b``, the same.

    Raises:
        InputError: if an argument is out of its range.

    >>> round(bce_with_logits(4, reduction="sum").value, 9), round(bce_with_logits(4).value, 9)
    (2.0, 0.5)
    """
    n = positive_count(outputs, "outputs")
    weights, positive = (per_output(w, n, name) for w, name in ((weight, "weight"), (pos_weight, "pos_weight")))
    slopes: Sequence[Fraction] | Fraction = Fraction(1)
    if weights is not None or positive is not None:
        ones = (Fraction(1),) * n
        slopes = tuple(w * max(Fraction(1), b) for w, b in zip(weights or ones, positive or ones, strict=True))
    return constant(elementwise(slopes, n, batch, reduction), "LOSS-9", assumptions=(_TARGETS,))


@statement("normscope", "Proposition LOSS-9", holds="probabilities in [t, 1 - t]; no constant on all of [0, 1]")
def bce(
    outputs: int,
    *,
    batch: int = 1,
    reduction: str = "mean",
    weight: Sequence[float] | None = None,
    floor: float | None = None,
) -> Value:
    """Return the constant of binary cross-entropy on probabilities in ``[t, 1 - t]``: slopes up to ``w_j/t``.

    Args:
        outputs: ``n``, outputs of one sample.
        batch: samples stacked into one input.
        reduction: ``mean`` over all entries, ``sum`` or ``none``.
        weight: ``w``, one number >= 0 for each output; ones if not given.
        floor: ``t``, positive and at most a half; without it the value is "no bound" and says why.

    Raises:
        InputError: if an argument is out of its range.

    >>> round(bce(1, floor=0.125).value, 9), bce(1).log
    (8.0, inf)
    """
    n = positive_count(outputs, "outputs")
    weights = per_output(weight, n, "weight")
    if floor is None:
        elementwise(Fraction(1), n, batch, reduction)  # the other arguments are checked all the same
        return unbounded(_REASON, "LOSS-9")
    if not 0 < floor <= 0.5:
        raise InputError(f"a floor of probabilities is positive and at most 0.5, got {floor}")
    steepest = 1 / Fraction(floor)
    slopes = steepest if weights is None else tuple(w * steepest for w in weights)
    domain = f"probabilities between {floor:g} and {1 - floor:g}"
    return constant(elementwise(slopes, n, batch, reduction), "LOSS-9", domain, (_TARGETS,))
