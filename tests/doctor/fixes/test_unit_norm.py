"""Scale-invariant weights of norm one."""

from __future__ import annotations

import copy

import torch
from torch import nn

from checking import initialized, noise
from normscope.doctor.fixes import fix
from normscope.doctor.fixes.unit_norm import KIND


def _trained(factor: float, eps: float = 1e-5) -> nn.Module:
    model = initialized(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, eps=eps), nn.ReLU()))
    with torch.no_grad():
        model[0].weight.mul_(factor)
        for _ in range(3):
            model.train()(noise(32, 3, 6, 6))
    return model.eval()


def test_running_statistics_go_along() -> None:
    """Exactly, eps included: the variance becomes c^2 (v + eps) - eps."""
    model = _trained(7.0)
    x = noise(8, 3, 6, 6, seed=4)
    result = fix(model, x, only=[KIND])
    other = copy.deepcopy(model)
    other.load_state_dict(result.state)
    assert abs(float(other[0].weight.detach().norm()) - 1) < 1e-6
    assert torch.allclose(other(x), model(x), atol=1e-5)
    c = 1 / model[0].weight.detach().double().norm()
    expected = c**2 * (model[1].running_var.double() + 1e-5) - 1e-5
    assert torch.allclose(other[1].running_var.double(), expected, rtol=1e-5)


def test_a_variance_that_would_be_negative_is_refused() -> None:
    """Where eps is larger than the rescaled variance."""
    model = _trained(100.0, eps=1e-5)
    with torch.no_grad():
        model[1].running_var.fill_(1e-6)
    result = fix(model, noise(8, 3, 6, 6), only=[KIND])
    assert result.changes == ()
    assert "negative" in result.refusals[0].reason


def test_statistics_of_the_input_need_eps_to_be_out_of_the_way() -> None:
    """LayerNorm with eps is refused with the eps it would need; with eps = 0 it is rescaled."""

    def model(eps: float) -> nn.Module:
        made = initialized(nn.Sequential(nn.Linear(5, 8, bias=False), nn.LayerNorm(8, eps=eps), nn.ReLU()))
        with torch.no_grad():
            made[0].weight.mul_(3)
        return made

    refused = fix(model(1e-5), noise(16, 5), only=[KIND])
    assert refused.changes == ()
    assert "would have to become" in refused.refusals[0].reason
    assert "pass data" in fix(model(1e-5), input_shape=(5,), only=[KIND]).refusals[0].reason
    done = fix(model(0.0), noise(16, 5), only=[KIND])
    assert len(done.changes) == 1
    small = fix(model(1e-12), noise(16, 5), only=[KIND])
    assert "eps changes the output by at most" in small.changes[0].what


def test_weights_that_are_not_invariant_stay() -> None:
    """A last layer."""
    assert fix(initialized(nn.Linear(3, 2)), noise(4, 3), only=[KIND]).changes == ()
