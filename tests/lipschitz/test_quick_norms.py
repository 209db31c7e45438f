"""Quick norms stay above dense singular values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from checking import initialized, noise
from networks import Lambda, jacobian, program_of, spectral_norm
from normscope.lipschitz.quick_norms import FiniteNorms, QuickNorms, affordable, frobenius_norm, gram_cost
from normscope.operators.expression import Expr


def _ends(model: nn.Module, x: Tensor) -> tuple[Expr, Expr]:
    """Return input and output of a linear network."""
    program = program_of(model, x)
    return program.atoms[0], program.outputs[0][1]


def _branches(s: Lambda, x: Tensor) -> Tensor:
    y = s.a(x)
    return torch.cat([y + s.b(y), nn.functional.avg_pool2d(y, 1)], 1)


CASES = {
    "convolutions": nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 2, stride=2), nn.AvgPool2d(2)),
    "groups": nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Conv2d(4, 4, 3, groups=4)),
    "transposed": nn.Sequential(nn.ConvTranspose2d(2, 3, 2, stride=2), nn.Conv2d(3, 2, 1)),
    "branches": Lambda(_branches, a=nn.Conv2d(2, 3, 3), b=nn.Conv2d(3, 3, 1)),
    "flattened": nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 5)),
}


@pytest.mark.parametrize("name", CASES)
def test_they_are_upper_bounds(name: str) -> None:
    """Of linear networks, and not absurdly large."""
    model = initialized(CASES[name]).double()
    x = noise(1, 2, 6, 6).double()
    source, target = _ends(model, x)
    truth = spectral_norm(jacobian(model, x))
    bound = math.exp(QuickNorms().norm(source, target).log_upper)
    assert truth <= bound <= 30 * truth


@pytest.mark.parametrize("name", CASES)
def test_lengths_of_weights_bound_too(name: str) -> None:
    """Where no time is left for the norm of any weight, at most the root of the rank too large for each of three."""
    model = initialized(CASES[name]).double()
    x = noise(1, 2, 6, 6).double()
    source, target = _ends(model, x)
    exact, rough = (math.exp(norms.norm(source, target).log_upper) for norms in (QuickNorms(), QuickNorms(most=0.0)))
    assert exact < rough <= 3**1.5 * exact


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_a_length_is_not_understated(scale: float) -> None:
    """Also where squares leave the range of float64."""
    matrix = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64) * scale
    assert 5.0 * scale <= frobenius_norm(matrix) <= 5.0 * scale * (1 + 1e-12)


def test_costs_that_tie_are_paid_together_or_not_at_all() -> None:
    """Three of one size do not fit: none of them is affordable."""
    weights = [torch.ones(2, 2), *(torch.ones(4, 4) for _ in range(3))]
    assert [gram_cost(w) for w in weights] == [8.0, 64.0, 64.0, 64.0]
    assert affordable(weights, 150.0) == 8.0
    assert affordable(weights, 200.0) == math.inf


def test_one_matrix_is_measured_exactly() -> None:
    """By its singular values."""
    model = initialized(nn.Linear(5, 4)).double()
    source, target = _ends(model, noise(1, 5).double())
    truth = float(torch.linalg.matrix_norm(model.weight.detach(), 2))
    assert math.exp(QuickNorms().norm(source, target).log_upper) == pytest.approx(truth, rel=1e-6)


def test_finite_norms_say_nothing_but_finite() -> None:
    """One for every map."""
    source, target = _ends(initialized(nn.Linear(5, 4)).double(), noise(1, 5).double())
    assert FiniteNorms().norm(source, target).log_upper == 0.0
    assert FiniteNorms().has_closed_form(source, target)
