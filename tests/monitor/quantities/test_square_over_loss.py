"""The squared gradient over the loss."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from monitor.moments import batch, moment_of, small
from normscope.core.errors import InputError
from normscope.monitor.quantities.gradient import Gradients
from normscope.monitor.quantities.square_over_loss import SquareOverLoss, square_over_loss


def test_the_ratio() -> None:
    moment = moment_of(small(), batch(), gradient=True)
    total = Gradients().measure(moment)["gradient/total"]
    assert SquareOverLoss().measure(moment)["gradient/square_over_loss"] == pytest.approx(total**2 / moment.loss)


def test_least_squares_has_a_known_ratio() -> None:
    """L = mean (w x)^2 with x = 1 has grad = 2 w, so ||grad||^2/L = 4 whatever w."""
    model = nn.Linear(1, 1, bias=False)
    found = SquareOverLoss().measure(moment_of(model, (torch.ones(5, 1), torch.zeros(5, 1)), gradient=True))
    assert found["gradient/square_over_loss"] == pytest.approx(4.0, rel=1e-5)


def test_losses_at_and_below_zero() -> None:
    assert square_over_loss(1.0, 0.0) == math.inf
    assert math.isnan(square_over_loss(0.0, 0.0))
    with pytest.raises(InputError, match="above zero"):
        square_over_loss(1.0, -1.0)
