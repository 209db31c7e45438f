"""Adam on spheres: geoopt's step with its rate scaled, AdamW elsewhere, checkpoints."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from normscope.geometry.optim.adam import RiemannianAdam


def reference(x: torch.Tensor, gradients: list[torch.Tensor], lr: float, eps: float) -> torch.Tensor:
    """Return where Riemannian Adam with one second moment per row arrives (geoopt's sphere), rows of length one."""
    mean, square = torch.zeros_like(x), torch.zeros(len(x), 1, dtype=x.dtype)
    for t, g in enumerate(gradients, 1):
        tangent = g - x * (x * g).sum(1, keepdim=True)
        mean = 0.9 * mean + 0.1 * tangent
        square = 0.999 * square + 0.001 * (tangent * tangent).sum(1, keepdim=True)
        root = (square / (1 - 0.999**t)).sqrt() + eps
        x = x - lr * (mean / (1 - 0.9**t)) / root
        x = x / x.norm(dim=1, keepdim=True)
        mean = mean - x * (x * mean).sum(1, keepdim=True)
    return x


def test_steps_are_those_of_the_reference() -> None:
    torch.manual_seed(0)
    start = nn.functional.normalize(torch.randn(5, 9, dtype=torch.float64))
    gradients = [torch.randn(5, 9, dtype=torch.float64) for _ in range(10)]
    p = nn.Parameter(start.clone())
    optimizer = RiemannianAdam([p], lr=0.1, weight_decay=0.5, spheres={p: 5})
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
        assert torch.equal(p.grad, g)
    expected = reference(start, gradients, 0.1 * 3, 1e-8 * math.sqrt(9))
    assert float((p.detach() - expected).abs().max()) < 1e-12


def test_other_parameters_follow_adamw() -> None:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    two = copy.deepcopy(one)
    lengths = one[0].weight.norm(dim=1).detach().clone()
    ours = RiemannianAdam(one.parameters(), lr=0.1, spheres={one[0].weight: 4})
    plain = torch.optim.AdamW(two.parameters(), lr=0.1)
    x = torch.randn(16, 3)
    for model, optimizer in ((one, ours), (two, plain)):
        model(x).square().mean().backward()
        optimizer.step()
    assert torch.equal(one[3].weight, two[3].weight)
    assert torch.allclose(one[0].weight.norm(dim=1), lengths)
    saved = copy.deepcopy(ours.state_dict())
    again = RiemannianAdam(one.parameters(), lr=0.1, spheres={one[0].weight: 4})
    again.load_state_dict(saved)
    assert torch.equal(again.state[one[0].weight]["exp_avg_sq"], ours.state[one[0].weight]["exp_avg_sq"])
