"""Constants on balls: no Jacobian and no pair of points of the ball exceeds them; at a point they are attained."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, jacobian_norm, points, program_of, seeded
from normscope.core.errors import InputError
from normscope.lipschitz.local import ball
from normscope.lipschitz.local.ball import Ball, on_balls
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.local.tangent_propagation import TangentPropagation
from normscope.lipschitz.segments import SegmentNorms


class Residual(nn.Module):
    """``act(x + B act(A x))``."""

    def __init__(self, width: int, activation: nn.Module) -> None:
        super().__init__()
        self.a, self.b, self.activation = nn.Linear(width, width), nn.Linear(width, width), activation

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return self.activation(x + self.b(self.activation(self.a(x))))


ACTIVATIONS = [nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.ELU, nn.Hardswish, nn.Mish, nn.Sigmoid, nn.PReLU]


def _networks(seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    act = ACTIVATIONS[seed % len(ACTIVATIONS)]
    kind = seed // len(ACTIVATIONS) % 3
    if kind == 0:
        layers = [nn.Linear(4, 7), nn.BatchNorm1d(7), act(), nn.Linear(7, 6), act(), nn.Linear(6, 5)]
        return nn.Sequential(*layers), (1, 4)
    if kind == 1:
        return nn.Sequential(nn.Linear(3, 6), Residual(6, act()), Residual(6, act()), nn.Linear(6, 2)), (1, 3)
    body = [nn.Conv2d(2, 3, 3, padding=1, stride=2), nn.BatchNorm2d(3), act(), nn.Conv2d(3, 2, 3, padding=1), act()]
    return nn.Sequential(*body, nn.AvgPool2d(3), nn.Flatten(), nn.Linear(2, 3)), (1, 2, 6, 6)


def _constant(model: nn.Module, x: Tensor, radius: float) -> Ball:
    return on_balls(program_of(model, x), Steps(SegmentNorms()), [x], [radius])[0]


@pytest.mark.turns(6)
@pytest.mark.parametrize("seed", range(0, 30, 2))
@pytest.mark.parametrize("radius", [0.01, 1.0])
def test_no_jacobian_and_no_pair_of_the_ball_exceeds_it(seed: int, radius: float) -> None:
    build, shape = _networks(seed)
    model = seeded(build, seed)
    if seed % 3 == 1:
        model = model.half().double()
    x = points(*shape, seed=seed)
    bound = _constant(model, x, radius).constant
    assert math.isfinite(bound)
    for k in range(15):
        d, e = (radius * v / v.norm() for v in (points(*shape, seed=100 + k), points(*shape, seed=200 + k)))
        assert jacobian_norm(model, x + (1 - 1e-9) * d) <= bound
        assert float((model(x + d) - model(x + e)).detach().norm()) <= bound * float((d - e).norm())


@pytest.mark.parametrize("seed", range(1, 30, 3))
def test_at_the_point_it_is_the_jacobian(seed: int) -> None:
    build, shape = _networks(seed)
    model, x = seeded(build, seed), points(*shape, seed=seed)
    norm = jacobian_norm(model, x)
    assert norm <= _constant(model, x, 0.0).constant <= norm * (1 + 1e-6) + 1e-9


def test_where_no_slope_changes_it_is_attained() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).double()
    x = points(1, 3)
    with torch.no_grad():
        model[0].bias.fill_(10.0)
    assert _constant(model, x, 0.5).constant == pytest.approx(jacobian_norm(model, x), rel=1e-8)


def test_a_kink_inside_is_attained() -> None:
    model = Lambda(lambda s, x: torch.relu(x)).double()
    assert _constant(model, torch.tensor([[-0.1]], dtype=torch.float64), 0.2).constant == pytest.approx(1.0, rel=1e-6)


#: Formulas with a kink at a point, and the larger one-sided derivative there.
WRITTEN_OUT: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "absolute value times sigmoid": (lambda x: x.abs() * x.sigmoid(), 0.0, 0.5),
    "root of an absolute value": (lambda x: (x.abs() + 1e-6).sqrt(), 0.0, 500.0),
    "two kinks": (lambda x: (x.abs() - 1).abs() * x.sigmoid(), 0.0, 0.75),
    "beside the origin": (lambda x: (x.abs() - 1).abs() * x.exp(), 1.0, math.e),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_both_sides_of_a_kink_at_the_point_count(name: str) -> None:
    """In functions written out from several operations as well."""
    function, kink, steepest = WRITTEN_OUT[name]
    model = Lambda(lambda s, x: function(x)).double()
    found = _constant(model, torch.full((1, 1), kink, dtype=torch.float64), 0.0).constant
    assert steepest <= found * (1 + 1e-15)
    assert found == pytest.approx(steepest, rel=1e-6)


def test_what_holds_on_a_ball_holds_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search may end later in a small ball, where several kinks meet, than in a larger one."""
    searched = {0.0: 5.0, 0.1: 3.0, 0.2: 4.0, 0.3: math.inf}
    monkeypatch.setattr(ball._Methods, "best", lambda self, radius: Ball(radius, searched[radius], margin=radius))
    model, x = seeded(nn.Linear(2, 2)), points(1, 2)
    balls = on_balls(program_of(model, x), Steps(SegmentNorms()), [x], list(searched))
    assert [(b.radius, b.constant, b.margin) for b in balls] == [
        (0.0, 3.0, 0.0), (0.1, 3.0, 0.1), (0.2, 4.0, 0.2), (0.3, math.inf, 0.3)
    ]  # fmt: skip


def test_it_does_not_move_under_rescaling_of_neurons() -> None:
    model = seeded(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)))
    x = points(1, 4)
    before = _constant(model, x, 0.3).constant
    with torch.no_grad():
        factors = 2.0 ** torch.arange(-8, 8, 2, dtype=torch.float64)
        model[0].weight.mul_(factors[:, None])
        model[0].bias.mul_(factors)
        model[2].weight.div_(factors)
    assert _constant(model, x, 0.3).constant == pytest.approx(before, rel=1e-3)


def test_what_cannot_be_bounded_says_why() -> None:
    model = Lambda(lambda s, x: torch.sqrt(x)).double()
    ball = _constant(model, torch.full((1, 2), 0.1, dtype=torch.float64), 1.0)
    assert math.isinf(ball.constant)
    assert "sqrt" in ball.why
    with pytest.raises(InputError, match="radius"):
        _constant(model, torch.ones(1, 2, dtype=torch.float64), -1.0)


def test_within_the_certified_radius_the_decision_stays() -> None:
    model = seeded(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    x = points(1, 4)
    best = max(_constant(model, x, r).certified_radius for r in (0.01, 0.1, 0.3, 1.0))
    assert best > 0
    decision = int(model(x).argmax())
    for k in range(200):
        d = points(1, 4, seed=k)
        assert int(model(x + best * d / d.norm()).argmax()) == decision


def test_one_output_has_no_margin() -> None:
    model = seeded(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    ball = _constant(model, points(1, 4), 0.1)
    assert ball.margin is None
    assert ball.certified_radius == 0.0


def test_a_solver_that_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for an LSTM on a very large ball: the other way is taken, nothing is raised."""

    def fails(self: TangentPropagation) -> None:
        raise torch.linalg.LinAlgError("the algorithm failed to converge")  # type: ignore[attr-defined]

    monkeypatch.setattr(TangentPropagation, "run", fails)
    model, x = seeded(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)), 0), points(1, 2)
    assert jacobian_norm(model, x) <= _constant(model, x, 1e9).constant < math.inf
