"""Likelihoods of counts and of Gaussians: their derivatives grow without bound, so they have no constant."""

from __future__ import annotations

from normscope.core.statement import statement
from normscope.core.value import Value
from normscope.lipschitz.loss.reduction import positive_count, unbounded


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
