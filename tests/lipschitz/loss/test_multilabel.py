"""Several labels: half of the classes is worst."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.lipschitz.loss.at_data import loss_at
from normscope.lipschitz.loss.multilabel import multilabel_margin


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_labels_by_half(k: int) -> None:
    """At zero outputs every pair is active; half of the classes as labels is worst."""
    best = 0.0
    for a in range(1, k + 1):
        target = torch.full((1, k), -1)
        target[0, :a] = torch.arange(a)
        best = max(best, loss_at(nn.MultiLabelMarginLoss(), torch.zeros(1, k, dtype=torch.float64), target).value)
    assert best == pytest.approx(multilabel_margin(k).value, rel=1e-12)
