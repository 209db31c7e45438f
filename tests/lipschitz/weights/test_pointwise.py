"""Exact norms at a point: rows, Lanczos and closed forms against dense Jacobians."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, seeded
from normscope.lipschitz.weights import pointwise
from normscope.lipschitz.weights.pointwise import dense_weight_norm, norms_at


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _attention() -> nn.Module:
    return nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)


def _recurrent() -> nn.Module:
    return Lambda(lambda m, x: m.head(m.r(x)[0][:, -1]), r=nn.LSTM(3, 4, batch_first=True), head=nn.Linear(4, 2))


def _shared() -> nn.Module:
    return Lambda(lambda m, x: m.f(torch.tanh(m.f(x))) + x, f=nn.Linear(5, 5))


def _through_a_constant() -> nn.Module:
    start = torch.linspace(-1.0, 1.0, 5, dtype=torch.float64)
    return Lambda(lambda m, x: m.f(x) - torch.tanh(m.f(m.start)), f=nn.Linear(5, 3), start=start)


CASES = {
    "through a constant": (_through_a_constant, _normal(1, 5)),
    "chain": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3)), _normal(1, 5)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(16, 3)),
        _normal(1, 2, 4, 4),
    ),
    "attention": (_attention, _normal(1, 4, 6)),
    "recurrent": (_recurrent, _normal(1, 4, 3)),
    "shared": (_shared, _normal(1, 5)),
}
WAYS = ("rows", "lanczos", "together")


@pytest.mark.turns(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_norms_are_those_of_dense_jacobians(
    name: str, way: str, found: Any, dense: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows: to 1e-9; Lanczos: from below and close; one direction for all: from below."""
    build, x = CASES[name]
    model = seeded(build())
    captured, weights = found(model, x)
    if way != "rows":
        monkeypatch.setattr(pointwise, "LARGEST_ROWS", 0)
    if way == "together":
        monkeypatch.setattr(pointwise, "AFFORDABLE", 0.0)
    norms = norms_at(captured, weights, [x])
    close = {"rows": 1e-9, "lanczos": 1e-4, "together": 1.0}[way]
    for leaf, value in zip(weights.leaves, norms.weights, strict=True):
        if leaf.effective:
            continue  # no parameter of the model
        truth = dense(model, leaf.name, x)
        assert truth * (1 - close) - 1e-9 <= value <= truth * (1 + 1e-12), leaf.name
    if way == "rows":
        assert norms.residual < 1e-12
        assert norms.jointly is not None
        assert max(norms.weights) <= norms.jointly * (1 + 1e-9)


@pytest.mark.parametrize("way", WAYS[:2])
def test_closed_form_of_a_dense_layer(way: str, found: Any, dense: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``||dh/dW|| = ||J_{y->h}|| ||h_{i-1}||`` for every dense layer on one vector, to 1e-9."""
    model = seeded(
        nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3))
    )
    x = _normal(1, 5)
    captured, weights = found(model, x)
    if way != "rows":
        monkeypatch.setattr(pointwise, "LARGEST_ROWS", 0)
    norms = norms_at(captured, weights, [x])
    met = {"0.weight": x, "3.weight": model[:3](x), "5.weight": model[:5](x)}
    for i, leaf in enumerate(weights.leaves):
        if leaf.name in met:
            output = norms.outputs[i]
            assert output is not None
            value, truth = dense_weight_norm(output, met[leaf.name]), dense(model, leaf.name, x)
            assert abs(value - truth) <= (1e-9 if way == "rows" else 1e-6) * truth
            assert abs(norms.weights[i] - value) <= 1e-6 * truth


def test_tied_weights_move_together(found: Any, dense: Any) -> None:
    """The Jacobian in a weight used twice is the sum over its uses, not the larger of them."""
    x = _normal(1, 5)
    model = seeded(Lambda(lambda m, x: m.f(x) - m.f(x), f=nn.Linear(5, 5)))
    captured, weights = found(model, x)
    assert max(norms_at(captured, weights, [x]).weights) == 0.0
    assert dense(model, "f.weight", x) == 0.0


def test_a_bias_the_batch_takes_away_again_has_no_effect(found: Any) -> None:
    """What is only rounding is not reported as attained."""
    model = seeded(Lambda(lambda m, x: m.f(x) - m.f(x).mean(-1, keepdim=True), f=nn.Linear(5, 5)))
    with torch.no_grad():
        model.f.weight.copy_(torch.ones(5, 5))
    captured, weights = found(model, _normal(1, 5))
    assert all(value >= 0.0 for value in norms_at(captured, weights, [_normal(1, 5)]).weights)


def test_the_largest_residual_is_told(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One norm that is less precise than the others must show."""
    residuals = iter([1e-16, 1e-3])
    original = pointwise._top
    monkeypatch.setattr(pointwise, "_top", lambda matrix: (original(matrix)[0], next(residuals, 1e-16)))
    captured, weights = found(seeded(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))), _normal(1, 3))
    assert norms_at(captured, weights, [_normal(1, 3)]).residual == 1e-3
