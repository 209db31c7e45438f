"""Iteration counts of a model and of a finished result."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope
from networks import Lambda, points, seeded
from normscope import weight_lipschitz
from normscope.core.errors import InputError, RuleError
from normscope.core.value import Kind
from normscope.lipschitz.loss import loss_constant
from normscope.papers.than2025.complexity import Setting, goldstein, of_weights
from normscope.papers.than2025.complexity.iterations import QUICK, complexity
from normscope.papers.than2025.complexity.layers import of_result


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


X = points(5, 4)


def _residual() -> nn.Module:
    model = Lambda(
        lambda s, x: s.c(x + s.b(torch.tanh(s.a(x)))), a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 3)
    )
    return seeded(model)


def test_gradients_of_the_loss_stay_below() -> None:
    """With a skip connection, at every data point and label."""
    model = _residual()
    rows = {w.name: w for w in of_weights(weight_lipschitz(model, X), loss_constant("cross-entropy", 3), Setting())}
    names = dict(model.named_parameters())
    assert set(rows) == set(names)
    for x in X:
        for label in range(3):
            loss = F.cross_entropy(model(x[None]), torch.tensor([label]))
            for name, gradient in zip(names, torch.autograd.grad(loss, list(names.values())), strict=True):
                assert float(gradient.norm()) <= rows[name].lipschitz.value


def test_counts_follow_from_the_constant() -> None:
    """The same formulas as for chains; the kind of the constant is kept."""
    setting = Setting(alpha=0.5, delta=0.25, gap=2.0)
    for row in of_weights(weight_lipschitz(_residual(), X), loss_constant("l2", 3), setting):
        assert row.lipschitz.kind is Kind.CERTIFIED
        assert row.goldstein.log == goldstein(row.lipschitz, 2.0, 0.25, 0.5).log


def test_without_data_the_signal_counts() -> None:
    """Twice the signal, twice the constant."""
    found = weight_lipschitz(_residual(), input_shape=(4,))
    one, two = (of_weights(found, loss_constant("l2", 3), Setting(signal=s))[0].lipschitz for s in (1.0, 2.0))
    assert two.value == pytest.approx(2.0 * one.value)
    assert "at most 2 long" in two.domain


def test_no_weight() -> None:
    """There is nothing to count for."""
    with pytest.raises(InputError, match="at least one weight"):
        of_weights(weight_lipschitz(nn.ReLU(), X), loss_constant("l2", 3), Setting())
