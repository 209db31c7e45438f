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
