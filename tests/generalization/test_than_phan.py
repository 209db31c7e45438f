"""The published bound "without any modification" is broken by a model that memorizes, in every draw."""

from __future__ import annotations

import numpy as np
import pytest

from normscope.core.value import Kind
from normscope.generalization import than_phan_bound


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
