"""Cancelled biases set to zero."""

from __future__ import annotations

import copy

import torch
from torch import nn

from checking import initialized, noise
from networks import Lambda
from normscope.doctor.fixes import fix


def _trained(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """Return a network with running statistics of some data."""
    with torch.no_grad():
        for _ in range(3):
            model.train()(x)
    return model.eval()


def test_the_running_mean_takes_the_bias_up() -> None:
    """Directly, and through pooling; outputs stay, also in train mode."""
    for between in (nn.Identity(), nn.AvgPool2d(2)):
        x = noise(16, 3, 8, 8)
        model = _trained(initialized(nn.Sequential(nn.Conv2d(3, 4, 3), between, nn.BatchNorm2d(4), nn.ReLU())), x)
        result = fix(model, x, only=["drop-bias"])
        other = copy.deepcopy(model)
        other.load_state_dict(result.state)
        assert float(other[0].bias.detach().abs().max()) == 0.0
        assert torch.allclose(other[2].running_mean, model[2].running_mean - model[0].bias, atol=1e-6)
        assert torch.allclose(other(x), model(x), atol=1e-5)
        assert torch.allclose(other.train()(x), model.train()(x), atol=1e-5)
        assert [c.code for c in result.changes] == ["build 0 with bias=False"]


def test_a_normalizer_of_its_own_input_needs_nothing_else() -> None:
    """InstanceNorm."""
    model = initialized(nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4)))
    (change,) = fix(model, noise(4, 3, 8, 8), only=["drop-bias"]).changes
    assert set(change.tensors) == {"0.bias"}


def test_several_running_means_take_one_shift_up() -> None:
    """A shift that two branches see, each through a BatchNorm of its own."""
    model = Lambda(
        lambda s, x: (lambda y: s.n1(s.b(y)).relu() + s.n2(s.c(y)).relu())(s.a(x)),
        a=nn.Linear(5, 4), b=nn.Linear(4, 3, bias=False), c=nn.Linear(4, 3, bias=False),
        n1=nn.BatchNorm1d(3), n2=nn.BatchNorm1d(3),
    )  # fmt: skip
    x = noise(32, 5)
    model = _trained(initialized(model), x)
    (change,) = fix(model, x, only=["drop-bias"]).changes
    assert set(change.tensors) == {"a.bias", "n1.running_mean", "n2.running_mean"}
    shift = model.b.weight @ model.a.bias
    assert torch.allclose(change.tensors["n1.running_mean"].float(), model.n1.running_mean - shift, atol=1e-6)


def test_a_bias_that_matters_stays() -> None:
    """Before LayerNorm and before nothing."""
    model = initialized(nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 2)))
    assert fix(model, noise(8, 5), only=["drop-bias"]).changes == ()
