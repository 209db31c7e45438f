"""Angles between weights."""

from __future__ import annotations

import math

import pytest
import torch

from monitor.moments import batch, moment_of, small
from normscope.monitor.quantities.angle import AngularUpdates, angle_between


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
