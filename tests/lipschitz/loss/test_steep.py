"""Likelihoods without a constant: the gradient at far outputs exceeds any bound, and they say so."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from losses import rows
from normscope.lipschitz.loss import loss_constant
from normscope.lipschitz.loss.at_data import loss_at
from normscope.lipschitz.loss.steep import gaussian_nll, poisson_nll


def test_gradients_grow() -> None:
    """By ten orders of magnitude within reach of floats."""
    one = rows([1.0])
    assert loss_at(nn.PoissonNLLLoss(), rows([30.0]), one).value > 1e12
    assert loss_at(nn.PoissonNLLLoss(log_input=False), rows([1e-7]), one).value > 1e6
    assert loss_at(nn.GaussianNLLLoss(), rows([1e3]), one, torch.full((1, 1), 1e-3).double()).value > 1e5


@pytest.mark.parametrize("loss", [nn.PoissonNLLLoss(), nn.GaussianNLLLoss(), "poisson-nll", "gaussian-nll"], ids=str)
def test_they_say_so(loss: nn.Module | str) -> None:
    """No bound, with a reason."""
    assert loss_constant(loss, 3).log == poisson_nll(3).log == gaussian_nll(3).log == math.inf
    assert "grows" in loss_constant(loss, 3).assumptions[0]
