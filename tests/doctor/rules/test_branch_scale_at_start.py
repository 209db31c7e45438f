"""NS605: scales of branches at their first values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import found, noise


class _Block(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(6), nn.Linear(6, 6)
        self.gamma = nn.Parameter(torch.full((6,), scale))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gamma * torch.relu(self.fc(self.norm(x)))


def _places(scale: float, *, trained: bool, stepped: bool = False, purpose: str = "") -> list[str]:
    model = nn.Sequential(_Block(scale), _Block(0.5))
    with torch.no_grad():
        if trained:
            model[1].norm.bias.copy_(0.1 * noise(6))
        if stepped:
            model[0].gamma.add_(1e-7 * noise(6))
    return [f.place for f in found("NS605", model, noise(8, 6), purpose=purpose)]


def test_where_it_starts_in_a_trained_network() -> None:
    """Not in a new one, not after a step, not where it is no tiny number."""
    assert _places(1e-6, trained=True) == ["0"]
    assert _places(1e-6, trained=False) == []
    model = nn.Sequential(_Block(1e-6), _Block(0.5))
    with torch.no_grad():
        model[1].norm.bias.copy_(1e-4 * noise(6))  # a few small steps, too few to move what is so small
    assert found("NS605", model, noise(8, 6)) == []
    assert _places(1e-6, trained=True, stepped=True) == []
    assert _places(0.1, trained=True) == []


def test_a_branch_that_starts_at_zero_may_be_new() -> None:
    """Unless the network is used already."""
    assert _places(0.0, trained=True) == []
    assert _places(0.0, trained=True, purpose="inference") == ["0"]
