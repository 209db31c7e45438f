"""NS602: vectors that weight normalization divides by their length."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from checking import found, initialized, noise


def _layer(factor: float) -> nn.Module:
    """Return a weight-normalized layer with one of its vectors scaled."""
    model = nn.Sequential(weight_norm(initialized(nn.Linear(6, 8))), nn.ReLU()).eval()
    with torch.no_grad():
        model[0].parametrizations.weight.original1[2] *= factor
    return model


@pytest.mark.parametrize(("factor", "told"), [(1.0, False), (0.1, False), (1e-6, True)])
def test_a_short_vector_is_told(factor: float, told: bool) -> None:
    """A thousandth of the median and less."""
    model = _layer(factor)
    findings = found("NS602", model, noise(3, 6))
    assert bool(findings) is told
    assert torch.allclose(model(noise(3, 6)), _layer(1.0)(noise(3, 6)), atol=1e-6)  # the function is the same


def test_the_gradient_grows_as_it_shrinks() -> None:
    """As 1/||v||."""

    def slope(factor: float) -> float:
        model = _layer(factor).double()
        v = model[0].parametrizations.weight.original1
        return float(torch.autograd.grad(model(noise(3, 6).double()).square().sum(), v)[0][2].norm())

    assert slope(1e-3) == pytest.approx(1e3 * slope(1.0), rel=1e-3)
