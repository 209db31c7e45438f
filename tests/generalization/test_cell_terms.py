"""The terms of Theorem 20: order among them, and what they must exceed, measured on multinomial counts."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.core.errors import InputError
from normscope.core.value import Kind
from normscope.generalization import g_paper, g_tight, g_total_variation

CASES = [(1, 2, 10), (5, 10, 100), (40, 50, 400), (200, 1000, 1000), (3, 1000, 5000)]


@pytest.mark.parametrize(("occupied", "cells", "samples"), CASES)
@pytest.mark.parametrize("delta", [0.5, 0.05, 1e-6])
def test_the_tight_term_is_below_the_printed_one(occupied: int, cells: int, samples: int, delta: float) -> None:
    """By a factor of 1.7 at least; both with their probability."""
    paper, tight = (g(2.0, occupied, cells, samples, delta) for g in (g_paper, g_tight))
    assert tight.value < paper.value / 1.7
    assert (tight.kind, tight.delta) == (Kind.PROBABILISTIC, delta)


@pytest.mark.parametrize("shape", ["even", "skewed", "sparse"])
@pytest.mark.parametrize(("cells", "samples"), [(4, 30), (20, 60), (100, 50)])
def test_deviations_of_counts_stay_below(shape: str, cells: int, samples: int) -> None:
    """``sum_T (p^ - p)_+`` and the total variation exceed their terms less often than delta, over 2000 draws."""
    delta, source = 0.2, torch.Generator().manual_seed(cells)
    p = torch.ones(cells, dtype=torch.float64)
    if shape == "skewed":
        p = 1.0 / torch.arange(1, cells + 1, dtype=torch.float64) ** 2
    elif shape == "sparse":
        p[3:] = 1e-4
    p = p / p.sum()
    draws = torch.multinomial(p, 2000 * samples, replacement=True, generator=source).reshape(2000, samples)
    failed = [0, 0]
    for draw in draws:
        counts = torch.bincount(draw, minlength=cells)
        excess = float((counts / samples - p).clamp_min(0).sum())  # equal to the total variation
        failed[0] += excess > g_tight(1.0, int((counts > 0).sum()), cells, samples, delta).value
        failed[1] += excess > g_total_variation(1.0, cells, samples, delta).value
    assert max(failed) <= delta * 2000 + 5 * math.sqrt(2000 * delta)


def test_known_numbers() -> None:
    """With as many occupied cells as samples the printed term is 29 C; few cells favour the other term."""
    assert g_paper(1.0, 1000, 1000, 1000, 0.05).value == pytest.approx(29.0, abs=0.5)
    assert g_total_variation(1.0, 10, 200, 0.1).value == pytest.approx(0.188, abs=0.002)
    assert g_paper(1.0, 10, 10, 200, 0.1).value == pytest.approx(1.77, abs=0.02)


def test_wrong_arguments() -> None:
    """An unbounded loss, more occupied cells than samples, no probability."""
    with pytest.raises(InputError, match="finite C, got inf"):
        g_tight(math.inf, 1, 2, 3, 0.1)
    for occupied in (0, 4, 11):
        with pytest.raises(InputError, match="occupied cells"):
            g_paper(1.0, occupied, 10, 3, 0.1)
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(InputError, match="between 0 and 1"):
            g_total_variation(1.0, 10, 3, delta)
