"""The spectral margin bound: a second evaluation in ordinary numbers, its prefactor, no move under rescaling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from normscope.core.errors import InputError
from normscope.generalization import ChainLayer, bartlett_bound, spectral_complexity


def _matrices(seed: int = 0) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(b, a, generator=source, dtype=torch.float64) for a, b in ((6, 5), (5, 4), (4, 3))]


def _parts(matrices: list[torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Return spectral norms and the ratios to them of the sums of row norms."""
    arrays = [a.numpy() for a in matrices]
    spectral = np.array([np.linalg.norm(a, 2) for a in arrays])
    return spectral, np.array([np.linalg.norm(a, axis=1).sum() for a in arrays]) / spectral


def test_complexity_as_the_paper_defines_it() -> None:
    """By numpy."""
    spectral, ratios = _parts(_matrices())
    expected = spectral.prod() * (ratios ** (2 / 3)).sum() ** 1.5
    assert math.exp(spectral_complexity([ChainLayer.of(a) for a in _matrices()])) == pytest.approx(expected)


def test_second_evaluation() -> None:
    """With every scale rounded up to a power of the root of two, and its price."""
    spectral, ratios = _parts(_matrices())
    n, gamma, inputs, delta = 3000, 0.4, 55.0, 0.05
    powers = [math.ceil(2 * math.log2(v)) for v in (spectral.prod() / gamma, *ratios)]
    q, *r = (2 ** (p / 2) for p in powers)
    weights = np.prod([1 / ((math.pi**2 / 3 - 1) * (1 + abs(p)) ** 2) for p in powers])
    size = q * sum(v ** (2 / 3) for v in r) ** 1.5
    expected = 8 / n**1.5 + 72 * math.log(n) * math.sqrt(math.log(2 * 36)) * inputs * size / n
    expected += 3 * math.sqrt(math.log(2 / (delta * weights)) / (2 * n))
    found = bartlett_bound([ChainLayer.of(a) for a in _matrices()], inputs, gamma, n, delta).value
    assert found == pytest.approx(expected, rel=1e-6)


def test_prefactor() -> None:
    """N = 50k, W = 3072, inputs of norm B: 14.3 B/gamma times the complexity."""
    n, width = 50_000, 3072
    assert 72 * math.log(n) * math.sqrt(math.log(2 * width**2)) / math.sqrt(n) == pytest.approx(14.3, abs=0.05)


def test_rescaling_between_layers_changes_nothing() -> None:
    """Nor does it when the scores and the margin are scaled together."""
    a, b, c = _matrices()
    first = bartlett_bound([ChainLayer.of(x) for x in (a, b, c)], 9.0, 1.0, 500, 0.1).value
    second = bartlett_bound([ChainLayer.of(x) for x in (a * 1e6, b * 1e-6, c * 8)], 9.0, 8.0, 500, 0.1).value
    assert first == pytest.approx(second, rel=1e-6)


def test_refused() -> None:
    """No margin, no layer."""
    with pytest.raises(InputError):
        bartlett_bound([], 1.0, 1.0, 10, 0.1)
    with pytest.raises(InputError):
        bartlett_bound([ChainLayer.of(torch.eye(2))], 1.0, 0.0, 10, 0.1)
