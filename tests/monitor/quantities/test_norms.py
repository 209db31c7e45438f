"""Norms of layers, constants of normalizers, and the products of both."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from monitor.moments import batch, dense, moment_of, small
from normscope import analyze
from normscope.core.value import Kind
from normscope.monitor.quantities import descriptions
from normscope.monitor.quantities.norms import ChainEstimate, FoldedNorms, InverseSigma, SpectralNorms, lower_product
from normscope.zoo.networks.mlp import relu10


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


def test_fixed_statistics() -> None:
    model = small()
    found = InverseSigma().measure(moment_of(model, batch()))
    inverse = (model.bn1.running_var.double() + model.bn1.eps).rsqrt()
    assert found["printed/bn1"] == pytest.approx(float(inverse.norm()), rel=1e-9)
    truth = float((model.bn1.weight.detach().double().abs() * inverse).max())
    assert truth <= found["constant/bn1"] <= truth * (1 + 1e-12)


def test_statistics_of_the_input_are_taken_at_the_least_one_of_the_probe() -> None:
    model = small()
    moment = moment_of(model, batch(), mode="running")
    found = InverseSigma().measure(moment)
    floor = float(moment.look.floors["ln"])
    assert found["printed/ln"] == pytest.approx(1 / math.sqrt(floor**2 + model.ln.eps), rel=1e-9)
    # a smaller scale than its largest entry: the mean a normalizer removes is taken into account
    largest = float(model.ln.weight.detach().abs().max()) / math.sqrt(floor**2 + model.ln.eps)
    assert 0.5 * largest < found["constant/ln"] <= largest * (1 + 1e-9)


def test_products() -> None:
    found = InverseSigma().measure(moment_of(small(), batch()))
    printed = math.log10(found["printed/bn1"]) + math.log10(found["printed/ln"])
    assert found["product/inverse_sigma_printed_log10"] == pytest.approx(printed)
    proved = math.log10(found["constant/bn1"]) + math.log10(found["constant/ln"])
    assert found["product/inverse_sigma_proved_log10"] == pytest.approx(proved)


def test_products_with_and_without_the_scale() -> None:
    model = small()
    found = InverseSigma().measure(moment_of(model, batch(), mode="running"))
    assert "product/inverse_sigma_slides_log10" not in found  # LayerNorm has no such constant here
    floor = float(moment_of(model, batch(), mode="running").look.floors["ln"])
    inverse = (model.bn1.running_var.double() + model.bn1.eps).rsqrt()
    truth = math.log10(float(inverse.max())) - 0.5 * math.log10(floor**2 + model.ln.eps)
    assert found["product/inverse_sigma_unscaled_log10"] == pytest.approx(truth, abs=1e-9)
    assert found["product/inverse_sigma_unscaled_log10"] != pytest.approx(found["product/inverse_sigma_proved_log10"])


def test_the_slides_have_the_scale_in_the_printed_norm() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), nn.BatchNorm1d(4))
    gamma = torch.tensor([0.5, -3.0, 1.0, 2.0])
    with torch.no_grad():
        model[1].weight.copy_(gamma)
    found = InverseSigma().measure(moment_of(model, torch.eye(3).repeat(2, 1)))
    inverse = [(model[i].running_var.double() + model[i].eps).rsqrt() for i in (1, 4)]
    truth = math.log10(float((gamma.double() * inverse[0]).norm())) + math.log10(float(inverse[1].norm()))
    assert found["product/inverse_sigma_slides_log10"] == pytest.approx(truth, abs=1e-9)


def test_normalizers_of_weights_and_networks_without_any_have_none() -> None:
    plain = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.ReLU())
    assert InverseSigma().measure(moment_of(plain, torch.randn(4, 3))) == {}


def test_on_a_plain_chain_it_is_the_product_of_the_certified_folded_norms() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = relu10("bn", width=12, in_features=16, depth=4).train()
        x = torch.randn(64, 16)
        for _ in range(5):
            model(x)
    result = analyze(model, x, stacked=False)
    truth = sum((layer.folded or layer.upper).log10 for layer in result.layers)
    (found,) = ChainEstimate().measure(moment_of(model, x)).values()
    assert truth - 1e-2 < found <= truth + 1e-9


def test_normalizers_that_are_not_folded_count_once() -> None:
    moment = moment_of(small(), batch())
    (found,) = ChainEstimate().measure(moment).values()
    folded = FoldedNorms().measure(moment)["product/folded_log10"]
    constant = moment.constants["ln"].on_floor.value
    rest = sum(math.log10(x) for x in (moment.norms["conv2"], moment.norms["head"], constant))
    assert abs(found - folded - rest) < 1e-9


def test_it_is_called_an_estimate() -> None:
    (kind,) = [d.kind.value for d in descriptions() if d.matches("bound/chain_log10")]
    assert kind == "estimate"
    assert ChainEstimate().measure(moment_of(nn.Sequential(nn.ReLU()), torch.randn(2, 3))) == {}
