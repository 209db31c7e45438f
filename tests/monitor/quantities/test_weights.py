"""Lengths of weights and how updates turn them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from monitor.moments import batch, moment_of, small
from normscope.monitor.quantities.weights import (
    AngularUpdates,
    EffectiveRates,
    MinimumNorms,
    angle_between,
    effective_rate,
    minimum_row_norm,
    radial_update,
)


def test_directions_of_rescaled_weights_move_alike_at_equal_effective_rates() -> None:
    """One gradient step of a scale-invariant loss, from w and from 3 w with nine times the learning rate."""
    generator = torch.Generator().manual_seed(0)
    w, a = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(2))

    def step(start: torch.Tensor, rate: float) -> torch.Tensor:
        leaf = start.clone().requires_grad_()
        (torch.dot(a, leaf) / leaf.norm()).sin().backward()
        after = start - rate * leaf.grad
        return after / after.norm()

    assert effective_rate(0.1, float(w.norm())) == pytest.approx(effective_rate(0.9, float((3 * w).norm())))
    assert torch.allclose(step(w, 0.1), step(3 * w, 0.9), atol=1e-12)
    assert not torch.allclose(step(w, 0.1), step(3 * w, 0.1), atol=1e-3)


def test_the_turn_of_one_step_is_as_proved() -> None:
    """tan(angle) = (eta/||w||^2) ||grad L(u)||."""
    w = torch.tensor([1.0, 2.0, -2.0], dtype=torch.float64)
    leaf = (w / 3).clone().requires_grad_()
    (leaf[0] / leaf.norm()).backward()
    gradient = leaf.grad / 3.0  # at w, whose norm is 3
    after = w - 0.5 * gradient
    angle = math.acos(float(torch.dot(w, after) / (w.norm() * after.norm())))
    assert math.tan(angle) == pytest.approx(effective_rate(0.5, 3.0) * float(leaf.grad.norm()), rel=1e-9)


def test_rates_are_those_of_each_parameter() -> None:
    model = small()
    found = EffectiveRates().measure(moment_of(model, batch(), rates={"conv1.weight": 0.2}))
    truth = 0.2 / float(model.conv1.weight.detach().double().square().sum())
    assert found == {"effective_rate/conv1": pytest.approx(truth, rel=1e-9)}
    assert effective_rate(1.0, 0.0) == math.inf


def test_norms_of_kernels_and_rows() -> None:
    model = small()
    found = MinimumNorms().measure(moment_of(model, batch()))
    for name in ("conv1", "conv2", "head"):
        rows = getattr(model, name).weight.detach().double().flatten(1)
        assert found[f"weight/minimum_norm/{name}"] == pytest.approx(min(float(r.norm()) for r in rows), rel=1e-6)
    hidden = min(found["weight/minimum_norm/conv1"], found["weight/minimum_norm/conv2"])
    assert found["weight/minimum_norm"] == hidden  # the last layer does not count


def test_outputs_are_counted_along_their_own_axis() -> None:
    class Turned(nn.Module):
        """Transposed weights: of a product from the right, and of a transposed convolution."""

        def __init__(self) -> None:
            super().__init__()
            self.right = nn.Parameter(torch.eye(3))
            self.up = nn.ConvTranspose1d(3, 4, 2)
            self.head = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Apply them."""
            y = torch.relu(x @ self.right)
            return self.head(self.up(y.unsqueeze(-1)).mean(-1))

    model = Turned()
    with torch.no_grad():
        model.right.copy_(torch.tensor([[1.0, 0.0, 3.0], [0.0, 2.0, 3.0], [0.0, 0.0, 3.0]]))
        model.up.weight[:, 1] = 0.25
    found = MinimumNorms().measure(moment_of(model, torch.randn(5, 3)))
    values = [value for name, value in found.items() if name.startswith("weight/minimum_norm/")]
    assert values[0] == pytest.approx(1.0)  # the first column, not the first row
    kernels = model.up.weight.detach().double().movedim(1, 0).flatten(1)
    assert values[1] == pytest.approx(min(float(k.norm()) for k in kernels), rel=1e-6)


def test_directions_of_weight_normalization_count() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    with torch.no_grad():
        layer.parametrizations.weight.original1[2].fill_(1e-3)
    found = MinimumNorms().measure(moment_of(nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 2)), torch.randn(3, 3)))
    assert found["weight/minimum_norm"] == pytest.approx(1e-3 * 3**0.5, rel=1e-5)


def test_it_never_falls_under_gradient_descent_with_weight_normalization() -> None:
    """The paper's open question, answered for plain steps: ||v+||^2 = ||v||^2 + eta^2 ||grad||^2."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
        model = nn.Sequential(layer, nn.Tanh(), nn.Linear(5, 2)).double()
        x, y = torch.randn(20, 4, dtype=torch.float64), torch.randint(0, 2, (20,))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    directions = layer.parametrizations.weight.original1
    last = minimum_row_norm(directions)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        now = minimum_row_norm(directions)
        assert now >= last * (1 - 1e-12)
        last = now


@pytest.mark.parametrize("broken", ["conv1", "conv2"])
def test_what_is_no_number_is_not_passed_over(broken: str) -> None:
    model = small()
    with torch.no_grad():
        getattr(model, broken).weight.fill_(math.nan)
    assert math.isnan(MinimumNorms().measure(moment_of(model, batch()))["weight/minimum_norm"])


@pytest.mark.parametrize("angle", [1e-12, 1e-6, 0.3, 1.5, 3.0, math.pi])
def test_small_and_large_angles_are_exact(angle: float) -> None:
    u = torch.tensor([1.0, 0.0], dtype=torch.float64)
    v = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    assert angle_between(u, 7.0 * v) == pytest.approx(angle, rel=1e-9)
    assert math.isnan(angle_between(u, torch.zeros(2)))


def test_each_layer_turns_by_its_own_angle() -> None:
    model = small()
    before = {"conv1.weight": model.conv1.weight.detach().clone(), "head.weight": torch.zeros(3, 16)}
    with torch.no_grad():
        model.conv1.weight.mul_(-2.0)
    found = AngularUpdates().measure(moment_of(model, batch(), previous=before))
    assert found == {"angle/conv1": pytest.approx(math.pi)}


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_law_of_a_weight_before_batch_norm(decay: float) -> None:
    torch.manual_seed(0)
    layer, norm = nn.Linear(4, 3, bias=False).double(), nn.BatchNorm1d(3, eps=1e-30).double()
    x, y = torch.randn(16, 4).double(), torch.randn(16, 3).double()
    norm(layer(x)).sub(y).square().mean().backward()
    before, rate = layer.weight.detach().clone(), 0.5
    assert layer.weight.grad is not None
    after = (1 - rate * decay) * before - rate * layer.weight.grad
    assert radial_update(before, after) == pytest.approx(-2 * rate * decay, abs=1e-12)


def test_zero_weight_has_none() -> None:
    assert radial_update(torch.zeros(2), torch.ones(2)) != radial_update(torch.zeros(2), torch.ones(2))
