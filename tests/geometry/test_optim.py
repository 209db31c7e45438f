"""Optimizers on spheres: textbook steps, plain ones elsewhere, checkpoints, and one call that makes them."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import normscope
from normscope.core.errors import InputError
from normscope.geometry.discover import symmetry
from normscope.geometry.optim import RiemannianAdam, RiemannianSGD, riemannian, spheres_of


def sgd_reference(x: torch.Tensor, gradients: list[torch.Tensor], lr: float, momentum: float) -> torch.Tensor:
    """Return where Riemannian SGD with projection and retraction arrives (geoopt's sphere), rows of length one."""
    buffer = torch.zeros_like(x)
    for i, g in enumerate(gradients):
        tangent = g - x * (x * g).sum(1, keepdim=True)
        buffer = tangent if i == 0 else momentum * buffer + tangent
        x = x - lr * buffer
        x = x / x.norm(dim=1, keepdim=True)
        buffer = buffer - x * (x * buffer).sum(1, keepdim=True)
    return x


def test_steps_are_those_of_the_sgd_reference() -> None:
    torch.manual_seed(0)
    start = nn.functional.normalize(torch.randn(5, 7, dtype=torch.float64))
    gradients = [torch.randn(5, 7, dtype=torch.float64) for _ in range(10)]
    p = nn.Parameter(start.clone())
    optimizer = RiemannianSGD([p], lr=0.1, momentum=0.9, weight_decay=0.3, spheres={p: 5})
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
        assert torch.equal(p.grad, g)
    assert float((p.detach() - sgd_reference(start, gradients, 0.1, 0.9)).abs().max()) < 1e-12


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


def adam_reference(x: torch.Tensor, gradients: list[torch.Tensor], lr: float, eps: float) -> torch.Tensor:
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


def test_steps_are_those_of_the_adam_reference() -> None:
    torch.manual_seed(0)
    start = nn.functional.normalize(torch.randn(5, 9, dtype=torch.float64))
    gradients = [torch.randn(5, 9, dtype=torch.float64) for _ in range(10)]
    p = nn.Parameter(start.clone())
    optimizer = RiemannianAdam([p], lr=0.1, weight_decay=0.5, spheres={p: 5})
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
        assert torch.equal(p.grad, g)
    expected = adam_reference(start, gradients, 0.1 * 3, 1e-8 * math.sqrt(9))
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


def network() -> nn.Sequential:
    """Return a small network with BatchNorm."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def test_twins_and_groups() -> None:
    model = network()
    keys = list(model.state_dict())
    params = [
        {"params": model[0].parameters(), "lr": 0.01},
        {"params": [*model[1].parameters(), *model[3].parameters()]},
    ]
    found = normscope.optim.riemannian(model, torch.optim.SGD, torch.randn(8, 3), params=params, lr=0.1)
    assert isinstance(found, RiemannianSGD)
    assert [group["lr"] for group in found.param_groups] == [0.01, 0.1]
    assert list(found.spheres.values()) == [8]
    assert type(riemannian(model, torch.optim.Adam, torch.randn(8, 3))) is RiemannianAdam
    assert list(model.state_dict()) == keys
    assert type(model[0].weight) is nn.Parameter


def test_training_lowers_the_loss_with_scaled_gradients() -> None:
    model = network()
    optimizer = riemannian(model, torch.optim.AdamW, spheres={"0.weight": 8}, lr=0.05)
    scaler = torch.amp.GradScaler("cpu")
    x, y = torch.randn(64, 3), torch.randint(2, (64,))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]


def test_wrong_use() -> None:
    with pytest.raises(InputError, match=r"Expected torch\.optim\.SGD, Adam or AdamW, got RMSprop"):
        riemannian(network(), torch.optim.RMSprop)
    with pytest.raises(InputError, match="Unknown parameters"):
        riemannian(network(), torch.optim.SGD, spheres={"9.weight": 1})
    with pytest.raises(InputError, match="AdamW"):
        riemannian(network(), torch.optim.Adam, spheres={}, weight_decay=0.1)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_steps_are_those_of_geoopt(kind: str) -> None:
    """Where both apply: rows of length one, projection and retraction."""
    geoopt = pytest.importorskip("geoopt")
    torch.manual_seed(0)
    start = nn.functional.normalize(torch.randn(5, 9, dtype=torch.float64))
    ours = nn.Parameter(start.clone())
    theirs = geoopt.ManifoldParameter(start.clone(), manifold=geoopt.Sphere())
    if kind == "sgd":  # without momentum, which geoopt starts from the Euclidean gradient
        pair = (RiemannianSGD([ours], lr=0.1, spheres={ours: 5}), geoopt.optim.RiemannianSGD([theirs], lr=0.1))
    else:  # the second moment is a mean over the 9 entries here and a sum there
        pair = (
            RiemannianAdam([ours], lr=0.1, eps=1e-8, spheres={ours: 5}),
            geoopt.optim.RiemannianAdam([theirs], lr=0.3, eps=3e-8),
        )
    for _ in range(10):
        gradient = torch.randn(5, 9, dtype=torch.float64)
        for p, optimizer in zip((ours, theirs), pair, strict=True):
            p.grad = gradient.clone()
            optimizer.step()
        assert float((ours.detach() - theirs.detach()).abs().max()) < 1e-6


@pytest.mark.turns(2)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_compiled_models_and_steps_are_those_of_plain_ones(kind: type[torch.optim.Optimizer]) -> None:
    """A compiled model under the same optimizer, and a compiled step: the same losses."""
    x, y = torch.randn(16, 3, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 2
    losses = []
    for compiled in (False, True):
        model = network()
        optimizer = riemannian(model, kind, spheres={"0.weight": 8}, lr=0.05)
        forward = torch.compile(model, backend="eager") if compiled else model
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for _ in range(4):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(forward(x), y)
            loss.backward()
            step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_blocks_follow_the_normalizer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8, bias=False), nn.GroupNorm(2, 8), nn.Tanh(),
        nn.Linear(8, 8, bias=False), nn.RMSNorm(8), nn.Tanh(), nn.Linear(8, 2),
    )  # fmt: skip
    found = spheres_of(symmetry(model, torch.randn(16, 6)))
    assert found == {"0.weight": 8, "3.weight": 2, "6.weight": 1}


def test_weights_that_are_invariant_only_together_are_left_out() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 4), nn.Linear(3, 4)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.norm(self.one(x) + self.two(x * x)))

    assert spheres_of(symmetry(Pair(), torch.randn(16, 3))) == {}
