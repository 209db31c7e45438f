"""Likelihood and divergence: linear, with their target as gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from losses import generator, normal, rows
from normscope.core.errors import InputError
from normscope.lipschitz.loss import loss_constant
from normscope.lipschitz.loss.constants import loss_at
from normscope.lipschitz.loss.likelihood import gaussian_nll, kl, nll, poisson_nll


def test_linear_losses() -> None:
    """Given log-probabilities, the likelihood and the divergence are linear: their gradient is their target."""
    h = normal(generator(), 2, 3)
    assert loss_at(nn.NLLLoss(), h, torch.tensor([0, 2])).value == pytest.approx(nll(3, batch=2).value, rel=1e-12)
    one_hot = rows([1.0, 0.0, 0.0], [0.0, 0.0, 1.0])
    for reduction in ("batchmean", "sum", "none"):
        assert loss_at(nn.KLDivLoss(reduction=reduction), h, one_hot).value == pytest.approx(
            kl(3, batch=2, reduction=reduction).value, rel=1e-12
        )
    with pytest.raises(InputError, match=r"batchmean, mean, sum, none\), got 'max'"):
        kl(3, reduction="max")


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
