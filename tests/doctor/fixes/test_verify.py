"""Two sets of weights, one function?"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from checking import noise
from fingerprints import fingerprint
from networks import Lambda
from normscope.core.errors import ModelFailedError
from normscope.doctor.fixes.verify import difference, outputs_of
from normscope.graph.inputs import ModelInputs


def test_the_difference_is_relative_and_the_model_is_left_alone() -> None:
    """A thousandth more."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    after = before | {"1.weight": before["1.weight"] * 1.001}
    mark = fingerprint(model)
    off = difference(model, before, after, [ModelInputs((noise(4, 3),))])
    assert abs(off.relative - 1e-3) < 1e-5
    assert off.samples == 4
    assert not off.is_rounding
    assert fingerprint(model) == mark


def test_outputs_are_those_of_evaluation() -> None:
    """Of a model in training mode too: running statistics, no dropout."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    x = noise(4, 3)
    (found,) = outputs_of(model, model.state_dict(), ModelInputs((x,)))
    assert model.training
    with torch.no_grad():
        torch.testing.assert_close(found, model.eval()(x))


def test_what_is_not_a_number_is_not_the_same() -> None:
    """NaN after the change."""
    model = nn.Linear(2, 1)
    state = dict(model.state_dict())
    broken = state | {"bias": torch.tensor([float("nan")])}
    assert difference(model, state, broken, [ModelInputs((noise(3, 2),))]).relative == math.inf
    assert len(outputs_of(model, state, ModelInputs((noise(3, 2),)))) == 1


@pytest.mark.parametrize("samples", [1, 3])
def test_what_was_infinite_and_is_not_any_more_is_not_the_same(samples: int) -> None:
    """Infinity relative to infinity is no small difference."""
    model = nn.Linear(2, 1)
    state = {"weight": torch.ones(1, 2), "bias": torch.tensor([math.inf])}
    for one, other in ((state, state | {"bias": torch.zeros(1)}), (state | {"bias": torch.zeros(1)}, state)):
        off = difference(model, one, other, [ModelInputs((noise(samples, 2),))])
        assert off.relative == math.inf
        assert not off.is_rounding


def test_a_large_constant_hides_nothing() -> None:
    """Twice the weight beside a bias of ten million: the outputs hardly change, how they vary doubles."""
    model = nn.Linear(2, 1)
    state = {"weight": torch.ones(1, 2), "bias": torch.tensor([1e7])}
    off = difference(model, state, state | {"weight": torch.full((1, 2), 2.0)}, [ModelInputs((noise(3, 2),))])
    assert off.relative < 1e-5
    assert off.variation is not None
    assert off.variation > 0.5
    assert not off.is_rounding


def test_a_model_of_one_precision_is_verified_in_it() -> None:
    """Where float64 does not run."""
    model = Lambda(lambda s, x: s.a(x) @ torch.ones(2, 2), a=nn.Linear(3, 2))
    state = dict(model.state_dict())
    assert difference(model, state, state, [ModelInputs((noise(3, 3),))]).variation is None


@pytest.mark.parametrize("runs", [0, 1, 2])
def test_a_model_that_fails_on_a_later_run_gets_a_clear_error(runs: int) -> None:
    """With what the model said; one that fails in the wider precision alone is verified in its own."""
    left = [runs]

    def count(module: nn.Module, x: Tensor) -> Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise LookupError("no table for this batch")
        return x

    model = nn.Sequential(Lambda(count), nn.Linear(3, 2))
    state = model.state_dict()
    batches = [ModelInputs((noise(4, 3),))]
    if runs < 2:
        with pytest.raises(ModelFailedError, match="no table for this batch"):
            difference(model, state, state, batches)
    else:
        assert difference(model, state, state, batches).variation is None
