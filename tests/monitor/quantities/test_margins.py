"""Margins on the probe."""

from __future__ import annotations

import pytest
import torch

from monitor.moments import batch, moment_of, small
from normscope.generalization.margins import margins
from normscope.monitor.quantities.margins import Margins


def test_margins_by_hand() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0], [1.0, 1.0, 1.0]])
    assert margins(scores, torch.tensor([0, 2, 1])).tolist() == [1.0, -1.0, 0.0]


def test_quantiles_and_accuracy() -> None:
    model, (x, y) = small(), batch(40)
    found = Margins().measure(moment_of(model, (x, y)))
    logits = small()(x).detach()
    right = (logits.argmax(1) == y).double().mean()
    assert found["probe/accuracy"] == pytest.approx(float(right))
    every = sorted(
        float(row[c] - max(float(row[j]) for j in range(3) if j != c))
        for row, c in zip(logits, y.tolist(), strict=True)
    )
    assert found["margin/minimum"] == pytest.approx(every[0], abs=1e-5)
    assert found["margin/median"] == pytest.approx((every[19] + every[20]) / 2, abs=1e-5)
    assert found["margin/minimum"] <= found["margin/tenth"] <= found["margin/median"]


def test_no_classes_no_margins() -> None:
    x, _ = batch()
    assert Margins().measure(moment_of(small(), x)) == {}
    assert Margins().measure(moment_of(small(), (x, torch.zeros(12, 3)))) == {}
