"""Constants of normalizers, printed and proved."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from monitor.moments import batch, moment_of, small
from normscope.monitor.quantities.inverse_sigma import InverseSigma


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
    floor = float(moment.probe_pass.floors["ln"])
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
    floor = float(moment_of(model, batch(), mode="running").probe_pass.floors["ln"])
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
