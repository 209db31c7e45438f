"""Iteration counts of a model and of a finished result."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope
from networks import Lambda, points, seeded
from normscope import analyze, weight_lipschitz
from normscope.core.errors import InputError, RuleError
from normscope.core.value import Kind, Value
from normscope.lipschitz.loss import loss_constant
from normscope.papers.than2025.complexity import (
    Setting,
    goldstein,
    layer_complexities,
    of_result,
    of_weights,
    seen_as_chain,
)
from normscope.papers.than2025.complexity.network_complexity import QUICK, ChainLayer, complexity
from normscope.papers.than2025.extremal import theorem_13


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


def test_counts_of_weights_follow_from_the_constant() -> None:
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


ONE = Value.of(1.0, Kind.CERTIFIED)


def _certified(x: float) -> Value:
    return Value.of(x, Kind.CERTIFIED)


def test_constants_are_attained_by_extremal_networks() -> None:
    """Without normalizers ``L_i`` is that of Theorem 13 times the signal; the first layer is reached by the input."""
    widths, scales = [3, 4, 2, 5], [2.0, 3.0, 0.5]
    layers = [ChainLayer(str(i), _certified(a)) for i, a in enumerate(scales)]
    rows = layer_complexities(layers, ONE, Setting(signal=1.0))
    assert rows[0].without.lipschitz.value == pytest.approx(theorem_13(widths, scales, 1).constant.value, rel=1e-12)
    assert [r.without.lipschitz.value for r in rows] == pytest.approx([1.5, 0.5, 1.0])
    assert all(r.normalized is None for r in rows)
    assert {r.without.lipschitz.kind for r in rows} == {Kind.ESTIMATE}


def test_normalizers_multiply_from_their_layer_on() -> None:
    """``K - i + 1`` factors; a folded norm takes the place of its product."""
    half = _certified(0.5)
    layers = [ChainLayer(str(i), _certified(2.0), half, half, _certified(0.9) if i == 2 else None) for i in range(3)]
    rows = layer_complexities(layers, ONE, Setting(alpha=0.1))
    found = [r.normalized.lipschitz.value for r in rows if r.normalized]
    assert found == pytest.approx([0.5 * 1.0 * 0.9, 0.5 * 0.9, 0.5])
    printed = [r.normalized.corollary_19.value for r in rows if r.normalized]
    assert printed == pytest.approx([0.5**3 * 4 * 100, 0.5**2 * 2 * 100, 0.5 * 100])
    assert [r.corollary_18.value for r in rows] == pytest.approx([40.0, 20.0, 10.0])


def test_counts_follow_from_the_constant() -> None:
    """Goldstein and convex counts of the same ``L``."""
    setting = Setting(alpha=0.5, delta=0.25, gap=2.0, radius=3.0, signal=7.0)
    (row,) = layer_complexities([ChainLayer("a", _certified(4.0))], _certified(2.0), setting)
    assert row.without.lipschitz.value == pytest.approx(14.0)
    assert row.without.goldstein.value == pytest.approx(14.0**2 * 2 / (0.25 * 0.125))
    assert row.without.convex.value == pytest.approx((14.0 * 3 / 0.5) ** 2)


def test_an_analyzed_network() -> None:
    """The loss in each weight of a chain with BatchNorm is no steeper than said, at the points of the data."""
    hidden = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU()]
    model = seeded(nn.Sequential(*hidden, nn.Linear(5, 3))).eval()
    x = points(8, 4)
    result = analyze(model, x, points=1, ascent=0)
    loss = loss_constant(nn.CrossEntropyLoss(reduction="sum"), 3)
    with torch.no_grad():
        signals = [x, model[:3](x), model[:6](x)]
    rows = of_result(result, loss, Setting(signal=max(float(s.norm(dim=1).max()) for s in signals)))
    assert [row.name for row in rows] == ["0", "3", "6"]
    assert [row.normalized is None for row in rows] == [False, False, True]
    for sample in x:
        for row in rows:
            counts = row.normalized or row.without
            weight = dict(model.named_parameters())[f"{row.name}.weight"]
            out = nn.functional.cross_entropy(model(sample[None]), torch.tensor([0]))
            (gradient,) = torch.autograd.grad(out, weight)
            assert float(gradient.norm()) <= counts.lipschitz.value * (1 + 1e-6)


def test_wrong_settings() -> None:
    """Positive numbers, and some layer."""
    with pytest.raises(InputError, match="Expected delta to be positive"):
        Setting(delta=0.0)
    with pytest.raises(InputError, match="Expected alpha to be positive"):
        Setting(alpha=math.nan)
    with pytest.raises(InputError, match="at least one layer"):
        layer_complexities([], ONE, Setting())


def test_what_is_no_chain_is_seen() -> None:
    """A skip connection and a steep activation; a plain chain with LayerNorm is one."""
    chain = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 4))
    skip = Lambda(lambda s, x: x + s.b(torch.relu(s.a(x))), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    steep = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    found = [
        seen_as_chain(analyze(seeded(model).eval(), points(3, 4), points=1, ascent=0)) for model in (chain, skip, steep)
    ]
    assert found == [True, False, False]
