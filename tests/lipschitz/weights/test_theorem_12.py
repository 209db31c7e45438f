"""Theorem 12 as printed, and the product that bounds a chain without normalizers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from networks import Lambda, seeded
from normscope.core.value import Kind, Value
from normscope.lipschitz.weights.pointwise import norms_at
from normscope.lipschitz.weights.theorem_12 import is_plain_chain, theorem_12, unnormalized_product


def test_theorem_12_is_a_printed_product() -> None:
    """``A b prod ||NO||``; empty products for the last layer."""
    activation = Value.of(2.0, Kind.ESTIMATE, domain="these data points")
    value = theorem_12(activation, [Value.of(3.0, Kind.CERTIFIED)], [Value.of(0.5, Kind.PRINTED)])
    assert value.kind is Kind.PRINTED
    assert abs(value.value - 3.0) < 1e-12
    assert value.assumptions
    assert abs(theorem_12(activation, [], []).value - 2.0) < 1e-12


def test_a_product_with_an_estimate_is_no_bound() -> None:
    """The layer itself is left out, and so is its kind."""
    sure, guessed = Value.of(2.0, Kind.CERTIFIED), Value.of(3.0, Kind.ESTIMATE)
    whole = unnormalized_product([sure, guessed], 0, sure)
    assert (whole.kind, round(whole.value, 9)) == (Kind.ESTIMATE, 6.0)
    assert unnormalized_product([sure, guessed], 1, sure).kind is Kind.CERTIFIED


def test_every_layer_of_a_chain_attains_the_same_order(found: Any) -> None:
    """``W = 2 I``, six layers: each has ``||dh/dW_i|| = 32 ||x||``, as the product without it says."""
    layers: list[nn.Module] = []
    for _ in range(6):
        layer = nn.Linear(3, 3, bias=False)
        with torch.no_grad():
            layer.weight.copy_(2 * torch.eye(3))
        layers += [layer, nn.ReLU()]
    x = torch.tensor([[1.0, 2.0, 2.0]], dtype=torch.float64)
    captured, weights = found(nn.Sequential(*layers).double(), x)
    assert is_plain_chain(weights.program)
    norms = norms_at(captured, weights, [x])
    two, size = [Value.of(2.0, Kind.CERTIFIED)] * 6, Value.of(3.0, Kind.CERTIFIED)
    for i, value in enumerate(norms.weights):
        product = unnormalized_product(two, i, size).value
        assert abs(product - 96.0) < 1e-9
        assert 96.0 * (1 - 1e-9) <= value <= product


def test_what_is_no_plain_chain(found: Any) -> None:
    """Biases, normalizers, skips and activations that do not keep zero are not covered."""
    x = torch.ones(1, 3, dtype=torch.float64)
    linear = lambda: nn.Linear(3, 3, bias=False)  # noqa: E731
    networks = [
        nn.Sequential(nn.Linear(3, 3), nn.ReLU()),
        nn.Sequential(linear(), nn.LayerNorm(3)),
        nn.Sequential(linear(), nn.Sigmoid()),
        Lambda(lambda m, x: x + m.f(x), f=linear()),
    ]
    assert not any(is_plain_chain(found(seeded(net), x)[1].program) for net in networks)
    assert is_plain_chain(found(seeded(nn.Sequential(linear(), nn.Tanh(), linear())), x)[1].program)
