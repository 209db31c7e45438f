"""The valley: constant on rays, and gradient descent with BatchNorm never comes nearer to the origin."""

from __future__ import annotations

import pytest
import torch

from normscope.report.valley import plot_valley, problem, trajectory, valley_loss


def test_descent_grows_and_finds_the_bottom() -> None:
    start = torch.tensor([-1.0, 1.2], dtype=torch.float64)
    path = trajectory(start, 0.5, 60)
    lengths = path.norm(dim=1)
    assert bool((lengths[1:] >= lengths[:-1]).all())
    x, y = problem()
    losses = valley_loss(path, x, y)
    best = valley_loss(torch.linalg.lstsq(x - x.mean(0), y[:, None]).solution.mT, x, y)
    assert float(losses[-1]) == pytest.approx(float(best), rel=1e-3)
    plain = trajectory(start, 0.5, 60, normalized=False)
    assert float(plain.norm(dim=1)[-1]) < float(lengths[-1])


def test_figure() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    figure = plot_valley(steps=3)
    assert len(figure.axes[0].lines) == 14
