"""Likelihood and divergence: linear, with their target as gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from losses import generator, normal, rows
from normscope.core.errors import InputError
from normscope.lipschitz.loss.at_data import loss_at
from normscope.lipschitz.loss.likelihood import kl, nll


def test_linear_losses() -> None:
    """Given log-probabilities, the likelihood and the divergence are linear: their gradient is their target."""
    h = normal(generator(), 2, 3)
    assert loss_at(nn.NLLLoss(), h, torch.tensor([0, 2])).value == pytest.approx(nll(3, batch=2).value, rel=1e-12)
    one_hot = rows([1.0, 0.0, 0.0], [0.0, 0.0, 1.0])
    for reduction in ("batchmean", "sum", "none"):
        assert loss_at(nn.KLDivLoss(reduction=reduction), h, one_hot).value == pytest.approx(
            kl(3, batch=2, reduction=reduction).value, rel=1e-12
        )
    with pytest.raises(InputError, match="batchmean, mean, sum, none; got 'max'"):
        kl(3, reduction="max")
