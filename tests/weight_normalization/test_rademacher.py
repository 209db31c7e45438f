"""The complexity bound against the complexity itself, sampled, and the generalization bound on known problems."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from normscope.core.errors import InputError
from normscope.weight_normalization.measure import square_loss
from normscope.weight_normalization.network import WeightNormNetwork
from normscope.weight_normalization.rademacher import generalization_gap_bound, grid_radius, rademacher_bound


def test_a_linear_class_has_the_complexity_of_the_formula_at_depth_zero() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 5))
    signs = rng.choice([-1.0, 1.0], size=(20_000, 40))
    exact = 2.0 * np.linalg.norm(signs @ x, axis=1).mean() / 40  # sup over ||a|| <= 2
    bound = rademacher_bound(0, 2.0, float(np.linalg.norm(x)), 40)
    assert 0.8 * bound < exact <= bound


def test_no_network_correlates_with_random_signs_more_than_the_bound() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(30, 4, generator=draw)
    best = []
    for k in range(6):
        signs = torch.randint(0, 2, (30,), generator=draw) * 2.0 - 1.0
        net = WeightNormNetwork(4, width=16, depth=2, seed=k)
        with torch.no_grad():
            net[-1].weight /= net[-1].weight.norm()
        optimizer = torch.optim.Adam([h.weight for h in net.hidden], lr=0.05)
        for _ in range(60):  # the sup over the output layer in closed form: its direction is the correlation
            features = torch.nn.Sequential(*list(net)[:-1])(x)
            correlation = (signs[:, None] * features).mean(dim=0).norm()
            optimizer.zero_grad()
            (-correlation).backward()
            optimizer.step()
        best.append(correlation.item())
    bound = rademacher_bound(2, 1.0, x.norm().item(), 30)
    assert 0 < np.mean(best) <= bound


def test_the_gap_bound_holds_for_random_labels() -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(200, 4, generator=draw)
    x = x / x.norm(dim=1, keepdim=True)
    y = torch.randint(0, 2, (200, 1), generator=draw) * 2.0 - 1.0
    net = WeightNormNetwork(4, width=32, depth=1, seed=0)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        square_loss(net(x[:100]), y[:100]).backward()
        optimizer.step()
    with torch.no_grad():
        gap = (square_loss(net(x[100:]), y[100:]) - square_loss(net(x[:100]), y[:100])).item()
    radius, share = grid_radius(net[-1].weight.detach().norm().item(), 0.05)
    bound = generalization_gap_bound(rademacher_bound(1, radius, 10.0, 100), radius, 100, share)
    assert gap <= bound


def test_shares_of_the_grid_sum_to_delta_and_radii_cover_every_norm() -> None:
    shares = [grid_radius(2.0**j, 0.05)[1] for j in range(-60, 61)]
    assert math.fsum(shares) == pytest.approx(0.05, rel=1e-12)
    for norm in (0.3, 1.0, 1.0001, 7.0):
        assert norm <= grid_radius(norm, 0.1)[0] < 2 * norm


def test_bad_numbers_are_refused() -> None:
    for call in (
        lambda: rademacher_bound(1, 1.0, 1.0, 0),
        lambda: generalization_gap_bound(1.0, 1.0, 10, 1.5),
        lambda: grid_radius(0.0, 0.1),
    ):
        with pytest.raises(InputError, match="Expected"):
            call()


def test_the_gap_bound_is_within_a_factor_of_twenty_of_a_gap() -> None:
    """Inputs along different axes with random labels: what fits them says nothing about others, whose loss is one."""
    n, rho = 10_000, 1.0
    fitted = rho / math.sqrt(n)  # the prediction at every training input times its label
    gap = 1.0 - (1.0 - fitted) ** 2
    bound = generalization_gap_bound(rademacher_bound(0, rho, math.sqrt(n), n), rho, n, 0.05)
    assert gap <= bound <= 20.0 * gap, (gap, bound)
