"""NS501 against dense singular values: what taking one channel away gains."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from checking import found, initialized, noise
from normscope.core.finding import Severity


def _network(variance: float) -> nn.Module:
    model = initialized(nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU()))
    with torch.no_grad():
        model[1].running_var.fill_(1.0)
        model[1].running_var[5] = variance
    return model


def test_one_small_variance_sets_the_constant() -> None:
    """The factor told is below the true one, by dense singular values, and close to it."""
    model = _network(1e-6)
    (one,) = found("NS501", model, input_shape=(6,))
    assert (one.place, one.evidence["channel"]) == ("1", 5)
    assert (one.severity is Severity.WARNING) is (one.evidence["factor"] >= 100)
    scale = (model[1].weight / (model[1].running_var + 1e-5).sqrt()).double()
    folded = (scale.unsqueeze(1) * model[0].weight.double()).detach()
    rest = folded[torch.arange(8) != 5]
    truth = float(torch.linalg.matrix_norm(folded, 2) / torch.linalg.matrix_norm(rest, 2))
    assert truth * 0.97 <= float(one.evidence["factor"]) <= truth
    assert found("NS501", _network(1.0), input_shape=(6,)) == []


def test_the_scale_of_a_layer_norm() -> None:
    """Its own constant is that of the largest scale."""
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 2)).eval()
    assert found("NS501", model, noise(4, 8)) == []
    with torch.no_grad():
        model[0].weight[1] = 20.0
    (one,) = found("NS501", model, noise(4, 8))
    assert one.evidence["factor"] == pytest.approx(20.0)


def test_depthwise_convolutions() -> None:
    """Each channel by itself."""
    model = initialized(nn.Sequential(nn.Conv2d(8, 8, 3, groups=8, bias=False), nn.BatchNorm2d(8)))
    with torch.no_grad():
        model[1].running_var[3] = 1e-4
    (one,) = found("NS501", model, input_shape=(8, 6, 6))
    assert one.evidence["channel"] == 3
