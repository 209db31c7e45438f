"""SGD on spheres: the textbook step, plain SGD elsewhere, and its checkpoints."""

from __future__ import annotations

import copy

import torch
from torch import nn

from normscope.geometry.optim.sgd import RiemannianSGD


def reference(x: torch.Tensor, gradients: list[torch.Tensor], lr: float, momentum: float) -> torch.Tensor:
    """Return where Riemannian SGD with projection and retraction arrives (geoopt's sphere), rows of length one."""
    buffer = torch.zeros_like(x)
    for i, g in enumerate(gradients):
        tangent = g - x * (x * g).sum(1, keepdim=True)
        buffer = tangent if i == 0 else momentum * buffer + tangent
        x = x - lr * buffer
        x = x / x.norm(dim=1, keepdim=True)
        buffer = buffer - x * (x * buffer).sum(1, keepdim=True)
    return x


def test_steps_are_those_of_the_reference() -> None:
    torch.manual_seed(0)
    start = nn.functional.normalize(torch.randn(5, 7, dtype=torch.float64))
    gradients = [torch.randn(5, 7, dtype=torch.float64) for _ in range(10)]
    p = nn.Parameter(start.clone())
    optimizer = RiemannianSGD([p], lr=0.1, momentum=0.9, weight_decay=0.3, spheres={p: 5})
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
    assert float((p.detach() - reference(start, gradients, 0.1, 0.9)).abs().max()) < 1e-12


def test_other_parameters_follow_plain_sgd_and_lengths_stay() -> None:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    two = copy.deepcopy(one)
    lengths = one[0].weight.norm(dim=1).detach().clone()
    ours = RiemannianSGD(one.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, spheres={one[0].weight: 4})
    plain = torch.optim.SGD(two.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    x = torch.randn(16, 3)
    for model, optimizer in ((one, ours), (two, plain)):
        model(x).square().mean().backward()
        optimizer.step()
    assert torch.equal(one[3].weight, two[3].weight)
    assert torch.allclose(one[0].weight.norm(dim=1), lengths)


def test_effective_rate_of_sgd_to_second_order() -> None:
    """The directions of both optimizers part by order eta^3 in one step."""
    torch.manual_seed(0)
    gaps = []
    for rate in (0.2, 0.1):
        w = torch.tensor([[1.0, 2.0, 2.0]], dtype=torch.float64)
        g = torch.tensor([[2.0, 1.0, -2.0]], dtype=torch.float64)  # orthogonal to w
        p = nn.Parameter(w.clone())
        p.grad = g.clone()
        RiemannianSGD([p], lr=rate, spheres={p: 1}).step()
        q = w - rate * g
        gaps.append(float((p.detach() / p.detach().norm() - q / q.norm()).norm()))
    assert max(gaps) < 1e-15  # one step from the same point has the same direction


def test_checkpoint_and_schedule() -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 3)

    def trained(stop: int) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))

        def made() -> tuple[RiemannianSGD, torch.optim.lr_scheduler.StepLR]:
            optimizer = RiemannianSGD(model.parameters(), lr=0.1, momentum=0.9, spheres={model[0].weight: 4})
            return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

        optimizer, schedule = made()
        for step in range(6):
            if step == stop:
                saved = copy.deepcopy((optimizer.state_dict(), schedule.state_dict()))
                optimizer, schedule = made()
                optimizer.load_state_dict(saved[0])
                schedule.load_state_dict(saved[1])
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            schedule.step()
        return [p.detach() for p in model.parameters()]

    for a, b in zip(trained(-1), trained(3), strict=True):
        assert torch.equal(a, b)
