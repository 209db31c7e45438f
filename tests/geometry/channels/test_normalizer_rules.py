"""Rules of normalizers: what they undo, and what recurrent layers allow."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.geometry.discover import symmetry


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        (nn.BatchNorm2d(4, affine=False), 4),
        (nn.InstanceNorm2d(4), 4),
        (nn.GroupNorm(2, 4, affine=False), 2),
        (nn.GroupNorm(1, 4, affine=False), 1),
        (nn.LayerNorm([4, 4, 4], elementwise_affine=False), 1),
    ],
)
def test_scales_of_a_convolution(norm: nn.Module, expected: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    found = symmetry(model, torch.randn(4, 2, 6, 6))
    assert sum(g.dimension for g in found.groups if g.kind == "scale") == expected


def test_weight_normalization_frees_each_direction() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 4, 3)), nn.Tanh())
    found = symmetry(model, torch.randn(3, 2, 6, 6))
    assert [(g.kind, g.dimension) for g in found.groups if g.kind != "permutation"] == [("scale", 4)]


def test_units_of_an_lstm_may_be_exchanged_and_its_biases_added() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(x)[0][:, -1])

    torch.manual_seed(0)
    found = symmetry(Recurrent(), torch.randn(4, 6, 3))
    assert [(g.kind, g.dimension) for g in found.groups] == [("shift", 20), ("permutation", 0)]
    assert found.groups[1].details["units"] == 5
