"""What a glance attains lies below the true norm, and near it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from normscope.graph.capture import capture
from normscope.graph.inputs import ModelInputs
from normscope.lipschitz.glance import glance
from normscope.operators.program import build_program


def _glance(model: nn.Module, x: torch.Tensor) -> float | None:
    captured = capture(model.eval(), ModelInputs((x,)))
    one = captured.at_batch(1)
    return glance(captured, build_program(captured.graph, captured.tensors, one), one).everywhere


def test_a_linear_map_is_not_overstated() -> None:
    """The truth is the largest singular value; two rounds of power iteration come within half of it."""
    torch.manual_seed(0)
    layer = nn.Linear(12, 7)
    truth = float(torch.linalg.matrix_norm(layer.weight.detach().double(), ord=2))
    found = _glance(layer, torch.randn(2, 12))
    assert found is not None
    assert 0.5 * truth < math.exp(found) <= truth


def test_a_network_stays_below_its_bound() -> None:
    """ReLU, BatchNorm with running statistics: below the product of norms."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))
    norms = [float(torch.linalg.matrix_norm(m.weight.detach().double(), ord=2)) for m in (model[0], model[3])]
    found = _glance(model, torch.randn(2, 6))
    assert found is not None
    assert 0.0 < math.exp(found) <= norms[0] * norms[1]


def test_a_constant_attains_nothing() -> None:
    """No direction moves it."""

    class Constant(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 0.0

    assert _glance(Constant(), torch.ones(2, 3)) is None


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_number(seed: int) -> None:
    """Twice."""
    torch.manual_seed(2)
    layer = nn.Linear(5, 5)
    x = torch.randn(2, 5)
    captured = capture(layer.eval(), ModelInputs((x,)))
    one = captured.at_batch(1)
    program = build_program(captured.graph, captured.tensors, one)
    assert glance(captured, program, one, seed) == glance(captured, program, one, seed)
