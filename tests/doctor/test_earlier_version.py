"""The model at an earlier time."""

from __future__ import annotations

import copy

import torch
from torch import nn

from checking import noise
from normscope import check
from normscope.doctor.earlier_version import compare_with_earlier
from normscope.doctor.subject import examine


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 2))


def test_weights_are_those_the_layers_apply() -> None:
    """Normalized ones, of both models; the distance of outputs is relative."""
    old = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)))
    new = nn.Sequential(nn.Linear(6, 5, bias=True))
    new.load_state_dict({"0.weight": 2 * old[0].weight.detach(), "0.bias": 2 * old[0].bias.detach()})
    x = noise(8, 6)
    subject = examine(new, x)
    earlier = compare_with_earlier(old.eval(), subject.captured, subject.example, [x])
    assert torch.allclose(earlier.weights["0"], old[0].weight)
    assert torch.equal(earlier.now["0"], new[0].weight)
    assert abs(earlier.distance - 1) < 1e-6
    assert earlier.differs
    assert [s.kind for s in earlier.sites] == ["weight_norm"]


def test_one_that_does_not_fit_is_said_in_one_line() -> None:
    """Other outputs, other layers, another input; the other rules run."""
    model, x = _network(), noise(8, 6)
    for other, words in (
        (nn.Sequential(nn.Linear(7, 2)), "does not run"),
        (nn.Sequential(nn.Linear(6, 3)), "other shapes"),
        (nn.ModuleDict({"a": nn.Linear(6, 2)}), "does not run"),
        (nn.Sequential(nn.Identity(), nn.Linear(6, 2)), "none of its 1 layers"),
    ):
        result = check(model, x, before=other)
        assert words in result.skipped["NS606"] == result.skipped["NS607"]
        assert "NS101" in result.ran
    assert check(model, x).skipped["NS606"] == "needs earlier weights (--before)"


def test_the_earlier_model_is_not_touched() -> None:
    """Its mode, its statistics and its parameters."""
    old = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).train()
    state = copy.deepcopy(old.state_dict())
    check(copy.deepcopy(old), noise(8, 6), before=old)
    assert old.training
    assert all(torch.equal(a, b) for a, b in zip(state.values(), old.state_dict().values(), strict=True))
