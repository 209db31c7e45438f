"""NS216: two checkpoints."""

from __future__ import annotations

import copy

import torch
from torch import nn

from checking import found, noise


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 2))


def test_weights_without_statistics_and_the_reverse() -> None:
    """Both are told; together, or not at all, they may change."""
    old = _network()
    new = copy.deepcopy(old)
    assert found("NS216", new, before=old) == []
    with torch.no_grad():
        new[0].weight.mul_(2)
    assert [f.place for f in found("NS216", new, before=old)] == ["1"]
    new.train()
    new(noise(64, 6))
    assert found("NS216", new, before=old) == []
    new[1].requires_grad_(False)
    assert "frozen" in found("NS216", new, before=old)[0].message
