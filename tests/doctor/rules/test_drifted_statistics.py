"""NS203: running statistics and the data."""

from __future__ import annotations

import torch
from torch import nn

from checking import found, initialized, noise
from normscope.core.finding import Severity
from normscope.doctor.rules.drifted_statistics import drift


def _trained(x: torch.Tensor) -> nn.Module:
    """Return a network whose running statistics are those of some data."""
    model = initialized(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=None), nn.ReLU(), nn.Linear(5, 2)))
    model.train()
    with torch.no_grad():
        for part in x.split(64):
            model(part)
    return model.eval()


def test_other_data_is_told_and_the_same_is_not() -> None:
    """Shifted, scaled, and another sample of the same."""
    x = noise(512, 6)
    model = _trained(x)
    assert found("NS203", model, noise(256, 6, seed=1)) == []
    assert found("NS203", model, noise(24, 6, seed=2)) == []  # a small sample is given room
    for other in (x * 255, x + 5, x * 0.01):
        (one,) = found("NS203", model, other)
        assert (one.place, one.severity) == ("1", Severity.WARNING)


def test_the_numbers_are_those_of_the_data() -> None:
    """Shift and factor by hand."""
    x = noise(4096, 6)
    model = _trained(x)
    before = model[0](3 * x).detach().double()
    mean, variance = before.mean(0), before.var(0, correction=0)
    found_drift = drift(mean, variance, (model[1].running_mean, model[1].running_var), 1e-5, 4096)
    factor = (variance + 1e-5) / (model[1].running_var.double() + 1e-5)
    assert found_drift.channels == 5
    assert abs(found_drift.factor - float(factor.max())) < 1e-9 * found_drift.factor
    assert 8.5 < found_drift.factor < 9.5


def test_a_new_model_gets_a_remark() -> None:
    """Mean zero and variance one in every channel."""
    (one,) = found("NS203", nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).eval(), noise(64, 6))
    assert one.severity is Severity.INFO
