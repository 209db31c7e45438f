"""The divergence of two coins against scipy, its inverse against a root finder."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq
from scipy.special import rel_entr

from normscope.core.errors import InputError
from normscope.generalization import binary_kl, inverse_kl


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
