"""``fix`` with ``rotate``: asked for by name only, the same function, or a reason."""

from __future__ import annotations

import torch
from torch import nn

from normscope.doctor.fixes import fix
from symmetric_networks import Attention, randomized


def test_a_hot_channel_is_spread() -> None:
    torch.manual_seed(0)
    model = randomized(Attention(nn.RMSNorm, width=16, bias=False, gated=True, turned=True))
    with torch.no_grad():
        model.embed.weight[3] *= 100.0
    found = fix(model, torch.randn(4, 4, 8).double(), only=["rotate"])
    (change,) = found.changes
    assert change.kind == "rotate"
    assert found.difference < 1e-5
    assert "norm_one.weight" in change.tensors


def test_refused_with_a_reason_and_not_done_unasked() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    found = fix(model, torch.randn(4, 3), only=["rotate"])
    assert found.changes == ()
    assert "no residual stream" in found.refusals[0].reason
    assert all(r.kind != "rotate" for r in fix(model, torch.randn(4, 3)).refusals)
