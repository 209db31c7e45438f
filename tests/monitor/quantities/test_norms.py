"""Spectral norms of layers."""

from __future__ import annotations

import pytest
import torch

from monitor.moments import batch, dense, moment_of, small
from normscope import analyze
from normscope.core.value import Kind
from normscope.monitor.quantities.norms import SpectralNorms, lower_product


def test_norms_are_those_of_the_layers_from_below() -> None:
    found = SpectralNorms().measure(moment_of(small(), batch()))
    double = small().double()
    whole = 1.0
    for name, shape in (("conv1", (2, 6, 6)), ("conv2", (5, 6, 6)), ("head", (16,))):
        layer = getattr(double, name)
        truth = float(torch.linalg.matrix_norm(dense(lambda x, f=layer: f(x) - f(torch.zeros_like(x)), shape), 2))
        assert found[f"norm/{name}"] <= truth
        assert found[f"norm/{name}"] > 0.999 * truth
        whole *= truth
    assert 10 ** found["product/norms_log10"] == pytest.approx(whole, rel=1e-2)
    assert 10 ** found["product/norms_log10"] <= whole


def test_norms_lie_below_the_certified_ones() -> None:
    found = SpectralNorms().measure(moment_of(small(2), batch()))
    result = analyze(small(2), batch()[0], stacked=False)
    for layer in result.layers:
        assert found[f"norm/{layer.name}"] <= layer.upper.value


def test_the_product_is_a_lower_bound_and_does_not_overflow() -> None:
    value = lower_product([1e300] * 40)
    assert value.kind is Kind.LOWER
    assert value.log10 == pytest.approx(12000)
