"""NS508: rows that are far too long."""

from __future__ import annotations

import torch
from torch import nn

from checking import found, noise


def test_the_rows_are_named() -> None:
    """A thousand times is told with its row, ten times and zero rows are not."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    assert found("NS508", model, noise(8, 6)) == []
    with torch.no_grad():
        model[2].weight[3] *= 1000
        model[0].weight[1] *= 10
        model[0].weight[2] = 0
    (one,) = found("NS508", model, noise(8, 6))
    assert (one.place, one.evidence["channels"]) == ("2", "3")
    assert one.evidence["factor"] > 300
