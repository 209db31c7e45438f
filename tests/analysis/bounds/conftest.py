"""A small trained classifier and its data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.graph.capture import Captured, capture
from normscope.graph.inputs import ModelInputs

Pair = tuple[Tensor, Tensor]


def captured_of(model: nn.Module, *shape: int) -> Captured:
    """Capture a model on random inputs."""
    return capture(model.eval(), ModelInputs((torch.randn(*shape, generator=torch.Generator().manual_seed(0)),)))


class Residual(nn.Module):
    """Two residual blocks on images, the second with a shortcut of fewer pixels and more channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 3, padding=1)
        self.first, self.norm = nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2)
        self.second = nn.Conv2d(2, 4, 3, padding=1, stride=2)
        self.last = nn.Linear(4 * 4 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        x = F.relu(self.stem(x))
        x = F.relu(self.norm(self.first(x)) + x)
        short = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 1))
        x = F.relu(self.second(x) + short)
        return self.last(x.flatten(1))


@pytest.fixture(scope="session")
def trained() -> tuple[nn.Module, Pair, Pair]:
    """Return a network with BatchNorm that tells a disc from its surroundings, with its training and test data."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = torch.rand(1100, 2)
        y = ((x - 0.5).square().sum(1) > 0.1).long()
        net = nn.Sequential(
            nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)
        )
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(150):
            optimizer.zero_grad()
            F.cross_entropy(net(x[:800]), y[:800]).backward()
            optimizer.step()
    return net.eval(), (x[:800], y[:800]), (x[800:], y[800:])


@pytest.fixture
def residual() -> Any:
    """Return a residual network with statistics that are not those of a fresh one."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = Residual()
        with torch.no_grad():
            net.norm.running_mean.normal_()
            net.norm.running_var.uniform_(0.5, 2.0)
            net.norm.weight.normal_()
            net.norm.bias.normal_()
    return net.eval()
