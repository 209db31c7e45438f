"""Clopper and Pearson: the binomial tail at the limit is delta, and the limit fails as often as it may."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from normscope.core.errors import InputError
from normscope.core.value import Kind
from normscope.generalization import clopper_pearson


@pytest.mark.parametrize(("errors", "samples"), [(0, 10), (3, 50), (600, 10_000), (49, 50)])
@pytest.mark.parametrize("delta", [0.05, 1e-6])
def test_tail_at_the_limit_is_delta(errors: int, samples: int, delta: float) -> None:
    """By the cumulative binomial distribution, which the formula does not use."""
    limit = clopper_pearson(errors, samples, delta)
    tail = float(binom.cdf(errors, samples, limit.value))
    assert 0.99 * delta <= tail <= delta * (1 + 1e-6)
    assert (limit.kind, limit.delta) == (Kind.PROBABILISTIC, delta)


def test_known_number() -> None:
    """6.00 % of 10,000 give 6.41 % at 95 %."""
    assert clopper_pearson(600, 10_000, 0.05).value == pytest.approx(0.0641, abs=5e-5)
    assert clopper_pearson(5, 5, 0.05).value == 1.0


@pytest.mark.parametrize("error", [0.01, 0.3])
def test_coverage_is_exact(error: float) -> None:
    """The probability of a limit below the true error, summed over all outcomes, is at most delta."""
    limits = np.array([clopper_pearson(k, 40, 0.1).value for k in range(41)])
    assert binom.pmf(np.arange(41), 40, error)[limits < error].sum() <= 0.1


@pytest.mark.parametrize(("errors", "samples", "delta"), [(-1, 5, 0.1), (6, 5, 0.1), (0, 0, 0.1), (1, 5, 0.0)])
def test_refused(errors: int, samples: int, delta: float) -> None:
    """Numbers out of range."""
    with pytest.raises(InputError, match="Expected"):
        clopper_pearson(errors, samples, delta)
