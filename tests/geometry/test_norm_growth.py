"""Laws of the norm of scale-invariant weights, against training that obeys them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.geometry.flow import gradient_flow
from normscope.geometry.norm_growth import (
    equilibrium_norm,
    growth_after_heavy_ball,
    square_after_flow,
    square_after_step,
)

A = torch.diag(torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64))
START = torch.tensor([0.5, -1.0, 0.7], dtype=torch.float64)


def _rayleigh(w: Tensor) -> Tensor:
    return w @ A @ w / (w @ w)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_a_step_changes_the_norm_as_said(decay: float) -> None:
    w = START.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(_rayleigh(w), w)
    after = (1 - 0.7 * decay) * w - 0.7 * gradient
    said = square_after_step(float(w.detach().square().sum()), float(gradient.square().sum()), 0.7, decay)
    assert math.isclose(float(after.detach().square().sum()), said, rel_tol=1e-13)


@pytest.mark.parametrize("step", [0.05, 2.0])
def test_momentum_of_torch_obeys_its_law_and_never_loses_norm(step: float) -> None:
    w = START.clone().requires_grad_()
    optimizer = torch.optim.SGD([w], lr=step, momentum=0.9)
    growth = moved = 0.0
    for _ in range(50):
        before = w.detach().clone()
        optimizer.zero_grad()
        _rayleigh(w).backward()
        optimizer.step()
        move = float((w.detach() - before).square().sum())
        said = growth_after_heavy_ball(growth, moved, move, 0.9)
        growth = float(w.detach().square().sum() - before.square().sum())
        assert math.isclose(growth, said, rel_tol=1e-9, abs_tol=1e-12)
        assert growth >= 0
        moved = move


def test_weight_decay_shrinks_the_square_by_twice_its_rate() -> None:
    end = gradient_flow(lambda p: _rayleigh(p["w"]), {"w": START}, 4.0, decay=0.25)["w"]
    said = square_after_flow(float(START.square().sum()), 0.25, 4.0)
    assert math.isclose(float(end.square().sum()), said, rel_tol=1e-7)


def test_the_equilibrium_is_the_fixed_point_of_the_step() -> None:
    norm = equilibrium_norm(0.1, 0.01, 2.0)
    assert math.isclose(square_after_step(norm**2, (2.0 / norm) ** 2, 0.1, 0.01), norm**2, rel_tol=1e-13)
    assert round(norm**4, 4) == 20.01
    with pytest.raises(InputError, match="balance"):
        equilibrium_norm(0.1, 0.0, 2.0)
