"""NS205: running statistics of a new layer under trained weights."""

from __future__ import annotations

import torch
from torch import nn

from checking import found, places
from normscope.core.finding import Severity


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4, bias=False),
                         nn.BatchNorm1d(4))  # fmt: skip


def test_each_layer_is_told_for_its_own_sake() -> None:
    """Trained shifts with new statistics are an error; a new head behind a trained body is not."""
    model = _network()
    model(torch.randn(64, 6))
    assert places("NS205", model) == []
    with torch.no_grad():
        model[4].bias.normal_()
    model[4].reset_running_stats()
    (one,) = found("NS205", model)
    assert (one.place, one.severity) == ("4", Severity.ERROR)
    model[4] = nn.BatchNorm1d(4)
    assert found("NS205", model) == []


def test_scales_drawn_at_random_are_no_training() -> None:
    """As recipes for GANs draw them; a count of batches is."""
    model = _network()
    nn.init.normal_(model[1].weight, 1.0, 0.02)
    assert found("NS205", model) == []
    model[1].num_batches_tracked.fill_(7)
    assert "7 batches" in found("NS205", model)[0].message
