"""Which weights live on spheres."""

from __future__ import annotations

import torch
from torch import nn

from normscope.geometry.discover import symmetry
from normscope.geometry.optim.spheres import spheres_of


def test_blocks_follow_the_normalizer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8, bias=False), nn.GroupNorm(2, 8), nn.Tanh(),
        nn.Linear(8, 8, bias=False), nn.RMSNorm(8), nn.Tanh(), nn.Linear(8, 2),
    )  # fmt: skip
    found = spheres_of(symmetry(model, torch.randn(16, 6)))
    assert found == {"0.weight": 8, "3.weight": 2, "6.weight": 1}


def test_weights_that_are_invariant_only_together_are_left_out() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 4), nn.Linear(3, 4)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.norm(self.one(x) + self.two(x * x)))

    assert spheres_of(symmetry(Pair(), torch.randn(16, 3))) == {}
