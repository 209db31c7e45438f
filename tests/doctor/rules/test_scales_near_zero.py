"""NS604: scales around zero."""

from __future__ import annotations

import torch
from torch import nn

from checking import found, noise
from networks import Lambda


def test_by_sign_and_size() -> None:
    """Scattered around zero, or all tiny; near one, all negative, or of BatchNorm they are none of this."""
    for mean, spread, told in ((0.0, 0.1, 1), (0.01, 0.001, 1), (1.0, 0.1, 0), (-1.0, 0.1, 0), (0.3, 0.05, 0)):
        model = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32))
        nn.init.normal_(model[1].weight, mean, spread)
        assert len(found("NS604", model, noise(8, 32))) == told
    bn = nn.Sequential(nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32)).eval()
    nn.init.normal_(bn[1].weight, 0.0, 0.1)
    assert found("NS604", bn, noise(8, 32)) == []


def test_the_effective_scale_counts() -> None:
    """1 + w of a normalizer that is written out is near one."""
    norm = nn.Linear(32, 1, bias=False)
    for offset, told in ((1.0, 0), (0.0, 1)):
        nn.init.normal_(norm.weight, 0.0, 0.1)
        model = Lambda(
            lambda s, x, o=offset: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * (o + s.norm.weight[0]),
            norm=norm,
        )
        assert len(found("NS604", model, noise(8, 32))) == told


def test_all_scales_are_two() -> None:
    """As 1 + w with w = 1; one that differs was trained."""
    model = nn.Sequential(nn.Linear(32, 32), nn.RMSNorm(32))
    nn.init.constant_(model[1].weight, 2.0)
    (one,) = found("NS604", model, noise(8, 32))
    assert "1 + w" in one.message
    with torch.no_grad():
        model[1].weight[3] = 1.9
    assert found("NS604", model, noise(8, 32)) == []
