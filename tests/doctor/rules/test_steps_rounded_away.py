"""NS404: steps that round to nothing."""

from __future__ import annotations

import torch
from torch import nn

from checking import found


def _told(dtype: torch.dtype, rate: float) -> int:
    model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    told = [f for f in found("NS404", model, None, optimizer=optimizer) if "weight" in f.message]
    scale = model[1].weight
    scale.grad = torch.ones_like(scale)
    optimizer.step()
    assert bool((scale == 1).all()) is bool(told)  # as the optimizer itself shows
    return len(told)


def test_a_real_step_says_the_same() -> None:
    """Below a quarter of the unit nothing moves; above it does; float32 always does."""
    assert _told(torch.bfloat16, 1e-3) == 1
    assert _told(torch.bfloat16, 3e-3) == 0
    assert _told(torch.float32, 1e-4) == 0


def test_steps_of_unknown_size() -> None:
    """SGD's depend on the gradient."""
    model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)).bfloat16()
    assert found("NS404", model, None, optimizer=torch.optim.SGD(model.parameters(), lr=1e-4)) == []
