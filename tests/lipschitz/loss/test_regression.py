"""The l1 loss: every entry off its target has slope one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from losses import Formula, generator, normal, rows
from normscope.lipschitz.loss.constants import loss_at
from normscope.lipschitz.loss.regression import half_square, huber, l1, l2, mse, smooth_l1


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_attained_at_random_points(reduction: str) -> None:
    """Whatever the batch."""
    for batch, outputs in ((1, 1), (1, 7), (5, 3)):
        h, y = normal(generator(), batch, outputs), normal(generator(1), batch, outputs)
        upper = l1(outputs, batch=batch, reduction=reduction).value
        assert loss_at(nn.L1Loss(reduction=reduction), h, y).value == pytest.approx(upper, rel=1e-12)


def test_distance() -> None:
    """The Euclidean distance has slope one everywhere but at the target."""
    distance = Formula(lambda h, y: torch.linalg.vector_norm(h - y, dim=1).mean())
    h, y = normal(generator(), 4, 5), normal(generator(1), 4, 5)
    assert loss_at(distance, h, y).value == pytest.approx(l2(5, batch=4).value, rel=1e-12)


def test_squares_entry_by_entry() -> None:
    """Unreduced, one entry may hold the whole error of its sample."""
    h = rows([7.0, 0.0, 0.0])
    assert loss_at(nn.MSELoss(reduction="none"), h, torch.zeros_like(h)).value == pytest.approx(14.0, rel=1e-12)
    assert mse(3, radius=7.0, reduction="none").value == pytest.approx(14.0, rel=1e-12)


def test_regressions_away_from_their_targets() -> None:
    """At errors of ten every slope is the largest."""
    h, y = 10 + torch.zeros(3, 5, dtype=torch.float64), torch.zeros(3, 5, dtype=torch.float64)
    for loss, upper in (
        (nn.L1Loss(), l1(5, batch=3)),
        (nn.HuberLoss(delta=4.0), huber(5, batch=3, delta=4.0)),
        (nn.SmoothL1Loss(beta=4.0), smooth_l1(5, batch=3, beta=4.0)),
        (nn.SmoothL1Loss(beta=0.0), smooth_l1(5, batch=3, beta=0.0)),
        (nn.MSELoss(), mse(5, batch=3, radius=math.sqrt(500))),
        (nn.MSELoss(reduction="sum"), mse(5, batch=3, radius=math.sqrt(500), reduction="sum")),
    ):
        assert loss_at(loss, h, y).value == pytest.approx(upper.value, rel=1e-12)
    half = Formula(lambda h, y: (h - y).square().sum() / 2)
    assert loss_at(half, h[:1], y[:1]).value == pytest.approx(half_square(5, radius=math.sqrt(500)).value, rel=1e-12)
