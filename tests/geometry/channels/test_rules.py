"""Rules of single operations: how many scales pass them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normscope.geometry.channels.labelling import label_channels
from normscope.geometry.function import function_of
from normscope.graph.capture import capture
from normscope.graph.inputs import ModelInputs


class Between(nn.Module):
    """Two linear layers or convolutions with something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor], inputs: int = 4, *, images: bool = False) -> None:
        super().__init__()
        self.one = nn.Conv2d(2, 4, 3) if images else nn.Linear(3, 4)
        self.two = nn.Linear(inputs, 2)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        """Return what comes behind."""
        return self.two(self.between(self.one(x)))


def scales(model: nn.Module, x: Tensor) -> int:
    """Return how many scales a network has."""
    return len(label_channels(function_of(capture(model, ModelInputs((x,))))).labels.solve()[1])


@pytest.mark.parametrize(
    ("between", "inputs", "expected"),
    [
        (torch.relu, 4, 4),
        (torch.tanh, 4, 0),
        (lambda x: torch.cat([x, torch.relu(x)], 1), 8, 4),
        (lambda x: x[:, :2], 2, 4),
        (lambda x: x.view(-1, 2, 2).transpose(1, 2).flatten(1), 4, 4),
        (lambda x: F.pad(x, (0, 2)), 6, 4),
        (lambda x: x + x.mean(1, keepdim=True), 4, 1),
        (lambda x: x / x.norm(dim=1, keepdim=True), 4, 1),
        (lambda x: x * torch.sigmoid(x), 4, 0),
        (lambda x: x + 1.0, 4, 0),
    ],
)
def test_between_two_layers(between: Callable[[Tensor], Tensor], inputs: int, expected: int) -> None:
    assert scales(Between(between, inputs), torch.randn(6, 3)) == expected


@pytest.mark.parametrize(
    ("between", "inputs"),
    [
        (lambda x: F.max_pool2d(x, 2).flatten(1), 16),
        (lambda x: F.adaptive_avg_pool2d(F.leaky_relu(x), 1).flatten(1), 4),
        (lambda x: x.amax((2, 3)), 4),
    ],
)
def test_channels_of_images(between: Callable[[Tensor], Tensor], inputs: int) -> None:
    assert scales(Between(between, inputs, images=True), torch.randn(3, 2, 6, 6)) == 4


def test_gates_scale_one_factor() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.gate, self.down = nn.Linear(3, 5), nn.Linear(3, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(F.silu(self.gate(x)) * self.up(x))

    assert scales(Gated(), torch.randn(4, 3)) == 5
