"""PAC-Bayes bounds on the average gap over a posterior, and the divergence of Bernoulli distributions they invert."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.rounding import up
from normscope.core.statement import statement
from normscope.core.value import Kind, Value
from normscope.generalization.union_bound import rounded_up

_ASSUMED = ("losses between 0 and 1", "a prior chosen before the data")


@statement("than2025slides", "PAC-Bayes", holds="printed; implied by the bound below for m >= 8")
def pac_bayes_printed(divergence: float, samples: int, delta: float) -> Value:
    """Return ``sqrt((KL + log(m/delta))/(2 m - 1))``, as the slides print it.

    >>> round(pac_bayes_printed(5.0, 1000, 0.05).value, 5)
    0.08635
    """
    _check(divergence, samples, delta)
    size = math.sqrt((divergence + math.log(samples / delta)) / (2 * samples - 1))
    return Value.of(size, Kind.PRINTED, statement="than2025slides PAC-Bayes", delta=delta)


@statement(
    "normscope", "Proposition GEN-6", holds="cited (Maurer 2004); losses in [0, 1], m >= 8, prior before the data"
)
def pac_bayes_bound(divergence: float, samples: int, delta: float) -> Value:
    """Return ``sqrt((KL + log(2 sqrt(m)/delta))/(2 m))``, a bound on the average gap over a posterior.

    Args:
        divergence: ``KL(posterior || prior)``, the prior chosen before the data.
        samples: ``m >= 8``.
        delta: failure probability.

    >>> round(pac_bayes_bound(5.0, 1000, 0.05).value, 5)
    0.07792
    """
    _check(divergence, samples, delta)
    size = up(math.sqrt(_budget(divergence, samples, delta) / (2 * samples)), 32.0)
    return Value.of(
        size, Kind.PROBABILISTIC, statement="normscope Proposition GEN-6", assumptions=_ASSUMED, delta=delta
    )


@statement("maurer2004", "Theorem 5", holds="losses in [0, 1], m >= 8, prior before the data")
def pac_bayes_kl(loss: float, divergence: float, samples: int, delta: float) -> Value:
    """Return the largest ``p`` with ``kl(loss || p) <= (KL + ln(2 sqrt(m)/delta))/m``, a bound on the average risk.

    Args:
        loss: average training loss over the posterior, or an upper bound of it.
        divergence: ``KL(posterior || prior)``.
        samples: ``m >= 8``.
        delta: failure probability.

    >>> round(pac_bayes_kl(0.028, 5144, 55_000, 0.025).value, 4)
    0.1607
    """
    _check(divergence, samples, delta)
    return _risk(inverse_kl(loss, _budget(divergence, samples, delta) / samples), "maurer2004 Theorem 5", delta)


@statement("normscope", "Proposition GEN-14", holds="as the kl bound, by kl(q || p) >= (p - q)^2/(2 p)")
def pac_bayes_quadratic(loss: float, divergence: float, samples: int, delta: float) -> Value:
    """Return ``(sqrt(loss + q) + sqrt(q))^2`` with ``q = (KL + ln(2 sqrt(m)/delta))/(2 m)``.

    >>> round(pac_bayes_quadratic(0.028, 5144, 55_000, 0.025).value, 4)
    0.2401
    """
    _check(divergence, samples, delta)
    q = _budget(divergence, samples, delta) / (2 * samples)
    return _risk(up((math.sqrt(loss + q) + math.sqrt(q)) ** 2, 32.0), "normscope Proposition GEN-14", delta)


@statement("normscope", "Proposition GEN-14", holds="as the kl bound, for all lambda in (0, 2) at once")
def pac_bayes_lambda(loss: float, divergence: float, samples: int, delta: float, weight: float | None = None) -> Value:
    """Return ``loss/(1 - l/2) + (KL + ln(2 sqrt(m)/delta))/(m l (1 - l/2))``, at the best ``l`` if none is given.

    The best is ``l = 2/(sqrt(2 m loss/c + 1) + 1)`` with ``c = KL + ln(2 sqrt(m)/delta)``, and then the bound is the
    quadratic one.

    >>> round(pac_bayes_lambda(0.028, 5144, 55_000, 0.025).value, 4)
    0.2401
    """
    _check(divergence, samples, delta)
    budget = _budget(divergence, samples, delta)
    best = 2 / (math.sqrt(2 * samples * loss / budget + 1) + 1) if weight is None else weight
    if not 0 < best < 2:
        raise InputError(f"Expected a weight between 0 and 2, got {best}.")
    size = loss / (1 - best / 2) + budget / (samples * best * (1 - best / 2))
    return _risk(up(size, 64.0), "normscope Proposition GEN-14", delta)


@statement("normscope", "Proposition GEN-15", holds="independent draws from the posterior, each with a random sample")
def averaged_loss(mean: float, draws: int, delta: float) -> float:
    """Return an upper limit of the average loss over a posterior, from a mean over independent draws in [0, 1].

    ``kl(mean || loss) <= ln(1/delta)/n`` with probability ``1 - delta``, by the Chernoff bound.

    >>> round(averaged_loss(0.1, 1000, 0.01), 4)
    0.1312
    """
    return inverse_kl(mean, math.log(1 / delta) / draws)


@statement("normscope", "Proposition GEN-16", holds="posterior N(w, s^2 I), prior N(w0, t^2 I) in every block")
def gaussian_divergence(
    sizes: Sequence[int], distances: Sequence[float], noises: Sequence[float]
) -> tuple[float, float]:
    """Return ``KL(posterior || prior)`` with the best prior spread of each block on a grid, and the price of the grid.

    A block of ``n`` weights at distance ``r`` from the prior mean, noise ``s``, has ``(n/2)(s^2/t^2 - 1 + ln(t^2/s^2))
    + r^2/(2 t^2)``, least at ``t^2 = s^2 + r^2/n``, which is rounded up to a power of two: with ``s`` proportional to
    the root mean square of the block the sum does not change when a block is rescaled.

    Args:
        sizes: ``n`` of each block.
        distances: ``r`` of each block.
        noises: ``s`` of each block, positive.

    Returns:
        The divergence, and what is added to ``ln(1/delta)`` for the choice of the prior.

    >>> round(gaussian_divergence([100], [0.0], [1.0])[0], 6)
    0.0
    """
    divergence, price = 0.0, 0.0
    for n, r, s in zip(sizes, distances, noises, strict=True):
        if n < 1 or not s > 0:
            raise InputError(f"Expected blocks of weights with positive noise, got {n} weights with noise {s}.")
        spread = rounded_up(math.log(s * s + r * r / n))
        ratio = math.exp(2 * math.log(s) - spread.log)
        divergence += 0.5 * n * (ratio - 1 - math.log(ratio)) + 0.5 * r * r * math.exp(-spread.log)
        price += spread.price
    return max(0.0, divergence), price


@statement("normscope", "Proposition GEN-22", holds="a prior chosen with other samples than those of the bound")
def relative_divergence(moved: Tensor, log_noise: Tensor) -> Tensor:
    r"""Return ``KL(posterior || prior)`` of ``w_0 + t (a + e^b z)``, ``z`` normal; the prior has ``a = b = 0``.

    .. math:: \frac12 \sum_j \big(e^{2 b_j} - 1 - 2 b_j + a_j^2\big)

    The means ``w_0`` and spreads ``t`` of the prior may be learnt from samples that are not used in the bound.

    Args:
        moved: ``a``, how far the means went, in units of the spreads.
        log_noise: ``b``.

    >>> import torch
    >>> float(relative_divergence(torch.tensor([2.0]), torch.tensor([0.0])))
    2.0
    """
    return 0.5 * (torch.expm1(2 * log_noise) - 2 * log_noise + moved.square()).sum()


def _budget(divergence: float, samples: int, delta: float) -> float:
    """Return ``KL + ln(2 sqrt(m)/delta)``."""
    return divergence + math.log(2 * math.sqrt(samples) / delta)


def _risk(x: float, statement: str, delta: float) -> Value:
    """Return a bound on the average risk over a posterior."""
    assumed = (*_ASSUMED, "of the randomized network")
    return Value.of(x, Kind.PROBABILISTIC, statement=statement, assumptions=assumed, delta=delta)


def _check(divergence: float, samples: int, delta: float) -> None:
    if not (math.isfinite(divergence) and divergence >= 0):
        raise InputError(f"Expected a finite non-negative divergence, got {divergence}.")
    if samples < 8 or not 0 < delta < 1:
        raise InputError(f"Expected at least 8 samples and a probability between 0 and 1, got {samples} and {delta}.")


@statement("normscope", "Proposition GEN-7", holds="0 <= q, p <= 1")
def binary_kl(q: float, p: float) -> float:
    r"""Return ``kl(q || p) = q ln(q/p) + (1 - q) ln((1 - q)/(1 - p))``.

    Raises:
        InputError: if a number is not between 0 and 1.

    >>> round(binary_kl(0.0, 0.5), 6), binary_kl(0.5, 1.0)
    (0.693147, inf)
    """
    if not (0 <= q <= 1 and 0 <= p <= 1):
        raise InputError(f"Expected two probabilities, got {q} and {p}.")
    if (p == 0 and q > 0) or (p == 1 and q < 1):
        return math.inf
    first = q * math.log(q / p) if q > 0 else 0.0
    return first + ((1 - q) * (math.log1p(-q) - math.log1p(-p)) if q < 1 else 0.0)


@statement("normscope", "Proposition GEN-7", holds="0 <= q <= 1, c >= 0; rounded up")
def inverse_kl(q: float, budget: float) -> float:
    r"""Return the largest ``p`` with ``kl(q || p) <= c``, rounded up: at least ``q``, at most 1.

    Bisection on ``[q, 1]``, where the divergence increases; the upper end is returned.

    Args:
        q: the share that was observed.
        budget: ``c``, at least zero.

    >>> round(inverse_kl(0.0, 0.693147), 4), inverse_kl(0.1, math.inf)
    (0.5, 1.0)
    """
    if not (0 <= q <= 1 and budget >= 0):
        raise InputError(f"Expected a share and a divergence >= 0, got {q} and {budget}.")
    if budget == math.inf:
        return 1.0
    low, high = q, 1.0
    while high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if binary_kl(q, middle) > budget else (middle, high)
    return min(1.0, high * (1 + 1e-12))
