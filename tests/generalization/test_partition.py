"""Partitions: grids and nearest centres, counts by label, and the refusal of what was built from the data."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from normscope.core.errors import InputError
from normscope.generalization import grid, voronoi


def test_grid_cells_hold_what_they_say() -> None:
    """Points of one cell are no farther apart than its diameter, and every cell is hit."""
    parts = grid([0.0, -1.0], [1.0, 1.0], [3, 4])
    x = torch.rand(4000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x * torch.tensor([1.0, 2.0]) - torch.tensor([0.0, 1.0])
    cells = parts.assign(x)
    assert sorted(set(cells.tolist())) == list(range(12))
    for cell in range(12):
        inside = x[cells == cell]
        spread = float(torch.cdist(inside, inside).max())
        assert 0.5 * float(parts.diameters) < spread <= float(parts.diameters)
    assert int(parts.assign(torch.tensor([[1.0, 1.0]]))) == 11  # the closed end belongs to the last cell


def test_diameters_are_not_rounded_down() -> None:
    """Of boxes with few and many axes, against exact sums."""
    for axes in (3, 7, 4000):
        high = torch.rand(axes, generator=torch.Generator().manual_seed(axes), dtype=torch.float64).tolist()
        square = sum(Fraction(h) ** 2 for h in high)
        for cells in (voronoi(torch.zeros(1, axes), [0.0] * axes, high), grid([0.0] * axes, high, [1] * axes)):
            assert square <= Fraction(float(cells.diameters)) ** 2 <= square * Fraction(1 + 1e-12)


def test_labels_split_cells() -> None:
    """Counts of cells and labels add up to the samples."""
    parts = grid([0.0], [1.0], [2])
    x, y = torch.tensor([[0.1], [0.2], [0.9]]), torch.tensor([0, 1, 1])
    assert parts.counts(x, y, 2).tolist() == [1, 1, 0, 1]
    assert parts.counts(x, None, 1).tolist() == [2, 1]
    with pytest.raises(InputError, match="one label from 0 to 1"):
        parts.counts(x, torch.tensor([0, 1, 2]), 2)


def test_partitions_built_from_the_data_are_refused() -> None:
    """Said to be so, or seen to be: a centre is a sample."""
    x = torch.rand(20, 2, generator=torch.Generator().manual_seed(1))
    before = torch.rand(5, 2, generator=torch.Generator().manual_seed(2))
    voronoi(before, [0.0, 0.0], [1.0, 1.0]).counts(x, None, 1)
    for bad in (
        voronoi(x[:5], [0.0, 0.0], [1.0, 1.0]),
        voronoi(torch.cat([before, x[7:8]]), [0.0, 0.0], [1.0, 1.0]),
        voronoi(before, [0.0, 0.0], [1.0, 1.0], from_data=True),
    ):
        with pytest.raises(InputError, match="chosen before seeing the data"):
            bad.counts(x, None, 1)


def test_wrong_arguments() -> None:
    """Empty boxes, no centres, inputs outside."""
    for low, high, counts in (([0.0], [0.0], [2]), ([0.0], [1.0], [0]), ([0.0], [1.0, 2.0], [2])):
        with pytest.raises(InputError, match="Expected a grid with low < high"):
            grid(low, high, counts)
    with pytest.raises(InputError, match="at least one"):
        voronoi(torch.zeros(0, 2), [0.0], [1.0])
    with pytest.raises(InputError, match="inside the box"):
        grid([0.0], [1.0], [2]).assign(torch.tensor([[1.5]]))
