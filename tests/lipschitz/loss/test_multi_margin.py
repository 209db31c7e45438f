"""Squared margins on a ball: attained, and not exceeded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from losses import generator, normal
from normscope.core.errors import InputError
from normscope.lipschitz.loss.at_data import loss_at
from normscope.lipschitz.loss.multi_margin import multi_margin


@pytest.mark.parametrize(("k", "margin", "radius"), [(2, 1.0, 3.0), (5, 0.5, 2.0), (6, 0.0, 1.0)])
def test_squared_margins_on_a_ball(k: int, margin: float, radius: float) -> None:
    """Attained along ``(1, ..., 1, -(k - 1))``, and by nothing else on the ball exceeded."""
    loss = nn.MultiMarginLoss(p=2, margin=margin)
    upper = multi_margin(k, p=2, margin=margin, radius=radius).value
    direction = torch.ones(1, k, dtype=torch.float64)
    direction[0, 0] = 1 - k
    worst = radius * direction / torch.linalg.vector_norm(direction)
    assert loss_at(loss, worst, torch.tensor([0])).value == pytest.approx(upper, rel=1e-12)
    for seed in range(50):
        h = normal(generator(seed), 1, k)
        h = radius * h / torch.linalg.vector_norm(h)
        assert loss_at(loss, h, torch.tensor([0])).value <= upper


def test_power_of_margins() -> None:
    """One or two."""
    with pytest.raises(InputError, match="1 or 2, got 3"):
        multi_margin(4, p=3)
