"""Corollary 14, printed and corrected, beside a gradient."""

from __future__ import annotations

import pytest
import torch

from normscope.core.value import Kind, Value
from normscope.lipschitz.loss.corollary_14 import corollary_14, corollary_14_printed
from normscope.lipschitz.loss.regression import l1


def test_printed_is_below_a_gradient() -> None:
    """Widths 3-4-5-6 with scales 2 and 3: the gradient at an input of norm 3 is 36, the printed constant 18."""
    x = torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64)
    W1 = torch.zeros(4, 3, dtype=torch.float64)
    W1[:, 0] = 1.0
    W1.requires_grad_()
    W2, W3 = 2 * torch.eye(5, 4, dtype=torch.float64), 3 * torch.eye(6, 5, dtype=torch.float64)
    h = torch.relu(W3 @ torch.relu(W2 @ torch.relu(W1 @ x)))
    (gradient,) = torch.autograd.grad((h + 1).abs().sum(), W1)
    found = float(torch.linalg.matrix_norm(gradient))
    network = Value.of(2.0 * 3.0 * 3.0, Kind.CERTIFIED)
    printed, proved = corollary_14_printed(network), corollary_14(network, l1(6, reduction="sum"))
    assert found == pytest.approx(36.0, rel=1e-12)
    assert printed.value == pytest.approx(18.0, rel=1e-12)
    assert printed.kind is Kind.PRINTED
    assert proved.kind is Kind.CERTIFIED
    assert printed.value < found <= proved.value
    assert proved.statement == printed.statement == "than2025 Corollary 14"
    # the four outputs that can move: equality
    assert corollary_14(network, l1(4, reduction="sum")).value == pytest.approx(found, rel=1e-12)
