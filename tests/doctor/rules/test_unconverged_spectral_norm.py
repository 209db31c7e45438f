"""NS506: power iterations that are behind."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from checking import found, noise
from normscope.doctor.rules.unconverged_spectral_norm import attained_norm


def test_new_weights_under_old_vectors() -> None:
    """Told with the norm it really has; after some iterations it is gone."""
    model = nn.Sequential(spectral_norm(nn.Linear(12, 9)), nn.ReLU()).eval()
    with torch.no_grad():
        model[0].parametrizations.weight.original.copy_(noise(9, 12, seed=5))
    (one,) = found("NS506", model, noise(8, 12))
    true = float(torch.linalg.matrix_norm(model[0].weight.detach().double(), 2))
    assert abs(one.evidence["norm"] - true) < 1e-2 * true
    model.train()
    for _ in range(300):
        model(noise(2, 12))
    assert found("NS506", model.eval(), noise(8, 12)) == []


def test_the_norm_is_attained() -> None:
    """Never above the true one."""
    matrix = noise(7, 11)
    assert attained_norm(matrix) <= float(torch.linalg.matrix_norm(matrix.double(), 2)) * (1 + 1e-12)
    assert attained_norm(torch.zeros(3, 3)) == 0.0
