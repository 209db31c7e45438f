"""Contests of maps against dense norms."""

from __future__ import annotations

import pytest
import torch

from normscope.linalg.tightest_relaxation import least_norm, with_noise
from normscope.operators.linear_map import LinearMap


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return seeded Gaussian numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_least_wins_and_its_estimate_is_from_below() -> None:
    """Of maps with norms apart, tall and wide, the winner is the least one."""
    matrices = [random(20, 30, seed=i) * scale for i, scale in enumerate((3.0, 1.0, 2.0))]
    norms = [float(torch.linalg.matrix_norm(A, 2)) for A in matrices]
    estimate, winner = least_norm(((LinearMap.from_matrix(A), torch.ones(20)) for A in matrices), max_steps=20)
    assert winner == 1
    assert 0.99 * min(norms) <= estimate <= min(norms) * (1 + 1e-12)


def test_the_first_small_enough_ends_the_contest() -> None:
    """Later maps are not even made."""
    made = []

    def contestants() -> object:
        for scale in (1.0, 0.5, 0.1):
            made.append(scale)
            yield LinearMap.from_matrix(random(8, 8) * scale), torch.ones(8)

    _, winner = least_norm(contestants(), enough=0.6 * float(torch.linalg.matrix_norm(random(8, 8), 2)))  # type: ignore[arg-type]
    assert (winner, made) == (1, [1.0, 0.5])


def test_starts_are_laid_in_and_cut() -> None:
    """A start of another size is fitted: the estimate is that of the map all the same."""
    A = random(12, 12)
    norm = float(torch.linalg.matrix_norm(A, 2))
    for length in (5, 12, 20):
        estimate, _ = least_norm([(LinearMap.from_matrix(A), torch.ones(length))], max_steps=12)
        assert estimate == pytest.approx(norm, rel=1e-6)


def test_noise_is_half_as_long_and_repeatable() -> None:
    """The same seed gives the same noise, of about half the length of the vector."""
    unit = torch.zeros(4000, dtype=torch.float64)
    unit[0] = 1.0
    noisy = with_noise(unit, 3)
    assert torch.equal(noisy, with_noise(unit, 3))
    assert float((noisy - unit).norm()) == pytest.approx(0.5, rel=0.05)
