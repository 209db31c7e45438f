"""Printed bounds: each against its formula by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from normscope.core.errors import InputError
from normscope.core.value import Kind, Value
from normscope.generalization import (
    hou_bound,
    lyu_bound,
    pac_bayes_bound,
    path_norm_bound,
    than_phan_bound,
    weight_norm_rates,
)


def test_terms() -> None:
    """By hand, for a constant below and above one."""
    for constant in (0.1, 20.0):
        expected = 13 * max(1, constant) + 30 * constant * math.sqrt(math.log(80) / 5000) + math.sqrt(100 / 5000)
        found = hou_bound(math.log(13), math.log(30), math.log(constant), 100, 5000, 0.05)
        assert found.value == pytest.approx(expected)
        assert found.kind is Kind.PRINTED


def test_never_below_the_mean_distance() -> None:
    """13 on CIFAR-10 in pixels: vacuous for any network, a constant one too."""
    assert hou_bound(math.log(13), math.log(30), -100.0, 100, 10**9, 0.05).value >= 13


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


def test_known_value() -> None:
    """25 cells, 50,000 samples, the paper's own settings: 0.5365 as it was first measured; a printed number."""
    counts = np.random.default_rng(0).multinomial(50_000, [1 / 25] * 25)
    found = than_phan_bound(counts.tolist())
    assert found.value == pytest.approx(0.5365, abs=2e-4)
    assert found.kind is Kind.PRINTED


def test_memorizer_breaks_it() -> None:
    """A model that is right exactly on its samples has training error 0 and error 1: 20 violations in 20 draws."""
    source = np.random.default_rng(1)
    gap = 1.0
    assert all(than_phan_bound(source.multinomial(50_000, [1 / 25] * 25).tolist()).value < gap for _ in range(20))


_RESNET18 = {"depth": 18, "kernel": 9, "inputs": 3 * 224**2, "outputs": 1000, "poolings": 1}


def test_known_factor() -> None:
    """ResNet-18 on ImageNet: 0.088 in front of the path norm; in the log domain no norm is too large."""
    one = path_norm_bound(0.0, **_RESNET18, largest=2.64, samples=1_281_167)
    assert one.value == pytest.approx(0.088, abs=5e-4)
    huge = path_norm_bound(3000.0, **_RESNET18, largest=2.64, samples=1_281_167)
    assert huge.log - one.log == pytest.approx(3000.0)
    assert huge.kind is Kind.PRINTED


def test_second_evaluation() -> None:
    """Without pooling: ``D ln(3 K) + ln(3 (d_in + 1) d_out)``."""
    expected = 4 * 2 * math.sqrt((5 * math.log(3 * 9) + math.log(3 * 11 * 4)) / 100) * 7
    found = path_norm_bound(math.log(7), depth=5, kernel=9, inputs=10, outputs=4, largest=2, samples=100)
    assert found.value == pytest.approx(expected)


def test_refused() -> None:
    """No depth."""
    with pytest.raises(InputError):
        path_norm_bound(0.0, depth=0, kernel=1, inputs=1, outputs=1, largest=1.0, samples=1)


def test_product_over_root() -> None:
    """In the log domain, and printed: an order is no bound."""
    rate = weight_norm_rates([Value.of(1e3, Kind.CERTIFIED)] * 200, 10**4)
    assert rate.log10 == pytest.approx(598.0)
    assert rate.kind is Kind.PRINTED
    assert rate.assumptions


def test_no_sample() -> None:
    """No sample."""
    with pytest.raises(InputError, match="at least one sample"):
        weight_norm_rates([], 0)
