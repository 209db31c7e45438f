"""Slopes, curvatures and values at zero against dense samples of the functions themselves."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from normscope.weight_normalization.activation import activation_of

SMOOTH = [nn.Tanh(), nn.Sigmoid(), nn.GELU(), nn.SiLU(), nn.Softplus(), nn.Softplus(beta=3.0), nn.ELU(), nn.Identity()]


class Steeper(nn.Tanh):
    """A subclass with a function of its own."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return ten times the usual value."""
        return 10 * super().forward(input)


class Renamed(nn.Tanh):
    """A subclass that computes the same."""


@pytest.mark.parametrize("module", SMOOTH, ids=str)
def test_constants_bound_the_function_and_are_attained(module: nn.Module) -> None:
    found = activation_of(module)
    assert found is not None
    x = torch.linspace(-6.0, 6.0, 120_001, dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad(module(x).sum(), x, create_graph=True)[0]
    second = torch.zeros_like(x) if not first.requires_grad else torch.autograd.grad(first.sum(), x)[0]
    for bound, sampled in ((found.slope, first), (found.curvature, second)):
        largest = sampled.detach().abs().max().item()
        assert largest <= bound * (1 + 1e-14)
        assert largest >= 0.99 * bound
    assert module(torch.zeros(1, dtype=torch.float64)).item() == pytest.approx(found.at_zero, abs=1e-12)


def test_curvature_of_tanh() -> None:
    """``4/(3 sqrt(3))``, worked out apart from this code."""
    found = activation_of(nn.Tanh())
    assert found is not None
    assert found.curvature == pytest.approx(0.7698, abs=5e-5)


def test_kinked_activations_have_no_curvature_and_others_are_unknown() -> None:
    for module in (nn.ReLU(), nn.LeakyReLU(0.1), nn.ELU(alpha=0.5)):
        found = activation_of(module)
        assert found is not None
        assert found.curvature == math.inf
    assert activation_of(nn.Softmax(dim=1)) is None
    assert activation_of(Steeper()) is None
    assert activation_of(Renamed()) == activation_of(nn.Tanh())
    assert activation_of(nn.GELU(approximate="tanh")) is None
    assert activation_of(nn.Softplus(beta=0.0)) is None
