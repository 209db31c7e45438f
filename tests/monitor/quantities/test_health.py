"""What the doctor follows along a run, against modules read directly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from normscope import Monitor


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def _monitor(model: nn.Module, x: torch.Tensor) -> Monitor:
    return Monitor(model, probe=x, quantities=["health"], budget=math.inf, every=1)


def test_statistics_modes_batches_and_scales() -> None:
    """Two batches a step, a scale moved by a tenth, statistics of the probe against the running ones."""
    model, x = _network(), torch.randn(32, 6)
    with _monitor(model, x) as mon:
        model(x)
        model(x)
        with torch.no_grad():
            model[1].weight.mul_(1.1)
        mon.step()
        found = dict(mon.latest)
        model.eval()
        mon.step()
        assert mon.latest["training/1"] == 0.0
        assert mon.latest["tracked/1"] == 0.0
    assert found["training/1"] == 1.0
    assert found["tracked/1"] == 2.0
    assert found["scale_moved/1"] == pytest.approx(0.1, rel=1e-5)
    h = model[0](x).detach().double()
    bn = model[1]
    shift = (h.mean(0) - bn.running_mean).abs() / (bn.running_var + bn.eps).sqrt()
    log = ((h.var(0, correction=0) + bn.eps) / (bn.running_var + bn.eps)).log().abs()
    assert found["drift/1"] == pytest.approx(float(torch.maximum(shift, log).median()), rel=1e-4)
    assert not any(name.startswith("not_finite") for name in found)


def test_the_first_layer_that_is_not_finite() -> None:
    """By its weights."""
    model, x = _network(), torch.randn(16, 6)
    with _monitor(model, x) as mon:
        with torch.no_grad():
            model[3].weight[0, 0] = math.nan
        mon.step()
    assert mon.latest["not_finite/3"] == 1.0


def test_logits_of_attention() -> None:
    """The largest above the median of its row, of the layer that computes the softmax."""

    class Attention(nn.Module):
        """Of what comes in with itself."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Attend."""
            return (x @ x.transpose(1, 2)).softmax(-1) @ x

    model, x = nn.Sequential(nn.Linear(4, 4), Attention()), torch.randn(8, 5, 4)
    with _monitor(model, x) as mon:
        mon.step()
        h = model[0](x).detach()
        rows = h @ h.transpose(1, 2)
        expected = (rows.amax(-1) - rows.median(-1).values).max()
        assert mon.latest["logit/1"] == pytest.approx(float(expected), rel=1e-4)
