"""Losses under attack: the largest gradient that random starts and climbing find."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from normscope.lipschitz.loss.constants import loss_at

#: Draws outputs at some scale, then targets.
Draw = Callable[[torch.Generator, float], tuple[Tensor, ...]]


def generator(seed: int = 0) -> torch.Generator:
    """Return a seeded source of randomness."""
    return torch.Generator().manual_seed(seed)


def normal(source: torch.Generator, *shape: int) -> Tensor:
    """Return standard normal numbers in float64."""
    return torch.randn(shape, generator=source, dtype=torch.float64)


def largest_gradient(loss: nn.Module, draw: Draw, *, inputs: int = 1, starts: int = 4, steps: int = 25) -> float:
    """Return the largest gradient norm met on random outputs at several scales, each improved by climbing."""
    source, best = generator(1), 0.0
    for scale in (0.1, 1.0, 10.0, 300.0):
        for _ in range(starts):
            point = draw(source, scale)
            here = loss_at(loss, *point, inputs=inputs).value
            for _ in range(steps):
                moved = tuple(p + 0.3 * scale * normal(source, *p.shape) for p in point[:inputs])
                there = loss_at(loss, *moved, *point[inputs:], inputs=inputs).value
                if there > here:
                    point, here = (*moved, *point[inputs:]), there
            best = max(best, here)
    if not math.isfinite(best):
        raise AssertionError("a gradient is not finite")
    return best


class Formula(nn.Module):
    """A loss given by a function of outputs and targets."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return self.function(outputs, target)


def rows(*numbers: list[float]) -> Tensor:
    """Return rows of numbers in float64."""
    return torch.tensor(numbers, dtype=torch.float64)


def rivals(outputs: Tensor, target: Tensor) -> Tensor:
    """Return ``1 + h_j - h_y`` of the other classes of one sample."""
    others = torch.ones(outputs.shape[1], dtype=torch.bool).index_fill(0, target, False)
    return 1 + outputs[0, others] - outputs[0, target]
