"""The gradient on the probe: its norms, its square over the loss, and the loss along it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from monitor.moments import batch, moment_of, small
from normscope.core.errors import InputError
from normscope.monitor.quantities.gradient import (
    MULTIPLES,
    RELATIVE,
    GradientPredictiveness,
    Gradients,
    SquareOverLoss,
    along_gradient,
    norm,
    square_over_loss,
    total_norm,
)


def test_norms_are_those_of_autograd() -> None:
    x, y = batch()
    found = Gradients().measure(moment_of(small(), (x, y), gradient=True))
    copy = small()
    F.cross_entropy(copy(x), y).backward()
    total = torch.cat([p.grad.flatten() for p in copy.parameters()]).double().norm()
    assert found["gradient/total"] == pytest.approx(float(total), rel=1e-5)
    grad, weight = copy.conv2.weight.grad.double().norm(), copy.conv2.weight.detach().double().norm()
    assert found["gradient/norm/conv2"] == pytest.approx(float(grad), rel=1e-5)
    assert found["gradient/ratio/conv2"] == pytest.approx(float(grad / weight), rel=1e-5)


def test_without_labels_there_is_no_gradient() -> None:
    assert Gradients().measure(moment_of(small(), batch()[0], gradient=True)) == {}


def test_norms_do_not_overflow() -> None:
    assert norm(torch.tensor([3e30, 4e30])) == pytest.approx(5e30)
    assert total_norm([torch.tensor([3e30]), torch.tensor([4e30])]) == pytest.approx(5e30)
    assert total_norm([]) == 0.0


def test_the_ratio() -> None:
    moment = moment_of(small(), batch(), gradient=True)
    total = Gradients().measure(moment)["gradient/total"]
    assert SquareOverLoss().measure(moment)["gradient/square_over_loss"] == pytest.approx(total**2 / moment.loss)


def test_least_squares_has_a_known_ratio() -> None:
    """L = mean (w x)^2 with x = 1 has grad = 2 w, so ||grad||^2/L = 4 whatever w."""
    model = nn.Linear(1, 1, bias=False)
    found = SquareOverLoss().measure(moment_of(model, (torch.ones(5, 1), torch.zeros(5, 1)), gradient=True))
    assert found["gradient/square_over_loss"] == pytest.approx(4.0, rel=1e-5)


def test_losses_at_and_below_zero() -> None:
    assert square_over_loss(1.0, 0.0) == math.inf
    assert math.isnan(square_over_loss(0.0, 0.0))
    with pytest.raises(InputError, match="above zero"):
        square_over_loss(1.0, -1.0)


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
