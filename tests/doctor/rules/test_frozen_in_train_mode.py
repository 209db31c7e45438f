"""NS207: frozen layers in train mode."""

from __future__ import annotations

from torch import nn

from checking import found, places


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 2))


def test_frozen_and_training() -> None:
    """Not if it is in evaluation, is trained, or the whole model is frozen."""
    model = _network().train()
    assert places("NS207", model) == []
    model[1].requires_grad_(False)
    assert places("NS207", model) == ["1"]
    model[1].eval()
    assert places("NS207", model) == []
    whole = _network().requires_grad_(False).train()
    assert found("NS207", whole) == []
