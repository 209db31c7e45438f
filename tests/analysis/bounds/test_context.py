"""What rows share: margins to try, the training error, sums that keep the statement of the gap."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from normscope.analysis.bounds.context import BoundsContext, plus, row_of
from normscope.analysis.bounds.measured_network import MeasuredNetwork
from normscope.analysis.bounds.scores import scored
from normscope.core.value import Kind, Value

from .conftest import captured_of


def _context(trained: Any) -> BoundsContext:
    model, train, test = trained
    captured = captured_of(model, 4, 2)
    made = [scored(captured, d, w, None, 0, lambda text: None) for d, w in ((train, "train"), (test, "test"))]
    network = MeasuredNetwork(captured, lambda text: None)
    return BoundsContext(network, *made, 0.05, "ramp", None, None, None, (train, test), model)


def test_margins_and_error(trained: Any) -> None:
    """Positive quantiles of the training margins, in order; the share of wrong decisions."""
    model, (x, y), _ = trained
    setting = _context(trained)
    assert setting.gammas == sorted(setting.gammas)
    assert min(setting.gammas) > 0
    wrong = (model(x).argmax(1) != y).double().mean()
    assert setting.error.value == pytest.approx(float(wrong), abs=2e-3)


def test_rows_and_sums(trained: Any) -> None:
    """The statement and delta of the gap; guessing decides what is vacuous."""
    setting = _context(trained)
    gap = Value.of(0.3, Kind.PROBABILISTIC, statement="a statement", delta=0.05)
    value = plus(Value.of(0.1, Kind.CERTIFIED), gap)
    assert value.value == pytest.approx(0.4)
    row = row_of("a bound", value, setting, gamma=1.0)
    assert (row.statement, row.status, row.vacuous, row.details) == (
        "a statement",
        "certificate",
        False,
        {"gamma": 1.0},
    )
    assert row_of("a bound", plus(value, gap), setting).vacuous
    assert torch.is_tensor(setting.train.margins)
