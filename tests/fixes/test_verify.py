"""Two sets of weights, one function?"""

from __future__ import annotations

import math

import torch
from torch import nn

from checking import noise
from normscope.fixes.verify import difference, outputs_of
from normscope.graph.inputs import ModelInputs
from normscope.testing.state import fingerprint


def test_the_difference_is_relative_and_the_model_is_left_alone() -> None:
    """A thousandth more."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    after = before | {"1.weight": before["1.weight"] * 1.001}
    mark = fingerprint(model)
    inputs = ModelInputs((noise(4, 3),))
    worst, samples = difference(model, before, after, [inputs])
    assert abs(worst - 1e-3) < 1e-5
    assert samples == 4
    assert fingerprint(model) == mark


def test_what_is_not_a_number_is_not_the_same() -> None:
    """NaN after the change."""
    model = nn.Linear(2, 1)
    state = dict(model.state_dict())
    broken = state | {"bias": torch.tensor([float("nan")])}
    assert difference(model, state, broken, [ModelInputs((noise(3, 2),))])[0] == math.inf
    assert len(outputs_of(model, state, ModelInputs((noise(3, 2),)))) == 1
