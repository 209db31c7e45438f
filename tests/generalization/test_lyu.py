"""The bound of Lyu et al. made explicit: the divergence by torch, known numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from normscope.generalization import lyu_bound, pac_bayes_bound


def test_is_a_pac_bayes_bound() -> None:
    """With the divergence of two Gaussians as torch computes it, at ``||W|| = 1``."""
    n, mu = 400, 0.3
    w = torch.full((n,), 1 / math.sqrt(n), dtype=torch.float64)
    spread = torch.full((n,), mu / math.sqrt(n), dtype=torch.float64)
    divergence = float(kl_divergence(Normal(w, spread), Normal(torch.zeros_like(w), spread)).sum())
    expected = 5.0 * mu**2 / 2 + pac_bayes_bound(divergence, 1000, 0.05).value
    assert lyu_bound(n, mu, 5.0, 1000, 0.05).value == pytest.approx(expected)


def test_known_numbers() -> None:
    """Eleven million parameters, 50,000 samples: 7.4 at mu = 1, 74 at mu = 0.1."""
    assert lyu_bound(11_000_000, 1.0, 0.0, 50_000, 0.05).value == pytest.approx(7.4, abs=0.05)
    assert lyu_bound(11_000_000, 0.1, 0.0, 50_000, 0.05).value == pytest.approx(74, abs=0.5)
