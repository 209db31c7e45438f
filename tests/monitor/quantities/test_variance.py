"""Variances before normalizers and activations."""

from __future__ import annotations

import pytest
import torch

from monitor.moments import batch, moment_of, small
from normscope.monitor.quantities.variance import Variances


def test_variances_are_those_of_the_probe() -> None:
    model, (x, _) = small(), batch()
    found = Variances().measure(moment_of(model, x))
    before = model.conv1(x).detach().double().var(dim=(0, 2, 3), correction=0)
    assert found["variance/bn1"] == pytest.approx(float(before.mean()), rel=1e-5)
    assert found["variance_min/bn1"] == pytest.approx(float(before.min()), rel=1e-5)
    assert sum(name.startswith("variance/") for name in found) == 4  # two normalizers, two activations
    assert sum(name.startswith("variance_min/") for name in found) == 2


def test_a_normalized_activation_has_the_variance_of_the_scale() -> None:
    model = small()
    with torch.no_grad():
        model.bn1.weight.fill_(2.0)
    found = Variances().measure(moment_of(model, batch()[0]))
    activations = sorted(name for name in found if "bn1" not in name and "ln" not in name and "min" not in name)
    assert any(found[name] == pytest.approx(4.0, rel=1e-3) for name in activations)
