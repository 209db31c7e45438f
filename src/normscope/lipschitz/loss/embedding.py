"""Losses of several outputs at once: cosines of pairs, rankings of pairs, distances of triplets.

They are measured with respect to all their inputs stacked: ``(x_1, x_2)``, or anchor, positive and negative.
"""

from __future__ import annotations

from fractions import Fraction

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.core.value import ALL_INPUTS, Value
from normscope.lipschitz.loss.reduction import constant, elementwise, nonnegative, positive_count, samplewise

#: What PyTorch adds to squared norms under the root of a cosine of embeddings.
COSINE_EPS = 1e-12


@statement("normscope", "Proposition LOSS-13", holds="with respect to the stacked pair")
def cosine_embedding(
    outputs: int, *, batch: int = 1, reduction: str = "mean", floor: float = 0.0, eps: float = COSINE_EPS
) -> Value:
    """Return the constant of the cosine of a pair: ``1/sqrt(eps)``, and ``sqrt(2/(r^2 + eps))`` for norms ``>= r``.

    With ``cos = u_1.u_2``, ``u_i = x_i/sqrt(||x_i||^2 + eps)`` and ``t_i = ||u_i||^2 < 1`` the square of the gradient
    is at most ``(t_2 (1 - t_1) + t_1 (1 - t_2))/eps <= 1/eps``, approached as ``x_1`` goes to zero and an orthogonal
    ``x_2`` to infinity. Above a floor ``u`` is a radial map, ``1/sqrt(r^2 + eps)``-Lipschitz for every pair of points.

    Args:
        outputs: entries of one embedding; they do not matter.
        batch: pairs stacked into one input.
        reduction: ``mean`` over pairs, ``sum`` or ``none``.
        floor: ``r``; zero for all pairs, whose constant is ``1/sqrt(eps)``.
        eps: added to squared norms, positive.

    Raises:
        InputError: if an argument is out of its range.

    >>> round(cosine_embedding(8).value, 3), round(cosine_embedding(8, floor=2.0).value, 6)
    (1000000.0, 0.707107)
    """
    positive_count(outputs, "outputs")
    least, small = nonnegative(floor, "floor"), nonnegative(eps, "eps")
    if small == 0:
        raise InputError("eps is positive: without it the cosine is not continuous at zero")
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
    anchor between the others. The smaller of two distances to the negative, if asked for, changes only who pays.

    Raises:
        InputError: if the distance is of another norm.

    >>> round(triplet_margin(3).value ** 2, 12)
    6.0
    """
    positive_count(outputs, "outputs")
    if p != 2:
        raise InputError(f"triplets are known for distances of norm 2, got {p}")
    return constant(samplewise(Fraction(6), batch, reduction), "LOSS-13")
