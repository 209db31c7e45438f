"""Problems: the risk that is said to be known is what a large fresh sample shows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from normscope.generalization.bench.problems import PLACES, PROBLEMS, Draw, PartitionCells


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_risk_is_that_of_fresh_samples(name: str) -> None:
    """The mean of 40 draws' fresh losses is within five standard errors of the mean risk; losses lie in [0, 1]."""
    rng = np.random.default_rng(7)
    draws = [PROBLEMS[name](rng) for _ in range(40)]
    fresh = np.concatenate([d.fresh for d in draws])
    risk = float(np.mean([d.risk for d in draws]))
    assert abs(fresh.mean() - risk) <= 5 * max(fresh.std(), 1e-4) / math.sqrt(len(fresh)) + 1e-4
    assert all(0 <= d.losses.min() <= d.losses.max() <= 1 for d in draws)
    assert all(len(d.cells.index) == d.samples for d in draws)
    assert all(d.cells.counts.sum() == d.samples for d in draws)


def test_constants_of_cells_are_true() -> None:
    """The slope of the oscillating loss between neighbouring samples reaches its constant and never exceeds it."""
    draw = PROBLEMS["oscillation"](np.random.default_rng(0))
    order = np.argsort(draw.inputs[:, 0])
    x, f = draw.inputs[order, 0], draw.losses[order]
    steps = np.diff(x) > 1e-7
    slopes = np.abs(np.diff(f))[steps] / np.diff(x)[steps]
    assert 0.99 * draw.cells.constants[0] <= slopes.max() <= draw.cells.constants[0] * (1 + 1e-6)
    table = PROBLEMS["random labels"](np.random.default_rng(0))
    for cell in range(20):
        assert len(np.unique(table.losses[table.cells.index == cell])) <= 1


def test_randomized_model() -> None:
    """Its mean loss, divergence and risk are sums over 64 thresholds: the risk is above the noise."""
    draw = PROBLEMS["thresholds"](np.random.default_rng(0))
    assert draw.posterior is not None
    loss, divergence, risk = draw.posterior
    assert 0 <= divergence <= math.log(64)
    assert risk >= 0.1
    assert abs(loss - risk) < 0.02
    labels, below = draw.labels, draw.inputs < PLACES  # a threshold calls what lies above it one
    errors = (below == (labels[:, None] == 1)).mean(0)
    weights = np.exp(-200.0 * (errors - errors.min()))
    weights /= weights.sum()
    assert loss == pytest.approx(float(weights @ errors))
    kept = weights[weights > 0]
    assert divergence == pytest.approx(math.log(64) + float(kept @ np.log(kept)))  # from the uniform distribution


def test_counts_and_error() -> None:
    """Empty cells count as zero."""
    cells = PartitionCells(np.array([0, 2, 2]), np.zeros(4), np.ones(4))
    assert cells.counts.tolist() == [1, 0, 2, 0]
    draw = Draw(
        np.zeros((3, 1)), np.zeros(3, dtype=np.int64), np.array([0.0, 1.0, 0.5]), 0.3, np.zeros(2), cells, cells
    )
    assert (draw.samples, draw.train_error) == (3, 0.5)
