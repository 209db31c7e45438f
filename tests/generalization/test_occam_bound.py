"""Occam's bound: known numbers, the weights of all codes, and that a network inherits it from a surrogate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from normscope.core.errors import InputError
from normscope.core.value import Kind, Value
from normscope.generalization import by_surrogate, clopper_pearson, code_divergence, occam


@pytest.mark.parametrize(
    ("bits", "error", "expected"),
    [(3_000, 0.15, 0.271), (10_000, 0.15, 0.390), (30_000, 0.10, 0.529), (100_000, 0.05, 0.809)],
)
def test_known_budget(bits: int, error: float, expected: float) -> None:
    """A table worked out apart from this code: 50,000 samples, delta 0.05."""
    assert occam(round(error * 50_000), 50_000, bits, 0.05).value == pytest.approx(expected, abs=2e-3)


def test_weights_of_all_codes_sum_to_at_most_one() -> None:
    """``2^b`` codes of each length ``b``."""
    whole = math.fsum(math.exp(b * math.log(2) - code_divergence(b)) for b in range(3000))
    assert 1 - 1e-3 < whole < 1


def test_above_the_exact_limit() -> None:
    """The Chernoff bound loses a little against Clopper and Pearson at the same price, never gains."""
    for errors in (0, 3, 40):
        exact = clopper_pearson(errors, 500, 0.05 * math.exp(-code_divergence(8))).value
        assert exact * (1 - 1e-9) <= occam(errors, 500, 8, 0.05).value <= 1.6 * exact


def test_best_of_many_classifiers() -> None:
    """The best of 256 coins on 100 samples: its bound fails in at most a tenth of 400 draws; without bits in most."""
    source = np.random.default_rng(1)
    best = binom.rvs(100, 0.5, size=(400, 256), random_state=source).min(1)
    assert np.mean([occam(int(k), 100, 8, 0.1).value < 0.5 for k in best]) <= 0.1
    assert np.mean([clopper_pearson(int(k), 100, 0.1).value < 0.5 for k in best]) > 0.9


def test_surrogate() -> None:
    """Both parts and both probabilities add up, and what was said of the compressed network is no longer said."""
    part = occam(100, 10_000, 200, 0.03)
    whole = by_surrogate(part, 50, 5_000, 0.02)
    assert whole.value == pytest.approx(part.value + clopper_pearson(50, 5_000, 0.02).value)
    assert whole.delta == pytest.approx(0.05)
    assert whole.kind is Kind.PROBABILISTIC
    assert "of the compressed network" in part.assumptions
    assert "of the compressed network" not in whole.assumptions
    printed = by_surrogate(Value.of(0.1, Kind.PRINTED), 0, 10, 0.1)
    assert printed.kind is Kind.PRINTED


def test_refused() -> None:
    """Fewer than no bits; more errors than samples."""
    with pytest.raises(InputError):
        code_divergence(-1)
    with pytest.raises(InputError):
        occam(11, 10, 1, 0.1)
