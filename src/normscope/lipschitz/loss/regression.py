"""Errors of a regression: absolute, Euclidean, squared, and Huber's between them.

The arguments are those of :func:`~normscope.lipschitz.loss.constants.loss_constant`.
"""

from fractions import Fraction

from normscope.core.statement import statement
from normscope.core.value import Value
from normscope.lipschitz.loss.reduction import constant, elementwise, nonnegative, positive_count, samplewise, unbounded


@statement("normscope", "Proposition LOSS-3")
def l1(outputs: int, *, batch: int = 1, reduction: str = "mean") -> Value:
    """Return the constant of ``sum_j |h_j - y_j|``: ``sqrt(n)``, for the mean ``1/sqrt(n)``.

    The gradient has entries ``+-1``; it is attained wherever no entry of ``h - y`` is zero. than2025 takes it to be one
    before its Corollary 14.

    >>> round(l1(4, reduction="sum").value, 9), round(l1(4).value, 9)
    (2.0, 0.5)
    """
    return constant(elementwise(Fraction(1), outputs, batch, reduction), "LOSS-3")


@statement("normscope", "Proposition LOSS-4")
def l2(outputs: int, *, batch: int = 1, reduction: str = "mean") -> Value:
    """Return the constant of ``||h - y||_2``: one, since its gradient is a unit vector.

    >>> round(l2(7).value, 9), round(l2(7, batch=4).value, 9), round(l2(7, batch=4, reduction="sum").value, 9)
    (1.0, 0.5, 2.0)
    """
    positive_count(outputs, "outputs")
    return constant(samplewise(Fraction(1), batch, reduction), "LOSS-4")


_REASON = "the gradient of a square grows with the error: pass a radius B for a constant on ||h - y|| <= B"


@statement("normscope", "Proposition LOSS-5", holds="on ||h - y|| <= B for each sample; no constant on all outputs")
def mse(outputs: int, *, batch: int = 1, reduction: str = "mean", radius: float | None = None) -> Value:
    """Return the constant of ``sum_j (h_j - y_j)^2`` where each sample has ``||h - y|| <= B``.

    The gradient is ``2 (h - y)``: ``2 B`` for the sum over one sample, ``2 B/n`` for its mean, attained on the sphere.

    >>> round(mse(4, radius=3.0).value, 9), round(mse(4, radius=3.0, reduction="sum").value, 9), mse(4).log
    (1.5, 6.0, inf)
    """
    return _squares(2, outputs, batch, reduction, radius)


@statement("normscope", "Proposition LOSS-5", holds="on ||h - y|| <= B for each sample; no constant on all outputs")
def half_square(outputs: int, *, batch: int = 1, reduction: str = "sum", radius: float | None = None) -> Value:
    """Return the constant of ``||h - y||^2/2`` where each sample has ``||h - y|| <= B``: for one sample ``B``.

    >>> round(half_square(4, radius=3.0).value, 9)
    3.0
    """
    return _squares(1, outputs, batch, reduction, radius)


def _squares(factor: int, outputs: int, batch: int, reduction: str, radius: float | None) -> Value:
    """Return the constant of ``(factor/2) ||h - y||^2``."""
    n = positive_count(outputs, "outputs")
    largest = Fraction(0) if radius is None else factor * nonnegative(radius, "the radius")
    # On the ball the squared slopes of a sample add up to at most the square of ``largest``, given to one entry here.
    slopes = (largest, *[Fraction(0)] * (n - 1)) if n > 1 else largest
    square = elementwise(slopes, n, batch, reduction)
    if radius is None:
        return unbounded(_REASON, "LOSS-5")
    return constant(square, "LOSS-5", domain=f"outputs with ||h - y|| <= {radius:g} for each sample")


@statement("normscope", "Proposition LOSS-6")
def huber(outputs: int, *, batch: int = 1, reduction: str = "mean", delta: float = 1.0) -> Value:
    """Return the constant of Huber's loss: slopes up to ``delta``, so ``delta sqrt(n)`` for the sum over one sample.

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
