"""The terms of Theorem 20: order among them, and what they must exceed, measured on multinomial counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from normscope.core.errors import InputError
from normscope.core.value import Kind
from normscope.generalization import (
    g_multinomial,
    g_paper,
    g_tight,
    g_total_variation,
)

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
    with pytest.raises(InputError, match="bounded loss, got a largest loss of inf"):
        g_tight(math.inf, 1, 2, 3, 0.1)
    for occupied in (0, 4, 11):
        with pytest.raises(InputError, match="occupied cells"):
            g_paper(1.0, occupied, 10, 3, 0.1)
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(InputError, match="between 0 and 1"):
            g_total_variation(1.0, 10, 3, delta)


@pytest.mark.parametrize(
    ("samples", "cells", "printed", "multinomial"),
    [
        (50_000, 10, 0.086, 0.010),
        (50_000, 100, 0.344, 0.027),
        (50_000, 1000, 1.54, 0.083),
        (50_000, 10_000, 9.04, 0.263),
        (1_281_167, 100, 0.063, 0.0053),
        (1_281_167, 1000, 0.236, 0.0165),
    ],
)
def test_table_of_terms(samples: int, cells: int, printed: float, multinomial: float) -> None:
    """A table worked out apart from this code, delta = 0.05, every cell occupied."""
    assert g_paper(1.0, cells, cells, samples, 0.05).value == pytest.approx(printed, rel=0.01)
    assert g_multinomial(1.0, cells, samples, 0.05).value == pytest.approx(multinomial, rel=0.02)


def test_multinomial_term_holds() -> None:
    """The total variation of 20 cells and 200 samples exceeds it in at most a tenth of 2000 draws."""
    source = np.random.default_rng(0)
    p = source.dirichlet(np.ones(20))
    apart = 0.5 * np.abs(source.multinomial(200, p, size=2000) / 200 - p).sum(1)
    assert (apart > g_multinomial(1.0, 20, 200, 0.1).value).mean() <= 0.1
