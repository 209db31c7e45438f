"""Margin bounds by peeling: a second evaluation, a class of known complexity, no move under rescaling."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from normscope.core.errors import InputError
from normscope.generalization import (
    ChainLayer,
    golowich_bound,
    peeled_margin_bound,
    row_norm_bound,
)


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
