"""The terms of Theorem 20: order among them, and what they must exceed, measured on multinomial counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from normscope.core.errors import InputError
from normscope.core.value import Kind
from normscope.generalization import (
    cell_constants,
    flat_cells,
    g_multinomial,
    g_paper,
    g_tight,
    g_total_variation,
    ramp_loss,
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


@pytest.mark.parametrize("gamma", [0.05, 0.5])
def test_no_pair_exceeds_it(gamma: float) -> None:
    """A margin ``K sin(x)`` on cells of width 0.2: differences of the ramp over all pairs of a fine mesh."""
    constant, radius = 2.0, 0.1
    centres = torch.arange(40, dtype=torch.float64) * 0.2 + 0.1
    found = cell_constants(constant * centres.sin(), constant, radius, gamma)
    for centre, local in zip(centres, found, strict=True):
        x = torch.linspace(float(centre) - radius, float(centre) + radius, 201, dtype=torch.float64)
        f = ramp_loss(constant * x.sin(), gamma)
        assert float(f.max() - f.min()) <= float(local) * 2 * radius + 1e-12
    assert (found == 0).any()
    assert (found > 0).any()
    assert float(found.max()) <= min(constant / gamma, 5.0) + 1e-12


def test_a_constant_and_a_radius_for_each_cell() -> None:
    """The same as one cell at a time; a smaller constant or ball can only make more cells flat."""
    margins = torch.tensor([1.3, 1.3, 1.3, -0.4])
    constants, radii = (torch.tensor(v, dtype=torch.float64) for v in ([1.0, 5.0, 1.0, 3.0], [0.2, 0.2, 0.9, 0.1]))
    found = cell_constants(margins, constants, radii, 1.0)
    alone = [
        float(cell_constants(m[None], float(k), float(r), 1.0))
        for m, k, r in zip(margins, constants, radii, strict=True)
    ]
    assert found.tolist() == alone
    assert flat_cells(margins, constants, radii, 1.0).tolist() == [True, False, False, True]


def test_refused() -> None:
    """No ramp, no cell."""
    for constant, radius, gamma in ((1.0, 0.0, 1.0), (1.0, 1.0, 0.0), (-1.0, 1.0, 1.0)):
        with pytest.raises(InputError):
            cell_constants(torch.zeros(2), constant, radius, gamma)


def test_margins_on_the_edge_are_not_flat_whatever_their_size() -> None:
    """The allowance for rounding grows with the margin: it is relative."""
    for size in (1.0, 1e6):
        margins = torch.tensor([2.0 + 1e-10, 2.0 + 1e-8], dtype=torch.float64) * size
        assert flat_cells(margins, size, 1.0, size).tolist() == [False, True]
