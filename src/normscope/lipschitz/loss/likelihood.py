"""Negative log likelihood of given log-probabilities, and the Kullback-Leibler divergence from them: both linear.

The arguments are those of :func:`~normscope.lipschitz.loss.constants.loss_constant`.
"""

from collections.abc import Sequence
from fractions import Fraction

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.core.value import Value
from normscope.lipschitz.loss.reduction import (
    constant,
    per_output,
    positive_count,
    samplewise,
    unbounded,
    weighted_mean,
)

_NO_IGNORED = "no target equals ignore_index"
_PROBABILITIES = "targets are probabilities"


@statement("normscope", "Proposition LOSS-8")
def nll(
    outputs: int,
    *,
    batch: int = 1,
    reduction: str = "mean",
    weight: Sequence[float] | None = None,
    ignored: bool = False,
) -> Value:
    """Return the constant of ``-w_y h_y``, linear in the log-probabilities ``h``: the largest weight, or one.

    A softmax before it is not part of it: cross-entropy on logits is the two together. The mean is divided by the
    weights of the targets.

    >>> round(nll(10).value, 9), round(nll(10, batch=4).value, 9), round(nll(10, batch=4, ignored=True).value, 9)
    (1.0, 0.5, 1.0)
    """
    weights = per_output(weight, positive_count(outputs, "outputs"), "weight") or (Fraction(1),)
    if reduction == "mean":
        kept = (1, batch) if ignored else (batch,)
        square = max(weighted_mean(weights, lambda w: w**2, m) for m in kept)
    else:
        square = samplewise(max(weights) ** 2, batch, reduction)
    return constant(square, "LOSS-8", assumptions=() if ignored else (_NO_IGNORED,))


@statement("normscope", "Proposition LOSS-8", holds="targets that are probabilities")
def kl(outputs: int, *, batch: int = 1, reduction: str = "batchmean") -> Value:
    """Return the constant of ``sum_j t_j (log t_j - h_j)``, linear in the log-probabilities: ``max ||t|| = 1``.

    >>> round(kl(4).value, 9), round(kl(4, reduction="mean").value, 9)
    (1.0, 0.25)
    """
    n, m = positive_count(outputs, "outputs"), positive_count(batch, "batch")
    squares = {"batchmean": Fraction(1, m), "mean": Fraction(m, (m * n) ** 2), "sum": Fraction(m), "none": Fraction(1)}
    if reduction not in squares:
        raise InputError(f"Expected a reduction ({', '.join(squares)}), got {reduction!r}.")
    return constant(squares[reduction], "LOSS-8", assumptions=(_PROBABILITIES,))


@statement("normscope", "Proposition LOSS-15", holds="no constant on all outputs")
def poisson_nll(outputs: int) -> Value:
    """Return "no bound": the derivative of ``exp(h) - t h`` is ``exp(h) - t``, and that of ``h - t log h`` ``1 - t/h``.

    >>> poisson_nll(3).log
    inf
    """
    positive_count(outputs, "outputs")
    return unbounded(
        "the gradient of a Poisson likelihood grows with exp(h), or with 1/h: bound the outputs", "LOSS-15"
    )


@statement("normscope", "Proposition LOSS-15", holds="no constant on all outputs")
def gaussian_nll(outputs: int) -> Value:
    """Return "no bound": the derivative of ``(h - y)^2/(2 v)`` is ``(h - y)/v``, in the mean ``h`` of variance ``v``.

    >>> gaussian_nll(3).log
    inf
    """
    positive_count(outputs, "outputs")
    return unbounded("the gradient of a Gaussian likelihood grows with the error over the variance", "LOSS-15")
