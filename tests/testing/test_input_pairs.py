"""Pairs reach the norm where there is one to reach, and rounding is not taken for a pair."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from normscope.testing.input_pairs import (
    ascend,
    attack,
    dense_norms,
    most_stretched,
    points_at_all_scales,
    quotients,
    without_rounding,
)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_lanczos_finds_the_norm_of_the_jacobian_at_every_point() -> None:
    """Against singular values of the whole Jacobian; the direction attains it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)).double()
    x = torch.randn(4, 6, dtype=torch.float64)
    norms, directions = most_stretched(model, x, 6, _generator())
    truth = dense_norms(model, x)
    assert torch.allclose(norms, truth, rtol=1e-9)
    step = 1e-6 * directions
    change = (model(x + step) - model(x - step)).norm(dim=1) / 2e-6
    assert torch.allclose(change, truth, rtol=1e-6)


def test_an_attack_reaches_the_constant_of_layer_norm() -> None:
    """Where eps rules, the slope is max |P gamma| / sqrt(eps)."""
    norm = nn.LayerNorm(6, elementwise_affine=False).double()
    points = points_at_all_scales(torch.randn(3, 6, dtype=torch.float64), [(1, 6)], _generator())
    found = attack(norm, points, noise=1e-13, generator=_generator())
    assert math.exp(found.log) == pytest.approx(1e-5**-0.5, rel=1e-6)
    assert found.log <= math.log(1e-5**-0.5)


def test_ascent_climbs() -> None:
    """The slope of tanh(x)^3 is largest away from the start."""
    f = lambda x: torch.tanh(x) ** 3  # noqa: E731
    x = torch.full((1, 1), 0.2, dtype=torch.float64)
    a, b = ascend(f, x, _generator(), 60)
    start = 3 * math.tanh(0.2) ** 2 * (1 - math.tanh(0.2) ** 2)
    assert float(quotients((f(a), f(b)), a, b, 1e-13)) > 1.5 * start


def test_rounding_is_no_refutation() -> None:
    """A difference of large numbers is noise: it counts for nothing, while a sharp quotient is kept."""

    def cancels(x: Tensor) -> Tensor:
        return (x + 1e12) - 1e12

    a = torch.tensor([[1e-6]], dtype=torch.float64)
    b = torch.tensor([[0.9e-6]], dtype=torch.float64)
    assert float(without_rounding(cancels, a, b, 1e-13, _generator())) <= 1.0
    steep = without_rounding(lambda x: 5 * x, a, b, 1e-13, _generator())
    assert float(steep) == pytest.approx(5.0, rel=1e-9)


def test_values_that_are_no_numbers_refute_nothing() -> None:
    """Infinity minus infinity, and what overflows at one end only."""
    a, b = torch.tensor([[2.0], [2.0]]).double(), torch.tensor([[1.0], [0.5]]).double()

    def steep(x: Tensor) -> Tensor:
        return torch.where(x >= 1 - 1e-9, math.inf, x)

    assert quotients((steep(a), steep(b)), a, b, 1e-13).tolist() == [0.0, 0.0]
    assert without_rounding(steep, a, b, 1e-13, _generator()).tolist() == [0.0, 0.0]
