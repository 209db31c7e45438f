"""Regressions far from their targets: every slope is the largest."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from losses import Formula
from normscope.lipschitz.loss.absolute import l1
from normscope.lipschitz.loss.at_data import loss_at
from normscope.lipschitz.loss.huber import huber, smooth_l1
from normscope.lipschitz.loss.square import half_square, mse


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
