"""What is proved about the next step, as a quantity of the monitor."""

from __future__ import annotations

import torch
from torch import nn

from monitor.moments import moment_of
from normscope.monitor.quantities.weight_norm_theory import WeightNormTheory
from normscope.weight_normalization.measure import square_loss
from normscope.weight_normalization.network import WeightNormNetwork

X, Y = torch.eye(3), torch.ones(3, 1)


def test_the_proved_contraction_holds_for_the_step() -> None:
    net = WeightNormNetwork(3, width=8, depth=2, seed=0)
    found = WeightNormTheory().measure(moment_of(net, (X, Y)))
    before = square_loss(net(X), Y)
    slopes = torch.autograd.grad(before, list(net.parameters()))
    with torch.no_grad():
        for p, g in zip(net.parameters(), slopes, strict=True):
            p -= found["weight_norm/largest_certified_step"] * g
        after = square_loss(net(X), Y)
    assert 0 < found["weight_norm/contraction"] < 1
    assert after <= found["weight_norm/contraction"] * before * (1 + 1e-6)
    assert {d.pattern for d in WeightNormTheory.describes} == set(found)


def test_models_and_labels_outside_the_theory_give_nothing() -> None:
    assert WeightNormTheory().measure(moment_of(nn.Linear(3, 1), (X, Y))) == {}
    assert WeightNormTheory().measure(moment_of(WeightNormNetwork(3, width=8, depth=1, seed=0), X)) == {}


def test_class_numbers_are_rows_with_a_single_one() -> None:
    net = WeightNormNetwork(3, width=8, depth=1, outputs=2, seed=0)
    labels = torch.tensor([0, 1, 1])
    found = WeightNormTheory().measure(moment_of(net, (X, labels)))
    assert found == WeightNormTheory().measure(moment_of(net, (X, torch.eye(2)[labels])))
    assert "weight_norm/contraction" in found
