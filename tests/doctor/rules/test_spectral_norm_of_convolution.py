"""NS505 against dense singular values: what spectral normalization leaves of a convolution."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from checking import found, noise
from networks import jacobian
from networks import spectral_norm as dense_norm


def _normalized(layer: nn.Module, steps: int = 50) -> nn.Module:
    """Return a spectrally normalized layer whose power iteration has converged."""
    with torch.no_grad():
        layer.weight.copy_(noise(*layer.weight.shape).abs())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(spectral_norm(layer))
    model.train()
    with torch.no_grad():
        for _ in range(steps):
            _ = model[0].weight
    return model.eval()


def test_a_convolution_is_told_with_a_norm_that_is_attained() -> None:
    """Between one and sqrt(9), and below the dense norm."""
    model = _normalized(nn.Conv2d(2, 2, 3, padding=1, bias=False))
    (one,) = found("NS505", model, noise(2, 2, 6, 6))
    truth = dense_norm(jacobian(model.double(), noise(1, 2, 6, 6).double()))
    attained = float(one.evidence["attained"])
    assert 1.5 < attained <= truth * (1 + 1e-6)
    assert truth <= float(one.evidence["certificate"]) * (1 + 1e-9)
    assert float(one.evidence["certificate"]) < 3.01


def test_dense_layers_and_1x1_convolutions_are_in_order() -> None:
    """There the reshaped kernel is the map."""
    assert found("NS505", _normalized(nn.Linear(4, 4, bias=False)), noise(3, 4)) == []
    assert found("NS505", _normalized(nn.Conv2d(4, 4, 1, bias=False)), noise(3, 4, 5, 5)) == []
