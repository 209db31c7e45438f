"""The spectral PAC-Bayes bound: a second evaluation, the coefficient, the perturbation it rests on."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from normscope.core.errors import InputError
from normscope.generalization import ChainLayer, neyshabur_bound


def _matrices() -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(3)
    return [torch.randn(b, a, generator=source, dtype=torch.float64) / 3 for a, b in ((6, 8), (8, 8), (8, 3))]


def test_second_evaluation() -> None:
    """In ordinary numbers; the coefficient of the divergence is 6517."""
    arrays = [a.numpy() for a in _matrices()]
    spectral = [np.linalg.norm(a, 2) for a in arrays]
    spread = sum((np.linalg.norm(a) / s) ** 2 for a, s in zip(arrays, spectral, strict=True))
    d, h, b, gamma, m, delta = 3, 8, 2.5, 0.3, 70_000, 0.05
    coefficient = 42**2 * math.e**2 / 2
    assert round(coefficient) == 6517
    divergence = coefficient * d**2 * b**2 * h * math.log(4 * d * h) * np.prod(spectral) ** 2 * spread / gamma**2
    expected = 4 * math.sqrt((divergence + math.log(6 * d * m ** (1 + 1 / (2 * d)) / delta)) / (m - 1))
    assert neyshabur_bound([ChainLayer.of(a) for a in _matrices()], b, gamma, m, delta).value == pytest.approx(expected)


def test_noise_of_the_proof_keeps_the_scores() -> None:
    """With the noise whose divergence it is, at least half of the draws move no score by a quarter of the margin."""
    matrices, source = _matrices(), torch.Generator().manual_seed(4)
    d, h, b, gamma = 3, 8, 1.0, 1.0
    scale = math.exp(math.fsum(ChainLayer.of(a).spectral for a in matrices) / d)
    even = [a * (scale / math.exp(ChainLayer.of(a).spectral)) for a in matrices]
    noise = gamma / (42 * d * b * scale ** (d - 1) * math.sqrt(h * math.log(4 * h * d)))
    x = torch.randn(6, 50, generator=source, dtype=torch.float64)
    x = x / x.norm(dim=0)

    def scores(layers: list[torch.Tensor]) -> torch.Tensor:
        return layers[2] @ torch.relu(layers[1] @ torch.relu(layers[0] @ x))

    kept = 0
    for _ in range(50):
        moved = [a + noise * torch.randn(a.shape, generator=source, dtype=torch.float64) for a in even]
        kept += bool((scores(moved) - scores(even)).abs().max() < gamma / 4)
    assert kept >= 25


def test_margin_and_scores_scale_together() -> None:
    """So gamma may be chosen after the fact."""
    a, b, c = _matrices()
    first = neyshabur_bound([ChainLayer.of(x) for x in (a, b, c)], 1.0, 1.0, 500, 0.1).value
    second = neyshabur_bound([ChainLayer.of(x) for x in (a * 4, b, c * 2)], 1.0, 8.0, 500, 0.1).value
    assert first == pytest.approx(second, rel=1e-9)


def test_refused() -> None:
    """No radius, no margin."""
    for radius, margin in ((0.0, 1.0), (1.0, 0.0)):
        with pytest.raises(InputError):
            neyshabur_bound([ChainLayer.of(torch.eye(2))], radius, margin, 10, 0.1)
