"""Measures: some by hand, none moved by a rescaling before BatchNorm, those that do not apply left out."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from normscope.analysis.bounds.measures import measures


def test_by_hand() -> None:
    """A network without biases: products of its matrices' norms and its path norm."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
    x = torch.randn(100, 3)
    y = net(x).argmax(1)
    found = measures(net, (x, y))
    a, b = (p.detach().double() for p in net.parameters())
    spectral = math.log(float(torch.linalg.matrix_norm(a, 2) * torch.linalg.matrix_norm(b, 2)))
    assert found["log product of spectral norms"] == pytest.approx(spectral, abs=1e-6)
    assert found["log product of Frobenius norms"] == pytest.approx(math.log(float(a.norm() * b.norm())), abs=1e-6)
    assert found["log path norm"] == pytest.approx(math.log(float((b.abs() @ a.abs()).sum())), abs=1e-6)
    assert found["parameters"] == 20
    scores = net(x).detach()
    margin = float(torch.quantile((scores[:, 0] - scores[:, 1]).abs().double(), 0.1))
    assert found["log inverse squared margin"] == pytest.approx(-2 * math.log(margin), abs=1e-4)
    assert found["log path norm over margin"] == pytest.approx(found["log path norm"] - math.log(margin), abs=1e-4)


def test_rescaling_before_batch_norm_changes_nothing(trained: Any) -> None:
    """The same function with other numbers."""
    model, train, _ = trained
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight *= 32
        twin[0].bias *= 32
        twin[1].running_mean *= 32
        twin[1].running_var.copy_((twin[1].running_var + twin[1].eps) * 1024 - twin[1].eps)
    first, second = measures(model, train), measures(twin, train)
    for name in ("log path norm", "log product of spectral norms", "log spectral complexity"):
        assert second[name] == pytest.approx(first[name], abs=0.02)
    assert not torch.equal(model[0].weight, twin[0].weight)


def test_what_does_not_apply_is_left_out(trained: Any) -> None:
    """A tanh network has no chain of ReLU layers, but weights, margins and flatness."""
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
    found = measures(net, trained[1])
    assert "log path norm" not in found
    assert "log product of spectral norms" not in found
    assert {"parameters", "log flatness (1/sigma^2)", "log flatness, relative (1/sigma^2)"} <= set(found)
