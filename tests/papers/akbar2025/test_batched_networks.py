"""Networks of many seeds at once."""

from __future__ import annotations

import torch
from torch import nn

from normscope.papers.akbar2025.batched_networks import length, module, output, seed_range, seeded_normal, weights
from normscope.papers.small_networks import gradient_descent


def test_seeds_do_not_depend_on_their_company_and_modules_are_the_same_network() -> None:
    many, x = weights(3, 4, (5, 6, 6, 2)), seeded_normal(9, 4, 30, 5)
    alone = weights(5, 1, (5, 6, 6, 2))
    for name, value in alone.items():
        assert torch.equal(many[name][2], value[0])
    for norm in (True, False):
        expected = output(many, x, norm=norm, activation=torch.tanh)
        for place in range(4):
            net = module(many, place, norm=norm, activation=nn.Tanh).train()
            torch.testing.assert_close(net(x[place]), expected[place])


def test_descent_is_that_of_torch_for_every_seed() -> None:
    start, x = weights(0, 2, (3, 4, 1)), seeded_normal(1, 2, 10, 3)
    losses = lambda p: output(p, x, norm=True, activation=torch.tanh).square().mean((1, 2))  # noqa: E731
    seen: list[float] = []
    end = gradient_descent(losses, start, 0.3, 5, lambda point, slopes: seen.append(float(length(slopes)[1])))
    net = module(start, 1, norm=True, activation=nn.Tanh).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    for _ in range(5):
        optimizer.zero_grad()
        net(x[1]).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(net[0].weight.detach(), end["W0"][1])
    assert len(seen) == 5
    slow = gradient_descent(losses, start, {"W0": 0.0, "V": 0.3}, 5)
    assert torch.equal(slow["W0"], start["W0"])


def test_the_spread_counts_what_is_not_a_number_as_infinite() -> None:
    assert seed_range([float("nan"), 1.0])["most"] == float("inf")
