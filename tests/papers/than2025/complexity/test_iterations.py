"""Iteration counts of a model and of a finished result."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import normscope
from normscope.core.errors import InputError, RuleError
from normscope.papers.than2025.complexity.iterations import QUICK, complexity
from normscope.papers.than2025.complexity.layers import Setting, of_result


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()


def test_a_model_and_its_result_agree() -> None:
    data = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    model, setting = _model(), Setting(alpha=0.2)
    found = complexity(model, data, loss="l1", setting=setting)
    result = normscope.analyze(model, data, **QUICK)
    read = complexity(result, loss="l1", setting=setting)
    assert [row.name for row in found.layers] == [row.name for row in read.layers] == ["0", "3"]
    assert list(read.layers) == list(of_result(result, read.constant, setting))
    assert {row.name for row in found.weights} == {name for name, _ in model.named_parameters()}
    assert not read.weights


def test_a_result_takes_no_data() -> None:
    result = normscope.analyze(_model(), torch.zeros(2, 3), **QUICK)
    with pytest.raises(InputError, match="Expected no data or options"):
        complexity(result, torch.zeros(2, 3))
    with pytest.raises(RuleError, match="nonsense"):
        complexity(result, loss="nonsense")
