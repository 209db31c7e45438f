"""Walks on balls: ranges hold, the system is the Jacobian, and what cannot be bounded says why."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from networks import Lambda, jacobian, points, seeded
from normscope.core.errors import InputError
from normscope.lipschitz.local.tangent_propagation import TangentPropagation
from normscope.lipschitz.local.tangents import UnboundedError

Make = Callable[..., TangentPropagation]


def _mlp() -> nn.Module:
    return seeded(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)))


def test_at_the_point_the_system_is_the_jacobian(walk_of: Make) -> None:
    model, x = _mlp(), points(1, 4)
    system = walk_of(model, x, 0.0).run()
    assert system.units == 0
    torch.testing.assert_close(system.A, jacobian(model, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", [nn.GELU, nn.Tanh])
def test_with_the_slopes_of_another_point_it_is_the_jacobian_there(
    walk_of: Make, activation: Callable[[], nn.Module]
) -> None:
    model = seeded(nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 8), activation(), nn.Linear(8, 3)))
    x, d = points(1, 4), points(1, 4, seed=1)
    y = x + 0.4 * d / d.norm()
    system = walk_of(model, x, 0.4).run()
    slopes = torch.cat(
        [b - a for a, b in zip(_slopes(model, activation, x), _slopes(model, activation, y), strict=True)]
    )
    assert bool(((slopes - system.centre).abs() <= system.radius * (1 + 1e-9)).all())
    inner = torch.linalg.solve(torch.eye(len(slopes), dtype=torch.float64) - system.N * slopes, system.B)
    torch.testing.assert_close(system.A + (system.G * slopes) @ inner, jacobian(model, y), rtol=1e-9, atol=1e-9)


def _slopes(model: nn.Module, activation: Callable[[], nn.Module], x: torch.Tensor) -> list[torch.Tensor]:
    """Return the derivatives of all activations at a point, by autograd."""
    found = []
    for module in model.children():
        if isinstance(module, activation):  # type: ignore[arg-type]
            z = x.detach().requires_grad_()
            found.append(torch.autograd.grad(module(z).sum(), z)[0].flatten())
        x = module(x)
    return found


def test_bad_radii_and_points_are_refused(walk_of: Make) -> None:
    for radius in (-1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="radius"):
            walk_of(_mlp(), points(1, 4), radius)
    with pytest.raises(InputError, match="finite"):
        walk_of(_mlp(), points(1, 4) * math.nan, 0.1)


def test_what_has_no_rule_or_no_slope_says_so(walk_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnboundedError, match="sqrt"):
        walk_of(Lambda(lambda s, x: torch.sqrt(x)), points(1, 4).abs() + 0.1, 5.0).run()
    monkeypatch.setattr("normscope.lipschitz.local.tangent_propagation.LIMIT", 3)
    with pytest.raises(UnboundedError, match="more than 3"):
        walk_of(_mlp(), points(1, 4), 10.0).run()


def test_a_kink_at_the_point_opens_its_unit(walk_of: Make) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
        model[0].bias.zero_()
    system = walk_of(model, torch.tensor([[0.0, 1.0]], dtype=torch.float64), 0.0).run()
    assert system.units == 1


def test_residual_networks_and_several_outputs(walk_of: Make) -> None:
    model = seeded(Lambda(lambda s, x: (x + s.b(torch.relu(s.a(x))), s.a(x)), a=nn.Linear(4, 4), b=nn.Linear(4, 4)))
    x = points(1, 4)
    system = walk_of(model, x, 0.0).run()
    torch.testing.assert_close(system.A, jacobian(model, x), rtol=1e-12, atol=1e-12)
