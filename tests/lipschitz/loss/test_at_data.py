"""The gradient of a loss at given data: closed forms, Jacobians of unreduced losses, nothing touched."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from losses import generator, normal
from normscope.core.errors import InputError
from normscope.core.value import Kind
from normscope.lipschitz.loss import at_data
from normscope.lipschitz.loss.at_data import loss_at
from normscope.testing.state import fingerprint


def test_closed_form_of_squares() -> None:
    """``2 ||h - y||/(m n)`` for the mean."""
    h, y = normal(generator(), 4, 3), normal(generator(1), 4, 3)
    here = loss_at(nn.MSELoss(), h, y)
    assert here.value == pytest.approx(2 * float(torch.linalg.vector_norm(h - y)) / 12, rel=1e-12)
    assert here.kind is Kind.ESTIMATE


def test_unreduced_losses_by_their_jacobian() -> None:
    """Block diagonal: the largest sample."""
    h, y = normal(generator(), 5, 3), torch.tensor([0, 1, 2, 0, 1])
    alone = [loss_at(nn.CrossEntropyLoss(), h[i : i + 1], y[i : i + 1]).value for i in range(5)]
    assert loss_at(nn.CrossEntropyLoss(reduction="none"), h, y).value == pytest.approx(max(alone), rel=1e-12)


def test_float32_data_and_frozen_graphs() -> None:
    """Outputs of any float type, with a graph behind them or under no_grad."""
    linear = nn.Linear(2, 3)
    out = linear(torch.ones(1, 2))
    with torch.no_grad():
        here = loss_at(nn.CrossEntropyLoss(weight=torch.ones(3)), out, torch.tensor([1]))
    assert here.value == pytest.approx(
        loss_at(nn.CrossEntropyLoss(), out.detach().double(), torch.tensor([1])).value, rel=1e-12
    )
    assert linear.weight.grad is None


def test_nothing_is_touched() -> None:
    """Module, data and random state are as before."""
    loss, h, y = nn.CrossEntropyLoss(weight=torch.ones(3)), torch.randn(2, 3), torch.tensor([0, 1])
    h.requires_grad_()
    before = fingerprint(loss, h, y)
    loss_at(loss, h, y)
    assert fingerprint(loss, h, y) == before


def test_wrong_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers are no outputs; a Jacobian may be too large to form."""
    with pytest.raises(InputError, match="real numbers"):
        loss_at(nn.L1Loss(), torch.ones(2, dtype=torch.int64), torch.ones(2))
    with pytest.raises(InputError, match="real numbers"):
        loss_at(nn.L1Loss(), torch.ones(2), inputs=2)
    monkeypatch.setattr(at_data, "LARGEST", 10)
    with pytest.raises(InputError, match="has 16 entries"):
        loss_at(nn.L1Loss(reduction="none"), torch.ones(4), torch.zeros(4))
