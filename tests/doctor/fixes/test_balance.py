"""Balanced pairs of layers."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from checking import initialized, noise
from networks import program_of
from normscope.doctor.fixes import fix
from normscope.doctor.fixes.balance import KIND, powers_of_two
from normscope.lipschitz.chains.join import Chains
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.local.ball import on_balls
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.segments import SegmentNorms


def _unbalanced(*layers: nn.Module, factor: float = 1000.0) -> nn.Module:
    """Return layers with the first far larger than the last."""
    model = initialized(nn.Sequential(*layers))
    with torch.no_grad():
        model[0].weight.mul_(factor)
        model[0].bias.mul_(factor)
        model[-1].weight.div_(factor)
    return model


CASES = {
    "linear": (_unbalanced(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)), (5,)),
    "leaky": (_unbalanced(nn.Linear(5, 6), nn.LeakyReLU(0.25), nn.Linear(6, 3)), (5,)),
    "convolutions": (_unbalanced(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 2, 3)), (3, 6, 6)),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_and_columns_get_about_one_length_and_not_a_bit_changes(name: str) -> None:
    """Factors are powers of two: within a factor of two of balance, and exact."""
    model, shape = CASES[name]
    x = noise(8, *shape)
    result = fix(model, x, only=[KIND])
    other = copy.deepcopy(model)
    other.load_state_dict(result.state)
    other.requires_grad_(False)
    assert torch.equal(other(x), model(x))
    assert result.difference == 0.0
    into = (other[0].weight.flatten(1).square().sum(1) + other[0].bias.square()).sqrt()
    out = other[-1].weight.movedim(1, 0).flatten(1).norm(dim=1)
    assert float((into / out).log2().abs().max()) <= 1.0 + 1e-6


@pytest.mark.parametrize("name", CASES)
def test_no_bound_becomes_worse(name: str) -> None:
    """On all inputs and on a ball: the function is the same, so are the constants."""
    model, shape = CASES[name]
    x = noise(8, *shape)
    other = copy.deepcopy(model)
    other.load_state_dict(fix(model, x, only=[KIND]).state)
    bounds = []
    for network in (model, other):
        program = program_of(copy.deepcopy(network).double(), x[:1].double())
        norms = SegmentNorms()
        everywhere = Composition(program, Domain(), norms, Chains(program, seconds=0.2)).total()[0]
        around = on_balls(program, Steps(norms), [x[:1].double()], [0.1])[0].constant
        bounds.append((math.exp(everywhere), around))
    for before, after in zip(*bounds, strict=True):
        assert after == pytest.approx(before, rel=1e-3)


def test_other_activations_are_left_alone() -> None:
    """GELU is not homogeneous."""
    model = _unbalanced(nn.Linear(5, 6), nn.GELU(), nn.Linear(6, 3))
    assert fix(model, noise(8, 5), only=[KIND]).changes == ()


def test_balanced_pairs_are_left_alone() -> None:
    """Twice is once."""
    model, shape = CASES["linear"]
    other = copy.deepcopy(model)
    other.load_state_dict(fix(model, noise(8, *shape), only=[KIND]).state)
    assert fix(other, noise(8, *shape), only=[KIND]).changes == ()


def test_dead_units_are_left_alone() -> None:
    """Zero in, or zero out."""
    assert powers_of_two(torch.tensor([0.0, 1.0, 1e300]), torch.tensor([1.0, 0.0, 1e-300])).tolist()[:2] == [1.0, 1.0]


@pytest.mark.parametrize(("into", "out", "exponent"), [(1e-30, 1e30, 39), (1e30, 1e-30, -39), (1e-300, 1e300, 39)])
def test_extreme_factors_are_powers_of_two(into: float, out: float, exponent: int) -> None:
    """The largest and the smallest factor are powers of two as well, so that scaling by them is exact."""
    exact = torch.tensor([into], dtype=torch.float64), torch.tensor([out], dtype=torch.float64)
    assert powers_of_two(*exact).log2().tolist() == [exponent]
