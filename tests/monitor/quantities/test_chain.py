"""The cheap end-to-end estimate."""

from __future__ import annotations

import math

import torch
from torch import nn

from monitor.moments import batch, moment_of, small
from normscope import analyze
from normscope.monitor.quantities import descriptions
from normscope.monitor.quantities.chain import ChainEstimate
from normscope.monitor.quantities.folded import FoldedNorms
from normscope.zoo.networks.mlp import relu10


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
