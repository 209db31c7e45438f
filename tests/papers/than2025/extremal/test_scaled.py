"""Outputs past the range of floats, against exact products and against the network itself."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.papers.than2025.extremal.extremal import relu_network
from normscope.papers.than2025.extremal.scaled import scaled_output


def test_agrees_with_the_network_where_floats_hold() -> None:
    """Random weights, forty layers."""
    source = torch.Generator().manual_seed(3)
    weights = [torch.randn(6, 6, generator=source, dtype=torch.float64) for _ in range(40)]
    net, x = relu_network(weights), torch.randn(6, generator=source, dtype=torch.float64)
    with torch.no_grad():
        plain = net(x)
    unit, log = scaled_output(net, x)
    assert torch.allclose(unit * math.exp(log), plain, rtol=1e-10, atol=0.0)


def test_goes_on_where_floats_end() -> None:
    """Twelve hundred layers along an eigenvector: the eigenvalue to that power."""
    weight = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    largest = float(torch.linalg.eigvalsh(weight)[1])
    x = torch.linalg.eigh(weight)[1][:, 1].abs()
    assert scaled_output(relu_network([weight] * 1200), x).log == pytest.approx(1200 * math.log(largest), rel=1e-10)


def test_dead_networks_and_zero_inputs() -> None:
    """Minus infinity, and a zero vector."""
    dead = relu_network([-torch.ones(2, 2), torch.ones(2, 2)])
    for x in (torch.ones(2), torch.zeros(2)):
        unit, log = scaled_output(dead, x)
        assert log == -math.inf
        assert not unit.any()


def test_tiny_and_huge_inputs() -> None:
    """Squares of 1e-200 and 1e200 are no floats."""
    net = relu_network([torch.eye(2, dtype=torch.float64)])
    for size in (1e-200, 1e200):
        x = torch.tensor([3 * size, 4 * size], dtype=torch.float64)
        assert scaled_output(net, x).log == pytest.approx(math.log(5) + math.log(size), rel=1e-12)


@pytest.mark.parametrize("layer", [nn.Linear(2, 2), nn.Tanh(), nn.LayerNorm(2)], ids=lambda m: type(m).__name__)
def test_refuses_what_is_not_homogeneous(layer: nn.Module) -> None:
    """A bias, a saturating activation, a normalizer."""
    with pytest.raises(InputError, match=type(layer).__name__):
        scaled_output(nn.Sequential(layer), torch.ones(2))
