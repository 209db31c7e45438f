"""The effective learning rate."""

from __future__ import annotations

import math

import pytest
import torch

from monitor.moments import batch, moment_of, small
from normscope.monitor.quantities.effective_rate import EffectiveRates, effective_rate


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
