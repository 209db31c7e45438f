"""Layers folded with the normalization after them."""

from __future__ import annotations

import pytest
import torch

from monitor.moments import batch, dense, moment_of, small
from normscope.monitor.quantities.folded import FoldedNorms
from normscope.monitor.quantities.norms import SpectralNorms


def test_the_folded_norm_is_that_of_both_maps() -> None:
    found = FoldedNorms().measure(moment_of(small(), batch()))
    double = small().double().eval()
    both = dense(lambda x: double.bn1(double.conv1(x)) - double.bn1(double.conv1(torch.zeros_like(x))), (2, 6, 6))
    truth = float(torch.linalg.matrix_norm(both, 2))
    assert found["folded/conv1"] <= truth
    assert found["folded/conv1"] > 0.999 * truth
    assert set(found) == {"folded/conv1", "product/folded_log10"}


def test_rescaling_a_weight_moves_the_norm_and_not_the_folded_one() -> None:
    """The symmetry of BatchNorm: W -> c W with the running statistics that follow it."""
    model = small()
    model.bn1.eps = 0.0
    before = moment_of(model, batch())
    folded, plain = FoldedNorms().measure(before), SpectralNorms().measure(before)
    with torch.no_grad():
        model.conv1.weight.mul_(8.0)
        model.bn1.running_mean.mul_(8.0)
        model.bn1.running_var.mul_(64.0)
    after = moment_of(model, batch())
    assert FoldedNorms().measure(after)["product/folded_log10"] == pytest.approx(
        folded["product/folded_log10"], abs=1e-5
    )
    assert SpectralNorms().measure(after)["norm/conv1"] == pytest.approx(8 * plain["norm/conv1"], rel=1e-3)
