"""Clopper and Pearson: the binomial tail at the limit is delta, and the limit fails as often as it may."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from normscope.core.errors import InputError
from normscope.core.value import Kind
from normscope.generalization import clopper_pearson, held_out_local_term


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


TWO = torch.tensor([0, 0, 1])


def test_against_a_loop() -> None:
    """Two cells with samples and inputs, one without inputs, a part of the samples looked at."""
    source = torch.Generator().manual_seed(0)
    cell, other = torch.tensor([0, 0, 1, 2] * 5), torch.tensor([0, 1, 1, 1] * 5)
    counts, largest = torch.tensor([50, 30, 20]), torch.tensor([0.5, 0.2, 1.0], dtype=torch.float64)
    v = torch.rand(20, 20, generator=source, dtype=torch.float64) * largest[cell][:, None] / 4
    expected = 0.0
    for i in range(3):
        pairs = [float(v[a, b]) for a in range(20) for b in range(20) if cell[a] == i == other[b]]
        expected += int(counts[i]) / 100 * (sum(pairs) / len(pairs) if pairs else float(largest[i]))
    part = math.log(2 / 0.9) / 2
    inside = ((0.5 * 0.5) ** 2 / 5 + (0.3 * 0.2) ** 2 / 15, (0.5 * 0.5) ** 2 / 10 + (0.3 * 0.2) ** 2 / 5)
    expected += sum(math.sqrt(part * s) for s in inside)
    most = 0.5 * 0.5 + 0.3 * 0.2 + 0.2
    assert expected < most
    assert held_out_local_term(v, cell, other, counts, largest, 0.9).value == pytest.approx(expected, rel=1e-9)
    assert held_out_local_term(v[:, :0], cell, other[:0], counts, largest, 0.9).value == pytest.approx(most)


@pytest.mark.parametrize("looked", [30, 60])
def test_not_below_the_truth_more_often_than_allowed(looked: int) -> None:
    """Uniform inputs on [0, 1], loss with constant one, three cells: the true term is an integral."""
    delta, below, rounds = 0.2, 0, 200
    source = torch.Generator().manual_seed(3)
    for _ in range(rounds):
        x, u = (torch.rand(n, generator=source, dtype=torch.float64) for n in (60, 40))
        cells = [(t * 3).long().clamp_max(2) for t in (x, u)]
        low = cells[0] / 3
        inside = x - low  # E |X - s| for X uniform on a cell of width 1/3
        truth = float((1.5 * (inside.square() + (1 / 3 - inside).square())).mean())
        v = (x[:looked, None] - u[None, :]).abs().clamp_max(1 / 3)
        counts = torch.bincount(cells[0], minlength=3)
        found = held_out_local_term(v, cells[0][:looked], cells[1], counts, torch.full((3,), 1 / 3), delta).value
        assert found <= 1 / 3 + 1e-9
        below += found < truth
    assert below <= rounds * delta


def test_distances_refused() -> None:
    """Wrong shapes, more than the largest, a delta that is none."""
    v, counts, largest = torch.zeros(3, 2), torch.tensor([2, 1]), torch.ones(2)
    for args in (
        (v.T, TWO, TWO[1:], counts, largest, 0.1),
        (v + 2, TWO, TWO[1:], counts, largest, 0.1),
        (v, TWO, TWO[1:], counts, largest[:1], 0.1),
        (v, TWO, TWO[1:], counts, largest, 1.5),
    ):
        with pytest.raises(InputError):
            held_out_local_term(*args)
