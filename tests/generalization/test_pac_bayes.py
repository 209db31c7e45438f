"""PAC-Bayes: the printed bound is above the cited one, which holds on a problem of known gaps."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.core.errors import InputError
from normscope.generalization import pac_bayes_bound, pac_bayes_printed


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
