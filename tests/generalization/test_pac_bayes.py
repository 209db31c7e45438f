"""PAC-Bayes: the printed bound is above the cited one, which holds on a problem of known gaps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import rel_entr
from scipy.stats import binom
from torch.distributions import Normal, kl_divergence

from normscope.core.errors import InputError
from normscope.generalization import (
    averaged_loss,
    binary_kl,
    gaussian_divergence,
    inverse_kl,
    pac_bayes_bound,
    pac_bayes_kl,
    pac_bayes_lambda,
    pac_bayes_printed,
    pac_bayes_quadratic,
    relative_divergence,
)


@pytest.mark.parametrize("samples", [8, 100, 10**6])
@pytest.mark.parametrize("divergence", [0.0, 3.0, 100.0])
def test_printed_is_implied(samples: int, divergence: float) -> None:
    """From eight samples on."""
    assert pac_bayes_bound(divergence, samples, 0.05).value <= pac_bayes_printed(divergence, samples, 0.05).value


def test_on_coins() -> None:
    """Fifty coins as models, the posterior on the luckiest: the gap exceeds the bound less often than delta."""
    p, m, delta, source = 0.5, 40, 0.1, torch.Generator().manual_seed(0)
    bound = pac_bayes_bound(math.log(50), m, delta).value  # all mass on one of fifty, prior uniform
    rates = torch.binomial(torch.full((2000, 50), float(m)), torch.full((2000, 50), p), generator=source) / m
    gaps = p - rates.min(1)[0]
    assert float((gaps > bound).float().mean()) <= delta
    assert float(gaps.mean()) > 0.3 * bound  # the bound is not idle


def test_refused() -> None:
    """Negative divergences, few samples."""
    with pytest.raises(InputError, match="divergence"):
        pac_bayes_bound(-1.0, 10, 0.1)
    with pytest.raises(InputError, match="at least 8 samples"):
        pac_bayes_printed(1.0, 7, 0.1)


@pytest.mark.parametrize("loss", [0.0, 0.028, 0.3])
@pytest.mark.parametrize("divergence", [0.0, 50.0, 5144.0])
def test_inversions_are_ordered(loss: float, divergence: float) -> None:
    """Kl is the tightest; the best lambda is the quadratic one; any other lambda is no better."""
    at = (loss, divergence, 55_000, 0.025)
    kl, quadratic, best = (f(*at).value for f in (pac_bayes_kl, pac_bayes_quadratic, pac_bayes_lambda))
    assert kl <= quadratic * (1 + 1e-9)
    assert kl <= loss + pac_bayes_bound(divergence, 55_000, 0.025).value + 1e-12
    assert best == pytest.approx(quadratic, rel=1e-9)
    assert all(pac_bayes_lambda(*at, weight=w).value >= best * (1 - 1e-12) for w in (0.1, 0.7, 1.5))


def test_known_certificate() -> None:
    """KL 5144, 55,000 samples, training error 0.028 of the randomized network, delta 0.025: 0.1607, published 0.161."""
    found = pac_bayes_kl(0.028, 5144, 55_000, 0.025).value
    assert found == pytest.approx(0.1607, abs=5e-5)
    budget = (5144 + math.log(2 * math.sqrt(55_000) / 0.025)) / 55_000
    assert rel_entr(0.028, found) + rel_entr(0.972, 1 - found) == pytest.approx(budget, rel=1e-9)


def test_average_over_draws() -> None:
    """The limit fails for at most delta of the outcomes, summed exactly."""
    limits = np.array([averaged_loss(k / 50, 50, 0.1) for k in range(51)])
    assert binom.pmf(np.arange(51), 50, 0.2)[limits < 0.2].sum() <= 0.1


def test_divergence_of_gaussians() -> None:
    """As torch computes it for the prior that was chosen, and no worse than its neighbours on the grid."""
    sizes, distances, noises = [300, 20], [7.0, 0.5], [0.1, 0.3]
    found, price = gaussian_divergence(sizes, distances, noises)
    expected = 0.0
    for n, r, s in zip(sizes, distances, noises, strict=True):
        spread = 2.0 ** math.ceil(math.log2(s * s + r * r / n))
        mean = torch.full((n,), r / math.sqrt(n), dtype=torch.float64)
        posterior = Normal(mean, torch.full((n,), s, dtype=torch.float64))
        prior = Normal(torch.zeros(n, dtype=torch.float64), math.sqrt(spread) * torch.ones(n, dtype=torch.float64))
        expected += float(kl_divergence(posterior, prior).sum())
    assert found == pytest.approx(expected, rel=1e-6)
    assert price > 0
    rescaled = gaussian_divergence(sizes, [7.0 * 16, 0.5], [0.1 * 16, 0.3])[0]
    assert rescaled == pytest.approx(found, rel=1e-6)


def test_refused_weights_and_blocks() -> None:
    """A lambda outside (0, 2), noise of zero."""
    with pytest.raises(InputError, match="between 0 and 2"):
        pac_bayes_lambda(0.1, 1.0, 100, 0.1, weight=2.0)
    with pytest.raises(InputError, match="positive noise"):
        gaussian_divergence([3], [1.0], [0.0])


def test_divergence_of_a_trained_posterior() -> None:
    """Against torch's own, for weights with a mean, a spread and noise of their own."""
    source = torch.Generator().manual_seed(0)
    w, t, a, b = (torch.randn(50, generator=source, dtype=torch.float64) for _ in range(4))
    t = t.abs() + 0.1
    expected = kl_divergence(Normal(w + t * a, t * b.exp()), Normal(w, t)).sum()
    assert float(relative_divergence(a, b)) == pytest.approx(float(expected), rel=1e-12)
    assert float(relative_divergence(0 * a, 0 * b)) == 0


