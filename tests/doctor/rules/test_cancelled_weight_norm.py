"""NS104 against gradients: the gain of weight normalization before a normalizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from checking import gradients, noise, places


def _layer() -> nn.Module:
    """Return a convolution with weights of its own."""
    layer = nn.Conv2d(3, 4, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(noise(4, 3, 3, 3, seed=5))
    return layer


@pytest.mark.parametrize(
    ("after", "cancels"),
    [(nn.BatchNorm2d(4), True), (nn.InstanceNorm2d(4), True), (nn.GroupNorm(2, 4), False), (nn.Identity(), False)],
    ids=["batch", "instance", "group", "none"],
)
def test_the_gain_is_told_exactly_where_its_gradient_is_zero(after: nn.Module, cancels: bool) -> None:
    """A normalizer of single channels cancels one gain per channel; eps leaves a trace of it."""
    model = nn.Sequential(weight_norm(_layer()), after, nn.ReLU())
    assert places("NS104", model.eval(), noise(4, 3, 6, 6)) == (["0"] if cancels else [])
    grads = gradients(model, 100 * noise(4, 3, 6, 6))
    gain = float(grads["0.parametrizations.weight.original0"].abs().max())
    direction = float(grads["0.parametrizations.weight.original1"].abs().max())
    assert (gain < 1e-6 * direction) == cancels


def test_spectral_normalization_is_cancelled_by_any_normalizer() -> None:
    """It divides by one number, which GroupNorm does not notice either."""
    for after in (nn.BatchNorm2d(4), nn.GroupNorm(2, 4)):
        model = nn.Sequential(spectral_norm(_layer()), after, nn.ReLU()).eval()
        assert places("NS104", model, noise(4, 3, 6, 6)) == ["0"]
    assert places("NS104", nn.Sequential(spectral_norm(_layer()), nn.ReLU()).eval(), noise(4, 3, 6, 6)) == []


def test_a_bias_that_is_not_cancelled_keeps_the_gain_alive() -> None:
    """LayerNorm sees the gain against the bias."""
    layer = nn.Linear(5, 4)
    with torch.no_grad():
        layer.weight.copy_(noise(4, 5))
        layer.bias.copy_(noise(4))
    assert places("NS104", nn.Sequential(spectral_norm(layer), nn.LayerNorm(4)).eval(), noise(3, 5)) == []
