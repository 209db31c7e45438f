"""The loss along its gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from monitor.moments import batch, moment_of, small
from normscope.monitor.quantities.landscape import MULTIPLES, RELATIVE, GradientPredictiveness, along_gradient


def test_a_quadratic_has_its_curvature_as_smoothness() -> None:
    """L = w^T A w/2: the gradient changes by s A g, so smoothness is ||A g||/||g|| for every step."""
    A = torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64))
    w = torch.tensor([1.0, 1.0], dtype=torch.float64)
    g = A @ w

    def at(step: float) -> tuple[float, dict[str, torch.Tensor]]:
        point = w - step * g
        return float(point @ A @ point / 2), {"w": A @ point}

    found = along_gradient({"w": g}, at, [0.1, 0.2])
    assert found["smoothness"] == pytest.approx(float((A @ g).norm() / g.norm()))
    assert found["change_low"] == pytest.approx(0.1 * float((A @ g).norm()))
    assert found["change_high"] == pytest.approx(0.2 * float((A @ g).norm()))
    assert (found["loss_low"], found["loss_high"]) == tuple(sorted(at(s)[0] for s in (0.1, 0.2)))


def test_a_linear_network_with_squared_loss() -> None:
    """Through the whole machinery: L = (w - 1)^2 has L'' = 2."""
    model = nn.Linear(1, 1, bias=False)
    moment = moment_of(model, (torch.ones(3, 1), torch.ones(3, 1)), gradient=True, rates={"weight": 0.1})
    found = GradientPredictiveness().measure(moment)
    assert found["landscape/smoothness"] == pytest.approx(2.0, rel=1e-4)
    start = float((model.weight.detach() - 1).square())
    losses = [start * (1 - 2 * 0.1 * m) ** 2 for m in MULTIPLES]
    assert found["landscape/loss_low"] == pytest.approx(min(losses), rel=1e-4)
    assert found["landscape/loss_high"] == pytest.approx(max(losses), rel=1e-4)


def test_without_a_rate_steps_are_relative_to_the_weights() -> None:
    moment = moment_of(small(), batch(), gradient=True)
    found = GradientPredictiveness().measure(moment)
    assert found["landscape/smoothness"] > 0
    size = math.sqrt(sum(float(p.double().square().sum()) for p in moment.parameters.values()))
    assert found["landscape/change_high"] <= found["landscape/smoothness"] * RELATIVE[-1] * size * (1 + 1e-5)


def test_flat_and_broken_places() -> None:
    assert along_gradient({"w": torch.zeros(2)}, lambda s: (0.0, {}), [1.0]) == {}
    broken = along_gradient({"w": torch.ones(1)}, lambda s: (math.nan, {"w": torch.ones(1)}), [1.0])
    assert math.isnan(broken["loss_high"])
    assert GradientPredictiveness().measure(moment_of(small(), batch()[0], gradient=True)) == {}
