"""A batch as one input: constants in the weights against dense Jacobians of the whole batch."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import normscope
from networks import Lambda, points, seeded, spectral_norm
from normscope.core.value import Kind
from normscope.lipschitz.weights.result import WeightResult

X = points(6, 4)


def _dense(model: nn.Module, name: str, x: Tensor) -> float:
    """Return the norm of the Jacobian of all outputs of a batch in one weight."""
    weight = dict(model.named_parameters())[name].detach()
    buffers = {key: value.clone() for key, value in model.named_buffers()}

    def of(w: Tensor) -> Tensor:
        return torch.func.functional_call(
            model, {name: w, **{k: b.clone() for k, b in buffers.items()}}, (x,)
        ).flatten()

    return spectral_norm(torch.autograd.functional.jacobian(of, weight).reshape(-1, weight.numel()))


def _found(model: nn.Module, **settings: object) -> WeightResult:
    return normscope.weight_lipschitz(model, X, points=1, **{"stacked": True} | settings)  # type: ignore[arg-type]


def test_a_single_layer_has_the_norm_of_the_stacked_input() -> None:
    """``||H||_2`` of the rows together, which is less than the root of the sum of their squares."""
    (row,) = _found(seeded(nn.Linear(4, 3, bias=False))).weights
    truth = spectral_norm(X)
    for key in ("certified", "input_norm", "attained"):
        assert row.stacked[key].value == pytest.approx(truth, rel=1e-9), key
    assert truth < float(X.norm())
    assert row.stacked["certified"].domain == "the first 6 samples stacked, at these weights"


@pytest.mark.parametrize("norm", [nn.Identity(), nn.LayerNorm(5)])
def test_attained_is_the_jacobian_of_the_batch(norm: nn.Module) -> None:
    """Dense; and what is certified lies above."""
    model = seeded(nn.Sequential(nn.Linear(4, 5), norm, nn.Tanh(), nn.Linear(5, 3)))
    result = _found(model)
    assert {row.name for row in result.weights} == {name for name, _ in model.named_parameters()}
    for row in result.weights:
        truth = _dense(model, row.name, X)
        assert row.stacked["attained"].value == pytest.approx(truth, rel=1e-6), row.name
        assert row.stacked["attained"].kind is Kind.LOWER
        assert truth <= row.stacked["certified"].value, row.name


def test_batch_norm_uses_the_statistics_of_the_batch() -> None:
    """The Jacobian in training mode, where the other constants are of the running statistics."""
    model = seeded(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)))
    training = copy.deepcopy(model).train()
    for row in _found(model).weights:
        assert row.stacked["certified"].mode == "batch"
        truth = _dense(training, row.name, X)
        # The bias before BatchNorm cancels: its derivative is zero but for rounding.
        assert row.stacked["attained"].value == pytest.approx(truth, rel=1e-6, abs=1e-9), row.name
        assert truth <= row.stacked["certified"].value * (1 + 1e-9) + 1e-12, row.name


def test_all_weights_together() -> None:
    """The root of the sum of squares is proved; the norm of the whole Jacobian is attained."""
    model = seeded(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
    result = _found(model)
    squares = sum(row.stacked["certified"].value ** 2 for row in result.weights)
    assert result.jointly["stacked_certified"].value == pytest.approx(math.sqrt(squares), rel=1e-9)
    names = [name for name, _ in model.named_parameters()]

    def of(*weights: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (X,)).flatten()

    parts = torch.autograd.functional.jacobian(of, tuple(p.detach() for p in model.parameters()))
    truth = spectral_norm(torch.cat([p.reshape(p.shape[0], -1) for p in parts], 1))
    assert result.jointly["stacked_attained"].value == pytest.approx(truth, rel=1e-6)


def test_it_is_left_out_where_there_is_nothing_to_stack() -> None:
    """One sample, samples that meet anyway, or nobody asked."""
    model = seeded(nn.Linear(4, 3))
    one = normscope.weight_lipschitz(model, X[:1], points=1, stacked=True)
    met = _found(seeded(Lambda(lambda s, x: s.a(x - x.mean(0, keepdim=True)), a=nn.Linear(4, 3))))
    for result in (one, met, _found(model, stacked=False)):
        assert all(row.stacked == {} for row in result.weights)
        assert not any(key.startswith("stacked") for key in result.jointly)


def test_at_most_sixteen_samples_are_stacked() -> None:
    """The first ones of the data."""
    data = points(20, 4, seed=2)
    (row,) = normscope.weight_lipschitz(seeded(nn.Linear(4, 3, bias=False)), data, points=1, stacked=True).weights
    assert row.stacked["certified"].value == pytest.approx(spectral_norm(data[:16]), rel=1e-9)
    assert "first 16 samples" in row.stacked["certified"].domain
