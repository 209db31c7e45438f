"""NS301: variances near eps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from checking import found, initialized, noise
from normscope.core.finding import Certainty, Severity


def _with_variance(value: float, gamma: float = 1.0) -> nn.Module:
    """Return a network with one running variance set."""
    model = initialized(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()))
    with torch.no_grad():
        model[1].running_var[2] = value
        model[1].weight[2] = gamma
    return model


@pytest.mark.parametrize(("value", "told"), [(0.0, True), (1e-8, True), (1.9e-5, True), (9e-5, False), (1.0, False)])
def test_running_variances(value: float, told: bool) -> None:
    """Up to twice eps; a person should act where it is amplified much."""
    findings = found("NS301", _with_variance(value), input_shape=(3, 6, 6))
    assert bool(findings) is told
    for one in findings:
        assert (one.place, one.certainty, one.evidence["channels"]) == ("1", Certainty.PROVED, 1)


def test_a_closed_channel_does_no_harm() -> None:
    """A scale of zero."""
    assert found("NS301", _with_variance(0.0, gamma=0.0), input_shape=(3, 6, 6)) == []


def test_groups_of_the_data() -> None:
    """LayerNorm of a nearly constant token is a remark; of others nothing is said."""
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 2)).eval()
    x = noise(8, 6)
    assert found("NS301", model, x) == []
    x[3] = 1.0 + 1e-4 * x[3]
    (one,) = found("NS301", model, x)
    assert (one.certainty, one.severity) == (Certainty.MEASURED, Severity.INFO)
    assert one.evidence["least_variance"] == pytest.approx(float(x[3].double().var(correction=0)), rel=1e-3)


def test_eps_that_is_too_large_is_no_dead_channel() -> None:
    """Most groups below eps: the advice is the other way round; by running variances and by data."""
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 2)).eval()
    (one,) = found("NS301", model, 1e-4 * noise(32, 6))
    assert one.severity is Severity.WARNING
    assert one.fix.startswith("lower eps")
    behind = nn.Sequential(nn.Linear(6, 6, bias=False), *model)  # weights of the start may be small
    assert [f.severity for f in found("NS301", behind, 1e-4 * noise(32, 6))] == [Severity.INFO]
    x = noise(32, 6)
    x[:5] *= 1e-4
    (one,) = found("NS301", model, x)
    assert one.severity is Severity.INFO
    assert "dead channel" in one.fix
    bn = initialized(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, eps=1e-3), nn.ReLU()))
    bn[1].running_var.copy_(torch.tensor([5e-4, 6e-4, 7e-4, 2e-3]))
    (one,) = found("NS301", bn, input_shape=(3, 6, 6))
    assert one.fix.startswith("lower eps")
    bn[1].running_var.copy_(torch.tensor([5e-4, 1.0, 0.7, 2.0]))
    (one,) = found("NS301", bn, input_shape=(3, 6, 6))
    assert "dead channel" in one.fix
