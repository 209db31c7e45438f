"""NS403: parameters in no group."""

from __future__ import annotations

import torch
from torch import nn

from checking import found


def test_forgotten_among_neighbours() -> None:
    """Frozen ones, and those of another optimizer's part, are left out on purpose."""
    model = nn.Sequential(
        nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)), nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))
    )
    first = torch.optim.SGD([model[0][0].weight, *model[1].parameters()], lr=0.1)
    assert [f.place for f in found("NS403", model, None, optimizer=first)] == ["0.1"]
    half = torch.optim.SGD(model[1].parameters(), lr=0.1)
    assert found("NS403", model, None, optimizer=half) == []
    model[0][1].requires_grad_(False)
    assert found("NS403", model, None, optimizer=first) == []
