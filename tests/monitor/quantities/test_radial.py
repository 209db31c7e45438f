"""The radial part of updates: zero for SGD under BatchNorm, minus twice the decay with it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.monitor.quantities.radial import radial_update


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_law_of_a_weight_before_batch_norm(decay: float) -> None:
    torch.manual_seed(0)
    layer, norm = nn.Linear(4, 3, bias=False).double(), nn.BatchNorm1d(3, eps=1e-30).double()
    x, y = torch.randn(16, 4).double(), torch.randn(16, 3).double()
    norm(layer(x)).sub(y).square().mean().backward()
    before, rate = layer.weight.detach().clone(), 0.5
    assert layer.weight.grad is not None
    after = (1 - rate * decay) * before - rate * layer.weight.grad
    assert radial_update(before, after) == pytest.approx(-2 * rate * decay, abs=1e-12)


def test_zero_weight_has_none() -> None:
    assert radial_update(torch.zeros(2), torch.ones(2)) != radial_update(torch.zeros(2), torch.ones(2))
