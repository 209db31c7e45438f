"""The networks of the checks: normalizers and training are those of torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from normscope.papers.small_networks import (
    chain,
    change,
    gradient_descent,
    hidden_layer,
    inner,
    neuron,
    normalized,
    of_weight,
    output,
    square_loss,
)
from normscope.papers.tensors import gaussian, largest


def test_a_chain_is_the_network_of_the_papers() -> None:
    weights = [gaussian(3, 2, 3), gaussian(4, 4, 2)]
    x = gaussian(5, 3)
    expected = torch.relu(weights[1] @ (2 * torch.relu(weights[0] @ x)))
    assert torch.allclose(2 * chain(weights)(x), expected)
    doubled = chain(weights, lambda y, k: y * (k + 1))
    assert torch.allclose(doubled(x), torch.relu(2 * weights[1] @ torch.relu(weights[0] @ x)))


def test_a_network_as_a_function_of_one_weight() -> None:
    weights, x = [gaussian(6, 2, 3), gaussian(7, 4, 2)], gaussian(8, 3)
    assert torch.equal(of_weight(chain, weights, 1, x)(2 * weights[1]), 2 * chain(weights)(x))


def test_a_normalized_batch_has_mean_zero_and_variance_one() -> None:
    y = normalized("batch", gaussian(9, 50, 3))
    assert float(y.mean(0).abs().max()) < 1e-14
    assert torch.allclose(y.var(0, unbiased=False), torch.ones(3, dtype=torch.float64))


def test_normalizers_are_those_of_torch() -> None:
    z = gaussian(1, 5, 6)
    assert torch.allclose(normalized("batch", z, 0.1), F.batch_norm(z, None, None, training=True, eps=0.1))
    assert torch.allclose(normalized("layer", z, 0.1), F.layer_norm(z, (6,), eps=0.1))
    assert torch.allclose(normalized("group", z, 0.1, 2), F.group_norm(z, 2, eps=0.1))
    assert torch.allclose(normalized("rms", z, 0.1), F.rms_norm(z, (6,), eps=0.1))
    assert normalized("none", z) is z


def test_descent_is_that_of_torch() -> None:
    x, target = gaussian(2, 8, 3), gaussian(3, 8, 2)
    start = hidden_layer(4)
    loss = square_loss(x, target, "batch", eps=0.1)
    leaves = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.SGD(list(leaves.values()), lr=0.3)
    for _ in range(3):
        optimizer.zero_grad()
        loss(leaves).backward()
        optimizer.step()
    end = gradient_descent(loss, start, 0.3, 3)
    for name, value in end.items():
        assert torch.allclose(value, leaves[name].detach(), atol=1e-12)


def test_losses_and_inner_products() -> None:
    point, x = hidden_layer(5), gaussian(6, 8, 3)
    assert float(square_loss(x, output(point, x, "rms") + 1.0, "rms")(point)) == pytest.approx(1.0)
    assert inner(point, point, "W", "b") == pytest.approx(float((point["W"] ** 2).sum() + (point["b"] ** 2).sum()))
    assert largest(gradient_descent(lambda p: p["W"].square().sum() / 2, point, 1.0, 1)["W"]) == 0.0
    assert change(point, point | {"c": point["c"] + 2.0}, "layer") == pytest.approx(2.0)
    loss, start, _ = neuron()
    assert float(loss({**start, "w": 3 * start["w"]})) == pytest.approx(float(loss(start)), rel=1e-12)
