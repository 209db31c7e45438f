"""Hinge losses and margins: of one output, of rival classes, of several labels, and of embeddings.

The arguments are those of :func:`~normscope.lipschitz.loss.constants.loss_constant`.
"""

from collections.abc import Sequence
from fractions import Fraction

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.core.value import ALL_INPUTS, Value
from normscope.lipschitz.loss.reduction import (
    constant,
    elementwise,
    nonnegative,
    per_output,
    positive_count,
    root_up,
    samplewise,
    unbounded,
)


@statement("normscope", "Proposition LOSS-10", holds="targets +1 and -1")
def hinge(outputs: int, *, batch: int = 1, reduction: str = "mean") -> Value:
    """Return the constant of ``sum_j max(0, 1 - y_j h_j)``: slopes up to one, so one for a single output.

    It is also that of ``h_j`` for ``y_j = 1`` and ``max(0, margin - h_j)`` for ``y_j = -1``, the embedding form.

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


_REASON = "the gradient of squared margins grows with the outputs: pass a radius B for a constant on ||h|| <= B"


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
    k B)``, attained for ``h`` along ``A^T 1``; ``B`` is the ``radius``.

    >>> round(multi_margin(4).value ** 2, 12), multi_margin(4, p=2).log
    (0.75, inf)
    """
    k, distance = positive_count(outputs, "outputs"), nonnegative(margin, "margin")
    if p not in (1, 2):
        raise InputError(f"Expected a power of 1 or 2, got {p}.")
    largest = max(per_output(weight, k, "weight") or (Fraction(1),))
    if p == 1 or k == 1:
        return constant(samplewise(largest**2 * Fraction(k - 1, k), batch, reduction), "LOSS-11")
    if radius is None:
        samplewise(largest, batch, reduction)
        return unbounded(_REASON, "LOSS-11")
    spread = Fraction(root_up(Fraction(k * (k - 1))))
    norm = 2 * largest / k * (distance * spread + k * nonnegative(radius, "the radius"))
    return constant(samplewise(norm**2, batch, reduction), "LOSS-11", f"outputs with ||h|| <= {radius:g} each sample")


@statement("normscope", "Proposition LOSS-12")
def multilabel_margin(outputs: int, *, batch: int = 1, reduction: str = "mean") -> Value:
    """Return the constant of ``(1/k) sum_{y in Y, j not in Y} max(0, 1 - h_y + h_j)``.

    With ``a`` labels and ``b = k - a`` others, all pairs active, the gradient has ``a`` entries ``-b`` and ``b``
    entries ``a``: ``sqrt(a b k)/k``, most for ``a = floor(k/2)``. Fewer active pairs make every entry smaller.

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


#: What PyTorch adds to squared norms under the root of a cosine of embeddings.
COSINE_EPS = 1e-12


@statement("normscope", "Proposition LOSS-13", holds="with respect to the stacked pair")
def cosine_embedding(
    outputs: int, *, batch: int = 1, reduction: str = "mean", floor: float = 0.0, eps: float = COSINE_EPS
) -> Value:
    """Return the constant of the cosine of a pair: ``1/sqrt(eps)``, and ``sqrt(2/(r^2 + eps))`` for norms ``>= r``.

    With ``cos = u_1.u_2``, ``u_i = x_i/sqrt(||x_i||^2 + eps)`` and ``t_i = ||u_i||^2 < 1`` the square of the gradient
    is at most ``(t_2 (1 - t_1) + t_1 (1 - t_2))/eps <= 1/eps``, approached as ``x_1`` goes to zero and an orthogonal
    ``x_2`` to infinity. Above a floor ``r`` it is a radial map, ``1/sqrt(r^2 + eps)``-Lipschitz for all pairs.

    >>> round(cosine_embedding(8).value, 3), round(cosine_embedding(8, floor=2.0).value, 6)
    (1000000.0, 0.707107)
    """
    positive_count(outputs, "outputs")
    least, small = nonnegative(floor, "floor"), nonnegative(eps, "eps")
    if small == 0:
        raise InputError("Expected a positive eps: without it the cosine is not continuous at zero.")
    square = min(1 / small, 2 / (least**2 + small))
    domain = f"pairs with norms >= {floor:g}" if least else ALL_INPUTS
    return constant(samplewise(square, batch, reduction), "LOSS-13", domain)


@statement("normscope", "Proposition LOSS-13", holds="with respect to the stacked pair")
def margin_ranking(outputs: int, *, batch: int = 1, reduction: str = "mean") -> Value:
    """Return the constant of ``max(0, margin - y (x_1 - x_2))``, entry by entry: ``sqrt(2)`` for one.

    >>> round(margin_ranking(1).value, 6)
    1.414214
    """
    square = Fraction(2) * elementwise(Fraction(1), outputs, batch, reduction)
    return constant(square, "LOSS-13")


@statement("normscope", "Proposition LOSS-13", holds="with respect to the stacked triplet, distances of norm 2")
def triplet_margin(outputs: int, *, batch: int = 1, reduction: str = "mean", p: float = 2.0) -> Value:
    """Return the constant of ``max(0, d(a, x) - d(a, z) + margin)`` of anchor, positive and negative: ``sqrt(6)``.

    The gradient is ``(u - v, -u, v)`` with unit vectors ``u``, ``v``: at most ``4 + 1 + 1`` squared, attained by an
    anchor between the others. Using the smaller of two distances to the negative (``swap``) does not change it.

    >>> round(triplet_margin(3).value ** 2, 12)
    6.0
    """
    positive_count(outputs, "outputs")
    if p != 2:
        raise InputError(f"Expected p = 2 for triplets, got {p}.")
    return constant(samplewise(Fraction(6), batch, reduction), "LOSS-13")
