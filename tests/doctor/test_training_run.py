"""Which parameters act when a model is trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import noise
from fingerprints import fingerprint
from networks import Lambda
from normscope.doctor.training_run import acting_in_training
from normscope.graph.inputs import ModelInputs


def test_only_parameters_that_change_the_outputs_act() -> None:
    """Each alone, though all are moved first; the model, its statistics and modes stay as they were."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[3].eval()
    mark = fingerprint(model)
    found = acting_in_training(model, ModelInputs((noise(8, 3),)), ["0.bias", "2.bias", "4.bias"])
    assert found == {"4.bias"}  # train() puts a part in evaluation mode into training mode
    assert fingerprint(model) == mark


def test_dropout_is_no_effect_of_a_parameter() -> None:
    """Both runs draw the same numbers."""
    model = nn.Sequential(nn.Linear(3, 40), nn.BatchNorm1d(40), nn.Dropout(), nn.Linear(40, 2))
    assert acting_in_training(model, ModelInputs((noise(8, 3),)), ["0.bias"]) == set()


def test_a_model_that_does_not_run_in_training_is_not_tested() -> None:
    """It may need targets then."""

    def forward(m: Lambda, x: Tensor) -> Tensor:
        assert not m.training
        return m.layer(x)

    model = Lambda(forward, layer=nn.Linear(3, 2))
    assert acting_in_training(model, ModelInputs((torch.ones(2, 3),)), ["layer.bias"]) == set()
