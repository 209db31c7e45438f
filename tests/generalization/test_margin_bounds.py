"""The norms of a layer, by numpy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from normscope.core.errors import InputError
from normscope.generalization import (
    ChainLayer,
    bartlett_bound,
    golowich_bound,
    neyshabur_bound,
    peeled_margin_bound,
    row_norm_bound,
    spectral_complexity,
)


def test_norms_of_a_matrix() -> None:
    """Spectral, Frobenius, the sum and the largest of the row norms."""
    matrix = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layer, a = ChainLayer.of(matrix, "fc"), matrix.numpy()
    rows = np.linalg.norm(a, axis=1)
    expected = (np.linalg.norm(a, 2), np.linalg.norm(a), rows.sum(), rows.max())
    found = (layer.spectral, layer.frobenius, layer.two_one, layer.row)
    assert np.exp(found) == pytest.approx(expected, rel=1e-10)
    assert (layer.width, layer.fan_in, layer.name) == (5, 7, "fc")
    assert all(np.exp(found) >= np.array(expected) * (1 - 1e-15))


def _chain(seed: int, *sizes: int) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(b, a, generator=source, dtype=torch.float64) for a, b in itertools.pairwise(sizes)]


def _layers(matrices: list[torch.Tensor]) -> list[ChainLayer]:
    return [ChainLayer.of(a) for a in matrices]


def _by_hand(scale: float, depth: int, classes: int, x: float, margin: float, m: int, delta: float) -> float:
    """Return the bound in ordinary arithmetic, the weights of the powers of two written out."""
    power = math.ceil(math.log2(scale / margin))
    weight = 1 / ((math.pi**2 / 3 - 1) * (1 + abs(power)) ** 2)
    first = 4 * 2**power * (math.sqrt(2 * math.log(2**depth * classes)) + 1) * x / m
    return first + 3 * math.sqrt(math.log(2 / (delta * weight)) / (2 * m))


def test_second_evaluation() -> None:
    """Frobenius norms and row norms, by numpy."""
    matrices = _chain(0, 6, 5, 4, 3)
    arrays = [a.numpy() for a in matrices]
    last = np.linalg.norm(arrays[-1], axis=1).sum()
    frobenius = np.prod([np.linalg.norm(a) for a in arrays[:-1]]) * last
    rows = np.prod([math.sqrt(len(a)) * np.linalg.norm(a, axis=1).max() for a in arrays[:-1]]) * last
    for bound, scale in ((golowich_bound, frobenius), (row_norm_bound, rows)):
        found = bound(_layers(matrices), 70.0, 0.7, 4000, 0.05).value
        assert found == pytest.approx(_by_hand(scale, 3, 3, 70.0, 0.7, 4000, 0.05), rel=1e-6)
    assert rows >= frobenius


def test_rescaling_between_layers_changes_nothing() -> None:
    """``(c A, B/c)`` is the same network."""
    a, b = _chain(1, 6, 5, 3)
    for bound in (golowich_bound, row_norm_bound):
        first, second = (bound(_layers(x), 9.0, 1.0, 500, 0.1).value for x in ([a, b], [a * 1e9, b * 1e-9]))
        assert first == pytest.approx(second, rel=1e-6)


def test_above_the_true_complexity_of_linear_scores() -> None:
    """One layer: ``E sup sum_i e_i w x_i = ||w|| E ||sum e_i x_i||``, and a bound on the gap is twice that or more."""
    source = torch.Generator().manual_seed(2)
    x = torch.randn(200, 8, generator=source, dtype=torch.float64)
    signs = torch.randint(0, 2, (4000, 200), generator=source).double() * 2 - 1
    true = 2 * float((signs @ x).norm(dim=1).mean()) / 200
    assert peeled_margin_bound(0.0, 1, 1, float(x.norm()), 1.0, 200, 0.05).value > true


def test_holds_for_random_labels() -> None:
    """The best linear classifier of random labels, sixty draws: the margin bound never fails at 10 %."""
    source, failures = np.random.default_rng(0), 0
    for _ in range(60):
        x, y = source.standard_normal((400, 5)), source.integers(0, 2, 400)
        w = np.linalg.lstsq(x, 2.0 * y - 1, rcond=None)[0]
        scores = np.stack([np.zeros(400), x @ w], 1)
        margins = (2 * y - 1) * (scores[:, 1] - scores[:, 0])
        layers = [ChainLayer.of(torch.tensor(np.stack([0 * w, w])))]
        gamma = 0.1
        gap = golowich_bound(layers, float(np.linalg.norm(x)), gamma, 400, 0.1).value
        failures += (margins <= gamma).mean() + gap < 0.5  # random labels: every classifier errs half the time
    assert failures == 0


def test_refused() -> None:
    """Margins and probabilities out of range."""
    with pytest.raises(InputError, match="margin"):
        peeled_margin_bound(0.0, 1, 1, 1.0, 0.0, 10, 0.1)
    with pytest.raises(InputError, match="delta"):
        peeled_margin_bound(0.0, 1, 1, 1.0, 1.0, 10, 1.0)


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


def test_second_evaluation_bartlett() -> None:
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


def test_rescaling_between_layers_changes_nothing_bartlett() -> None:
    """Nor does it when the scores and the margin are scaled together."""
    a, b, c = _matrices()
    first = bartlett_bound([ChainLayer.of(x) for x in (a, b, c)], 9.0, 1.0, 500, 0.1).value
    second = bartlett_bound([ChainLayer.of(x) for x in (a * 1e6, b * 1e-6, c * 8)], 9.0, 8.0, 500, 0.1).value
    assert first == pytest.approx(second, rel=1e-6)


def test_refused_bartlett() -> None:
    """No margin, no layer."""
    with pytest.raises(InputError):
        bartlett_bound([], 1.0, 1.0, 10, 0.1)
    with pytest.raises(InputError):
        bartlett_bound([ChainLayer.of(torch.eye(2))], 1.0, 0.0, 10, 0.1)


def _thirds() -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(3)
    return [torch.randn(b, a, generator=source, dtype=torch.float64) / 3 for a, b in ((6, 8), (8, 8), (8, 3))]


def test_second_evaluation_neyshabur() -> None:
    """In ordinary numbers; the coefficient of the divergence is 6517."""
    arrays = [a.numpy() for a in _thirds()]
    spectral = [np.linalg.norm(a, 2) for a in arrays]
    spread = sum((np.linalg.norm(a) / s) ** 2 for a, s in zip(arrays, spectral, strict=True))
    d, h, b, gamma, m, delta = 3, 8, 2.5, 0.3, 70_000, 0.05
    coefficient = 42**2 * math.e**2 / 2
    assert round(coefficient) == 6517
    divergence = coefficient * d**2 * b**2 * h * math.log(4 * d * h) * np.prod(spectral) ** 2 * spread / gamma**2
    expected = 4 * math.sqrt((divergence + math.log(6 * d * m ** (1 + 1 / (2 * d)) / delta)) / (m - 1))
    assert neyshabur_bound([ChainLayer.of(a) for a in _thirds()], b, gamma, m, delta).value == pytest.approx(expected)


def test_noise_of_the_proof_keeps_the_scores() -> None:
    """With the noise whose divergence it is, at least half of the draws move no score by a quarter of the margin."""
    matrices, source = _thirds(), torch.Generator().manual_seed(4)
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
    a, b, c = _thirds()
    first = neyshabur_bound([ChainLayer.of(x) for x in (a, b, c)], 1.0, 1.0, 500, 0.1).value
    second = neyshabur_bound([ChainLayer.of(x) for x in (a * 4, b, c * 2)], 1.0, 8.0, 500, 0.1).value
    assert first == pytest.approx(second, rel=1e-9)


def test_refused_neyshabur() -> None:
    """No radius, no margin."""
    for radius, margin in ((0.0, 1.0), (1.0, 0.0)):
        with pytest.raises(InputError):
            neyshabur_bound([ChainLayer.of(torch.eye(2))], radius, margin, 10, 0.1)
