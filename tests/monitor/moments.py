"""Small networks at one moment of their training, for tests of the monitor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.monitor.probing import view_of
from normscope.monitor.snapshot import Snapshot


class Small(nn.Module):
    """Convolutions with stride and padding, BatchNorm, LayerNorm, ReLU and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 5, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(5)
        self.conv2 = nn.Conv2d(5, 4, 3, stride=2)
        self.ln = nn.LayerNorm([4, 2, 2])
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        y = F.relu(self.bn1(self.conv1(x)))
        return self.head(F.relu(self.ln(self.conv2(y))).flatten(1))


def small(seed: int = 0) -> Small:
    """Return the network with its statistics filled and its normalizers' parameters moved."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Small().train()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
            model(2.0 * torch.randn(64, 2, 6, 6) + 1.0)
    return model


def batch(size: int = 12) -> tuple[Tensor, Tensor]:
    """Return images and classes."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, 2, 6, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)


def moment_of(model: nn.Module, probe: Any, mode: str = "batch", **settings: Any) -> Snapshot:
    """Return a moment of a model."""
    return Snapshot(view_of(model, probe, None, mode), 0, **settings)


def dense(function: Any, shape: tuple[int, ...]) -> Tensor:
    """Return the matrix of a linear function of one tensor, column by column, in float64."""
    columns = torch.eye(int(torch.Size(shape).numel()), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        return torch.stack([function(c.unsqueeze(0)).flatten() for c in columns], 1)
