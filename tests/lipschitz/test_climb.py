"""Jacobian norms of many inputs at once, and the climb from the best of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from networks import Lambda, captured_of, jacobian_norm, points, seeded
from normscope.lipschitz import climb as climbing
from normscope.lipschitz.climb import Norms, batched_norms, best_of, climb, limit_for, rounds_for
from normscope.operators.program import build_program


def _norms(model: nn.Module, *shape: int) -> Norms | None:
    captured = captured_of(model, points(3, *shape))
    return batched_norms(captured, build_program(captured.graph, captured.tensors, captured.at_batch(1)))


def _net() -> nn.Module:
    return seeded(nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 12), nn.GELU(), nn.Linear(12, 3)))


def test_the_norms_are_those_of_dense_jacobians() -> None:
    """Sample by sample, by float64 autograd."""
    model, batch = _net(), points(6, 4, seed=3)
    norms = _norms(model, 4)
    assert norms is not None
    truth = [jacobian_norm(model, x.unsqueeze(0)) for x in batch]
    torch.testing.assert_close(norms(batch), torch.tensor(truth, dtype=torch.float64), rtol=1e-9, atol=0.0)


def test_convolutions_and_several_outputs_take_part() -> None:
    """All outputs side by side."""
    model = seeded(Lambda(lambda s, x: (s.a(x).relu().mean((2, 3)), x.flatten(1)[:, :2]), a=nn.Conv2d(1, 3, 3)))
    batch = points(2, 1, 5, 5, seed=1)
    norms = _norms(model, 1, 5, 5)
    assert norms is not None
    truth = [jacobian_norm(model, x.unsqueeze(0)) for x in batch]
    torch.testing.assert_close(norms(batch), torch.tensor(truth, dtype=torch.float64), rtol=1e-9, atol=0.0)


def test_many_outputs_are_left_alone() -> None:
    """Row by row would be too many gradients."""
    assert _norms(seeded(nn.Linear(4, 1000)), 4) is None


def test_the_best_of_all_batches_is_found() -> None:
    """Largest first, over batches of several sizes."""
    found = best_of(lambda x: x[:, 0].abs(), [torch.tensor([[1.0], [-5.0]]), torch.tensor([[3.0]])], 2)
    assert found is not None
    assert found[0].flatten().tolist() == [-5.0, 3.0]
    assert best_of(lambda x: x, []) is None


def test_the_climb_never_goes_down_and_its_value_is_attained() -> None:
    """From the best of some points of a network."""
    model, batch = _net(), points(20, 4, seed=5)
    norms = _norms(model, 4)
    assert norms is not None
    looked = best_of(norms, [batch], 4)
    assert looked is not None
    point, value = climb(norms, *looked, rounds=40)
    assert value >= float(looked[1][0])
    assert value > 1.001 * float(norms(batch).max())
    assert jacobian_norm(model, point.unsqueeze(0)) == pytest.approx(value, rel=1e-9)


def test_every_second_step_of_every_point_goes_on_along_its_last() -> None:
    """By shares of it up to two; random steps beside it grow with the size that worked for the point."""
    start, last = points(3, 2, seed=1), points(3, 2, seed=2)
    sizes = torch.tensor([0.5, 2.0, 8.0], dtype=torch.float64)

    def moved(size: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        return climbing._tried(start, size, last, 8, torch.Generator().manual_seed(0)) - start[:, None]

    along = moved(0 * sizes, last)
    shares = along[:, ::2, 0] / last[:, :1]
    assert (shares > 0).all()
    assert (shares <= 2).all()
    torch.testing.assert_close(along[:, ::2], shares[..., None] * last[:, None])
    assert not along[:, 1::2].any()
    alone, same = moved(sizes, 0 * last), moved(0 * sizes + 1, 0 * last)
    torch.testing.assert_close(alone, sizes[:, None, None] * same)


def test_what_does_not_rise_ends_early() -> None:
    """A linear network has one Jacobian."""
    calls = []

    def constant(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        return torch.ones(len(x))

    climb(constant, torch.zeros(2, 3).double(), torch.ones(2).double(), rounds=100)
    assert len(calls) == 60


def test_large_networks_get_fewer_rounds_and_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Down to none, and one."""
    monkeypatch.setattr(climbing, "CLIMB_WORK", 3e8)
    assert rounds_for(1e5, 10) > rounds_for(1e7, 10) >= rounds_for(1e10, 10) == 0
    assert limit_for(1e5, 10) > limit_for(1e7, 10) > limit_for(1e12, 10) == 1
