"""What a glance attains lies below the true norm, and near it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from normscope.graph.capture import capture
from normscope.graph.inputs import ModelInputs
from normscope.lipschitz import quick_lower as place
from normscope.lipschitz.quick_lower import glance
from normscope.operators.program import build_program


def _glance(model: nn.Module, x: torch.Tensor) -> float | None:
    captured = capture(model.eval(), ModelInputs((x,)))
    one = captured.at_batch(1)
    return glance(captured, build_program(captured.graph, captured.tensors, one), one).everywhere


HEAVY = pytest.mark.parametrize("heavy", [False, True])


@HEAVY
def test_a_linear_map_is_not_overstated(heavy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The truth is the largest singular value; the power iteration comes within half of it, in one round too."""
    monkeypatch.setattr(place, "HEAVY", -1.0 if heavy else 1e9)
    torch.manual_seed(0)
    layer = nn.Linear(12, 7)
    truth = float(torch.linalg.matrix_norm(layer.weight.detach().double(), ord=2))
    found = _glance(layer, torch.randn(2, 12))
    assert found is not None
    assert 0.5 * truth < math.exp(found) <= truth


def test_rounding_is_taken_off() -> None:
    """Outputs of float32 that differ in their last digits only show nothing."""
    start = torch.full((100,), 1.0)
    assert place._apart(start, torch.nextafter(start, start + 1)) == 0.0
    assert place._apart(start, start + 1) == pytest.approx(10.0, rel=1e-4)
    assert place._apart(start, start + 1) < 10.0


@HEAVY
def test_a_network_stays_below_its_bound(heavy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """ReLU, BatchNorm with running statistics: below the product of norms."""
    monkeypatch.setattr(place, "HEAVY", -1.0 if heavy else 1e9)
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
