"""What one pass over the probe shows."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from monitor.moments import batch, moment_of, small
from normscope.generalization.margins import margins
from normscope.monitor.quantities.probe_pass import Margins, ProbeLoss, Variances


def test_it_is_the_training_loss_without_dropout() -> None:
    x, y = batch()
    truth = float(F.cross_entropy(small()(x), y).detach())
    assert ProbeLoss().measure(moment_of(small(), (x, y)))["probe/loss"] == pytest.approx(truth, rel=1e-6)
    assert ProbeLoss().measure(moment_of(small(), x)) == {}


def test_margins_by_hand() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0], [1.0, 1.0, 1.0]])
    assert margins(scores, torch.tensor([0, 2, 1])).tolist() == [1.0, -1.0, 0.0]


def test_quantiles_and_accuracy() -> None:
    model, (x, y) = small(), batch(40)
    found = Margins().measure(moment_of(model, (x, y)))
    logits = small()(x).detach()
    right = (logits.argmax(1) == y).double().mean()
    assert found["probe/accuracy"] == pytest.approx(float(right))
    every = sorted(
        float(row[c] - max(float(row[j]) for j in range(3) if j != c))
        for row, c in zip(logits, y.tolist(), strict=True)
    )
    assert found["margin/minimum"] == pytest.approx(every[0], abs=1e-5)
    assert found["margin/median"] == pytest.approx((every[19] + every[20]) / 2, abs=1e-5)
    assert found["margin/minimum"] <= found["margin/tenth"] <= found["margin/median"]


def test_no_classes_no_margins() -> None:
    x, _ = batch()
    assert Margins().measure(moment_of(small(), x)) == {}
    assert Margins().measure(moment_of(small(), (x, torch.zeros(12, 3)))) == {}


def test_variances_are_those_of_the_probe() -> None:
    model, (x, _) = small(), batch()
    found = Variances().measure(moment_of(model, x))
    before = model.conv1(x).detach().double().var(dim=(0, 2, 3), correction=0)
    assert found["variance/bn1"] == pytest.approx(float(before.mean()), rel=1e-5)
    assert found["variance_min/bn1"] == pytest.approx(float(before.min()), rel=1e-5)
    assert sum(name.startswith("variance/") for name in found) == 4  # two normalizers, two activations
    assert sum(name.startswith("variance_min/") for name in found) == 2


def test_a_normalized_activation_has_the_variance_of_the_scale() -> None:
    model = small()
    with torch.no_grad():
        model.bn1.weight.fill_(2.0)
    found = Variances().measure(moment_of(model, batch()[0]))
    activations = sorted(name for name in found if "bn1" not in name and "ln" not in name and "min" not in name)
    assert any(found[name] == pytest.approx(4.0, rel=1e-3) for name in activations)