def test_prior_from_a_part_of_the_data() -> None:
    """Coins: a prior on the luckiest of one half holds for the other half, and fails if the same half is used twice."""
    p, m, delta, rounds, source = 0.5, 40, 0.1, 400, torch.Generator().manual_seed(0)
    rates = torch.binomial(torch.full((2, rounds, 2000), float(m)), torch.tensor(p), generator=source) / m
    best = rates[0].argmin(1, keepdim=True)
    bound = pac_bayes_bound(0.0, m, delta).value  # the posterior is the prior
    honest, twice = ((p - r.gather(1, best)[:, 0] > bound).double().mean() for r in (rates[1], rates[0]))
    assert float(honest) <= delta
    assert float(twice) > 0.5


@pytest.mark.parametrize("q", [0.0, 0.03, 0.5, 1.0])
@pytest.mark.parametrize("p", [0.01, 0.4, 0.99])
def test_divergence(q: float, p: float) -> None:
    """As scipy sums it."""
    assert binary_kl(q, p) == pytest.approx(float(rel_entr(q, p) + rel_entr(1 - q, 1 - p)), abs=1e-14)


@pytest.mark.parametrize("q", [0.0, 1e-4, 0.3, 0.9])
@pytest.mark.parametrize("budget", [1e-6, 0.01, 0.5])
def test_inverse(q: float, budget: float) -> None:
    """The root, from above."""
    root = brentq(lambda p: binary_kl(q, p) - budget, max(q, 1e-300), 1 - 1e-15, xtol=1e-15)
    found = inverse_kl(q, budget)
    assert root * (1 - 1e-9) <= found <= root * (1 + 1e-6) + 1e-9
    assert binary_kl(q, found) >= budget * (1 - 1e-9) or found == 1.0


def test_ends() -> None:
    """No budget moves nothing, an endless one allows everything; kl(0 || p) has a closed form."""
    assert inverse_kl(0.2, 0.0) == pytest.approx(0.2)
    assert inverse_kl(0.2, math.inf) == inverse_kl(1.0, 0.1) == 1.0
    assert inverse_kl(0.0, 0.3) == pytest.approx(1 - math.exp(-0.3), rel=1e-9)
    for q, c in ((-0.1, 0.1), (0.5, -1.0), (math.nan, 1.0)):
        with pytest.raises(InputError):
            inverse_kl(q, c)
    with pytest.raises(InputError):
        binary_kl(2.0, 0.5)
