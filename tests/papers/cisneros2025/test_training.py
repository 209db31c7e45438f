"""The paper's way of training."""

from __future__ import annotations

import torch

from normscope.papers.cisneros2025.training import descend, unit_data
from normscope.weight_normalization.measure import square_loss
from normscope.weight_normalization.network import WeightNormNetwork


def test_data_are_unit_vectors_with_one_hot_targets() -> None:
    x, y = unit_data("digits", None, "train", 20)
    assert torch.allclose(x.norm(dim=1), torch.ones(20, dtype=torch.float64))
    assert bool((y.sum(dim=1) == 1).all())
    assert y.shape == (20, 10)


def test_descent_is_plain_gradient_descent() -> None:
    x, y = unit_data("digits", None, "train", 16)
    net = WeightNormNetwork(64, width=4, depth=1, outputs=10, seed=0).double()
    before = [p.detach().clone() for p in net.parameters()]
    slopes = torch.autograd.grad(square_loss(net(x), y), list(net.parameters()))
    seen: list[int] = []
    descend(net, x, y, steps=1, rate=0.5, batch=None, after_step=seen.append)
    for p, q, g in zip(net.parameters(), before, slopes, strict=True):
        assert torch.allclose(p, q - 0.5 * g, rtol=1e-12, atol=1e-15)
    assert seen == [0, 1]
