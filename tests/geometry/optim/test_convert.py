"""One call turns a stock optimizer into one on spheres."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import normscope
from normscope.core.errors import InputError
from normscope.geometry.discover import symmetry
from normscope.geometry.optim.adam import RiemannianAdam
from normscope.geometry.optim.convert import riemannian, spheres_of
from normscope.geometry.optim.sgd import RiemannianSGD


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
