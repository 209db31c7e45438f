"""NS210: negative variances."""

from __future__ import annotations

import torch
from torch import nn

from checking import found, noise
from normscope import check
from normscope.core.finding import Severity


def test_it_is_told_once_with_its_channels() -> None:
    """Everything else that comes of it is named and not told by itself; the output is NaN indeed."""
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)).eval()
    model[1].running_var[3] = -0.5
    (one,) = found("NS210", model)
    assert (one.place, one.severity, one.evidence["channels"]) == ("1", Severity.ERROR, 1)
    assert "channel 3" in one.message
    assert bool(model(noise(4, 6)).isnan().any())
    whole = check(model, noise(64, 6))
    assert [f.code for f in whole.findings] == ["NS210"]
    assert whole.findings[0].explains
    model[1].running_var[3] = 0.5
    assert found("NS210", model) == []


def test_eps_may_keep_the_root_real() -> None:
    """Still no variance."""
    bn = nn.Sequential(nn.BatchNorm1d(2, eps=0.1)).eval()
    bn[0].running_var[0] = -0.01
    assert "only eps" in found("NS210", bn)[0].message
    assert bool(torch.isfinite(bn(torch.ones(1, 2))).all())
