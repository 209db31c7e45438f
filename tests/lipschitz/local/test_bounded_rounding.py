"""Walks of deep networks with enclosed rounding: rows backwards and forwards agree, and no Jacobian exceeds them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, Residual, jacobian_norm, points, program_of, residual_network, seeded
from normscope.lipschitz.local import bounded_rounding, precise_values
from normscope.lipschitz.local.ball import on_balls
from normscope.lipschitz.local.bounded_rounding import BoundedRoundingPropagation, RoundingError
from normscope.lipschitz.local.feedback_system import gain
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.local.tangent_propagation import TangentPropagation
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.program import Program


def _strided(seed: int) -> nn.Module:
    """A shortcut that leaves out every other place, two branches side by side, a convolution with a step."""

    def forward(m: Lambda, x: Tensor) -> Tensor:
        z = torch.relu(m.first(x))
        y = torch.relu(m.scaled(m.step(z)) + z[:, :, ::2, ::2])
        return m.last(torch.cat([y, torch.relu(m.other(y))], 1).flatten(1))

    return seeded(
        Lambda(
            forward,
            first=nn.Conv2d(2, 2, 3, padding=1),
            step=nn.Conv2d(2, 2, 3, stride=2, padding=1),
            scaled=nn.BatchNorm2d(2),
            other=nn.Conv2d(2, 1, 3, padding=1),
            last=nn.Linear(12, 3),
        ),
        seed,
    )


def _program(model: nn.Module, x: Tensor) -> tuple[Program, Steps]:
    return program_of(model, x), Steps(SegmentNorms())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("precise", [0.0, 1.0])
def test_it_gives_what_a_bounded_walk_gives(seed: int, precise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_rounding, "PRECISE", precise)  # all rows backwards, or none
    model, x = residual_network(seed), points(1, 2, 4, 4, seed=seed)
    program, steps = _program(model, x)
    for radius in (0.0, 0.1):
        plain, deep = (
            TangentPropagation(program, steps, [x], radius),
            BoundedRoundingPropagation(program, steps, [x], radius),
        )
        assert gain(deep.run()).value == pytest.approx(gain(plain.run()).value, rel=1e-5)
        assert len(deep.units) == len(plain.units)


@pytest.mark.parametrize("seed", range(2))
def test_rows_backwards_are_rows_forwards_within_their_error(seed: int) -> None:
    for model in (residual_network(seed), _strided(seed)):
        x = points(1, 2, 4, 4, seed=seed)
        walk = BoundedRoundingPropagation(*_program(model, x), [x], 0.5)
        (output,) = walk.tangents()
        (expr,) = [e for _, e in walk.program.outputs]
        rows, error = walk._backwards(expr, torch.arange(expr.numel))
        forwards = output.rows.flatten(1)[1:].T
        away = float((rows[:, : forwards.shape[1]] - forwards).norm())
        assert away <= error + output.error < 1e-10
        assert len(walk.units) > 0
        exact = torch.autograd.functional.jacobian(model, x).reshape(3, -1)
        assert float((rows[:, : x.numel()] - exact).norm()) <= error + 1e-13


@pytest.mark.parametrize("make", [residual_network, _strided])
def test_deep_networks_are_enclosed_and_no_jacobian_exceeds_them(make: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precise_values, "TOO_LARGE", 0.0)
    monkeypatch.setattr(bounded_rounding, "PRECISE", 0.0)
    model, x = make(3), points(1, 2, 4, 4, seed=3)
    found = on_balls(*_program(model, x), [x], [0.0, 0.2])
    assert all(b.delta == 0.0 for b in found)
    assert found[0].constant == pytest.approx(jacobian_norm(model, x), rel=1e-5)
    for k in range(20):
        d = points(*x.shape, seed=k)
        assert jacobian_norm(model, x + 0.2 * (1 - 1e-9) * d / d.norm()) <= found[1].constant


def test_a_network_too_deep_is_refused() -> None:
    """Thirty blocks, whose norms multiply to more than float64 has digits."""
    model = seeded(nn.Sequential(*(Residual() for _ in range(30))), 0, scale=8.0)
    x = points(1, 2, 4, 4)
    with pytest.raises(RoundingError, match="too large for the depth"):
        BoundedRoundingPropagation(*_program(model, x), [x], 1e-30).run()


def test_a_unit_whose_rows_vanish_may_still_change_its_slope() -> None:
    """A channel without weights stands at the kink: what rounding makes of it passes with either slope."""
    convolutions = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
    layers = convolutions[0], nn.ReLU(), convolutions[1], nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
    model = seeded(nn.Sequential(*layers), 0)
    with torch.no_grad():
        for parameter in convolutions[1].parameters():
            parameter[0] = 0.0
    x = points(1, 2, 4, 4, seed=0)
    walk = BoundedRoundingPropagation(*_program(model, x), [x], 0.1)
    walk.tangents()
    undecided = {key: width for key, width in walk.left_out.items() if width > 0}
    assert undecided
    for expr in walk.order():
        if expr.atom is not None and expr.id in undecided:
            (below,) = expr.atom.inputs
            steepest = float(walk.slopes[expr.id].abs().max())
            # The difference of the two slopes, and the one that was taken: both may act on the error.
            assert walk.errors[expr.id].total >= (steepest + undecided[expr.id]) * walk.errors[below.id].total > 0


@pytest.mark.parametrize(
    "settings", [{"padding": 1}, {"stride": (1, 2)}, {"dilation": (2, 1), "padding": 1}, {"groups": 2}, {"padding": 3}]
)
def test_convolutions_are_applied_backwards(settings: dict[str, Any]) -> None:
    """Also with steps along one axis only, and with more padding than a flipped kernel has room for."""
    model = seeded(nn.Conv2d(2, 4, 3, bias=False, **settings))
    x = points(1, 2, 6, 5)
    (expr,) = [e for _, e in program_of(model, x).outputs]
    given = points(3, *expr.shape[1:], seed=1)
    (truth,) = torch.func.vjp(model, torch.zeros(3, 2, 6, 5, dtype=torch.float64))[1](given)
    scaled = bounded_rounding._own_weight(expr)
    assert scaled is not None
    found = bounded_rounding._convolved_back(scaled, given.reshape(3, *expr.shape), expr, expr.inputs[0])
    torch.testing.assert_close(found.reshape(truth.shape), truth, rtol=1e-12, atol=1e-12)
