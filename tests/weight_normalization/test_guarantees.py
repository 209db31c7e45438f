"""The whole table: bounds above measurements, and words where the theory does not reach."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from normscope.core.value import Kind
from normscope.weight_normalization.guarantees import gap_guarantee, verify
from normscope.weight_normalization.network import WeightNormNetwork
from normscope.weight_normalization.rademacher import generalization_gap_bound, rademacher_bound

X = torch.nn.functional.normalize(torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), dim=1)
Y = torch.randn(40, 2, generator=torch.Generator().manual_seed(1)).tanh()


@pytest.mark.parametrize(
    "net",
    [
        WeightNormNetwork(6, width=16, depth=3, outputs=2, seed=0),
        nn.Sequential(
            weight_norm(nn.Linear(6, 8)), nn.SiLU(), weight_norm(nn.Linear(8, 8)), nn.Tanh(), nn.Linear(8, 2)
        ),
    ],
    ids=["paper", "gains"],
)
def test_every_bound_is_above_what_is_measured(net: nn.Module) -> None:
    found = verify(net, X, Y)
    assert len(found.rows) >= 6
    for row in found.rows:
        for bound in (row.bound, row.tight):
            if bound is not None and row.measured is not None:
                assert row.measured.kind is Kind.LOWER
                assert row.measured.value <= bound.value
    assert found.moment.certificate.proved
    json.dumps(found.to_dict(), allow_nan=False)
    assert "Hessian of the predictor" in str(found)
    assert "<table" in found._repr_html_()


def test_relu_keeps_the_first_order_bounds_and_says_why_there_is_no_more() -> None:
    found = verify(WeightNormNetwork(6, width=16, depth=2, outputs=2, activation="relu", seed=0), X, Y)
    row = found["Hessian of the predictor"]
    assert row.bound.value == float("inf")
    assert "not smooth" in row.note
    assert found["Jacobian in the parameters"].bound.value < float("inf")
    assert "No step size is certified" in str(found)


def test_the_generalization_bound_names_what_it_does_not_cover() -> None:
    gains = nn.Sequential(weight_norm(nn.Linear(6, 8)), nn.Sigmoid(), nn.Linear(8, 2))
    note = gap_guarantee(gains, X, Y).note
    assert "a bias" in note
    assert "not zero at zero" in note
    covered = gap_guarantee(WeightNormNetwork(6, width=16, depth=2, outputs=2, seed=0), X, Y)
    assert covered.bound.kind is Kind.PROBABILISTIC
    assert covered.bound.delta == 0.05
    assert any("independently" in assumed for assumed in covered.bound.assumptions)


def test_the_generalization_bound_is_one_for_all_directions_and_all_outputs() -> None:
    """Of what was trained it depends on the longest row of the output layer alone, rounded up to a power of two."""
    nets = [WeightNormNetwork(6, width=16, depth=3, outputs=3, seed=seed).double() for seed in (0, 1)]
    with torch.no_grad():
        nets[0].hidden[1].weight.copy_(torch.ones(16, 16))  # of rank one: the norm of the layer is its largest
        for net, row in zip(nets, (1, 2), strict=True):
            net[-1].weight.copy_(torch.rand(3, 16, generator=torch.Generator().manual_seed(row)) / 100)
            net[-1].weight[row] *= 3 / net[-1].weight[row].norm()
    targets = torch.randn(40, 3, generator=torch.Generator().manual_seed(1)).tanh()
    bounds = [gap_guarantee(net, X, targets).bound.value for net in nets]
    length, target = X.double().norm(dim=1).max().item(), targets.double().norm(dim=1).max().item()
    radius, share = 4.0, 0.05 / 2**2 / 3
    complexity = rademacher_bound(3, 3 * radius, X.double().norm().item(), 40)
    truth = generalization_gap_bound(complexity, 3**0.5 * radius * length, 40, share, target_norm=target, outputs=3)
    assert bounds == pytest.approx([truth, truth], rel=1e-9)
