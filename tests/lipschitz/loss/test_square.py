"""Squared errors entry by entry."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from losses import rows
from normscope.lipschitz.loss.at_data import loss_at
from normscope.lipschitz.loss.square import mse


def test_squares_entry_by_entry() -> None:
    """Unreduced, one entry may hold the whole error of its sample."""
    h = rows([7.0, 0.0, 0.0])
    assert loss_at(nn.MSELoss(reduction="none"), h, torch.zeros_like(h)).value == pytest.approx(14.0, rel=1e-12)
    assert mse(3, radius=7.0, reduction="none").value == pytest.approx(14.0, rel=1e-12)
