"""Hinges: the best rival and all rivals, written out, at points where they attain their constants."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from losses import Formula, largest_gradient, normal, rivals
from normscope.lipschitz.loss.at_data import loss_at
from normscope.lipschitz.loss.hinge import crammer_singer, weston_watkins


@pytest.mark.parametrize("k", [2, 3, 7])
def test_losses_of_classes_that_torch_does_not_have(k: int) -> None:
    """Crammer-Singer and Weston-Watkins, written out, at zero outputs where every rival is active."""
    target, zero = torch.tensor([1]), torch.zeros(1, k, dtype=torch.float64)
    zero[0, 0] = 0.5  # one best rival
    single = Formula(lambda h, y: rivals(h, y).max().clamp_min(0))
    every = Formula(lambda h, y: rivals(h, y).clamp_min(0).sum())
    assert loss_at(single, zero, target).value == pytest.approx(crammer_singer(k).value, rel=1e-12)
    assert loss_at(every, zero, target).value == pytest.approx(weston_watkins(k).value, rel=1e-12)

    def draw(source: torch.Generator, scale: float) -> tuple[Tensor, ...]:
        return scale * normal(source, 1, k), target

    assert largest_gradient(single, draw, starts=2, steps=5) <= crammer_singer(k).value * (1 + 1e-12)
    assert largest_gradient(every, draw, starts=2, steps=5) <= weston_watkins(k).value * (1 + 1e-12)
