"""The shares of the gap add up to it, and name what costs it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, points, seeded
from normscope.analysis import analyze
from normscope.core.gap import Gap
from normscope.core.json_form import read, to_plain
from normscope.core.result import Result


def _result(model: nn.Module, x: Tensor) -> Result:
    return analyze(model.double(), x, time=0.2, radius=0.0)


def _whole(result: Result) -> float:
    assert result.gap is not None
    upper, lower = result.end_to_end[result.gap.bound], result.end_to_end["lower"]
    assert upper is not None
    assert lower is not None
    return upper.log10 - lower.log10


@pytest.mark.parametrize("seed", range(2))
def test_the_shares_add_up(seed: int) -> None:
    layers = [nn.Linear(4, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 3)]
    result = _result(seeded(nn.Sequential(*layers), seed), points(6, 4))
    assert result.gap is not None
    assert result.gap.log10 == pytest.approx(_whole(result), abs=1e-6)
    assert result.gap.by_cause()["chains"] <= 0.0
    assert read(Gap, to_plain(result.gap)) == result.gap


def test_a_residual_path_adds_up_and_a_normalizer_is_named() -> None:
    parts = {"a": nn.Linear(4, 4), "norm": nn.LayerNorm(4), "b": nn.Linear(4, 4), "end": nn.Linear(4, 2)}
    model = seeded(Lambda(lambda s, x: s.end(x + s.b(torch.relu(s.norm(s.a(x))))), **parts))
    result = _result(model, points(6, 4))
    assert result.gap is not None
    assert result.gap.log10 == pytest.approx(_whole(result), abs=1e-6)
    assert "normalization" in result.gap.by_cause()


def test_what_costs_most_is_found() -> None:
    """Two layers whose worst directions do not meet: all of the gap stands at the second."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.diag(torch.tensor([100.0, 1.0])))
        model[2].weight.copy_(torch.diag(torch.tensor([1.0, 100.0])))
    result = analyze(model, torch.ones(4, 2).double(), time=0, radius=0.0)
    assert result.gap is not None
    largest = max(result.gap.shares, key=lambda share: share.log10)
    assert (largest.name, largest.cause) == ("2", "activation patterns")
    assert largest.log10 == pytest.approx(2.0, abs=1e-3)


def test_without_a_bound_there_is_none() -> None:
    result = _result(Lambda(lambda s, x: x * x).double(), points(3, 2))
    assert result.gap is None or math.isfinite(result.gap.log10)
