"""A draw: counts of cells and the training error."""

from __future__ import annotations

import numpy as np

from normscope.generalization.bench.draw import Cells, Draw


def test_counts_and_error() -> None:
    """Empty cells count as zero."""
    cells = Cells(np.array([0, 2, 2]), np.zeros(4), np.ones(4))
    assert cells.counts.tolist() == [1, 0, 2, 0]
    draw = Draw(
        np.zeros((3, 1)), np.zeros(3, dtype=np.int64), np.array([0.0, 1.0, 0.5]), 0.3, np.zeros(2), cells, cells
    )
    assert (draw.samples, draw.train_error) == (3, 0.5)
