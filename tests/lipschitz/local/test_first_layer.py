"""First layers taken into the input: no pair leaves the ball, no gain its bound, attained by one unit."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from networks import points, program_of, spectral_norm
from normscope.lipschitz.local import first_layer
from normscope.lipschitz.local.ball import on_balls
from normscope.lipschitz.local.feedback_system import FeedbackSystem, gain
from normscope.lipschitz.local.first_layer import FirstLayer, first_guess, is_large
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.segments import Effort, SegmentNorms


def _layer(seed: int, units: int = 9, inputs: int = 4, error: float = 0.0) -> tuple[FirstLayer, Tensor]:
    rows, raw = points(units, inputs, seed=seed), points(5, inputs + units + 2, seed=seed + 1)
    generator = torch.Generator().manual_seed(seed)
    centre = torch.rand(units, generator=generator, dtype=torch.float64) - 0.5
    radius = torch.rand(units, generator=generator, dtype=torch.float64) / 2 + 0.05
    layer = FirstLayer.of(rows, centre, radius, first_guess(rows, radius, raw, centre), error)
    assert layer is not None
    return layer, raw


@pytest.mark.parametrize("seed", range(8))
def test_no_pair_leaves_the_ball_and_rows_say_the_same_of_it(seed: int) -> None:
    layer, raw = _layer(seed)
    found = layer.applied(raw)
    generator = torch.Generator().manual_seed(seed)
    for k in range(200):
        x = points(4, seed=1000 * seed + k)
        q = layer.rows @ x
        v = (2.0 * torch.randint(0, 2, (9,), generator=generator) - 1.0) * layer.radius * q
        rest = points(2, seed=k)
        pair = torch.cat([layer.factor.T @ x, layer.multipliers.sqrt() * v])
        assert pair.norm() <= x.norm()
        direct = raw @ torch.cat([x, layer.centre * q + v, rest])
        torch.testing.assert_close(found @ torch.cat([pair, rest]), direct, rtol=1e-10, atol=1e-10)


def test_an_error_of_the_layer_and_of_the_rows_is_covered() -> None:
    layer, raw = _layer(0, error=1e-9)
    exact, wrong = layer.applied(raw), 1e-9 * points(9, 4, seed=7) / points(9, 4, seed=7).norm()
    moved = raw + 1e-8 * points(*raw.shape, seed=8) / points(*raw.shape, seed=8).norm()
    true = FirstLayer(layer.rows + wrong, layer.centre, layer.radius, layer.multipliers, layer.factor)
    reached = float((true.applied(moved) - exact).norm())
    assert 1e-9 < reached <= layer.error_of(raw, exact, 1e-8) < 1e-5


def test_a_layer_known_too_badly_is_not_taken() -> None:
    layer, _ = _layer(0)
    assert FirstLayer.of(layer.rows, layer.centre, layer.radius, layer.multipliers, 1e-3) is None


def _system(seed: int, blocks: tuple[int, ...] = (6, 3), outputs: int = 2, inputs: int = 3) -> FeedbackSystem:
    m, ends = sum(blocks), [0, *itertools.accumulate(blocks)]
    pairs = tuple(itertools.pairwise(ends))
    N = 0.5 * points(m, m, seed=seed)
    for i, j in pairs:
        N[i:j, i:] = 0.0
    generator = torch.Generator().manual_seed(seed)
    centre = torch.rand(m, generator=generator, dtype=torch.float64) - 0.5
    radius = torch.rand(m, generator=generator, dtype=torch.float64) / 2 + 0.05
    matrices = (
        points(outputs, inputs, seed=seed + 1),
        points(outputs, m, seed=seed + 2),
        points(m, inputs, seed=seed + 3),
    )
    return FeedbackSystem(*matrices, N, centre, radius, pairs)


def _attained(f: FeedbackSystem) -> float:
    """Return the largest gain over all corners of the slopes, by dense solves."""
    one = torch.eye(f.units, dtype=torch.float64)
    corners = itertools.product((-1.0, 1.0), repeat=f.units)
    slopes = (f.centre + f.radius * torch.tensor(s, dtype=torch.float64) for s in corners)
    return max(spectral_norm(f.A + (f.G * s) @ torch.linalg.solve(one - f.N * s, f.B)) for s in slopes)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("blocks", [(6, 3), (7,)])
def test_no_choice_of_slopes_exceeds_the_bound(
    monkeypatch: pytest.MonkeyPatch, seed: int, blocks: tuple[int, ...]
) -> None:
    f = _system(seed, blocks)
    attained, plain = _attained(f), gain(f).value
    monkeypatch.setattr(first_layer, "MANY", 1)
    assert f.first == blocks[0]
    assert attained <= gain(f).value < 1.25 * plain


def test_one_unit_is_attained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_layer, "MANY", 1)
    f = _system(0, (1,), outputs=1, inputs=1)
    attained = _attained(f)
    assert attained <= gain(f).value <= 1.05 * attained


def test_a_system_with_more_outputs_than_inputs_keeps_its_units() -> None:
    assert is_large(2_000, 500)
    assert not is_large(2_000, 3_000)
    assert not is_large(500, 10)
    assert _system(0, outputs=4).first == 0


def test_no_jacobian_on_the_ball_of_a_convolutional_network_exceeds_its_constant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, 2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)),
    ).double()
    x = points(1, 1, 6, 6)
    program, steps, plain = program_of(model, x), Steps(SegmentNorms(Effort(1e-2, 1e-9, 0))), {}
    for radius in (0.1, 0.4):
        plain[radius] = on_balls(program, steps, [x], [radius])[0].constant
    monkeypatch.setattr("normscope.lipschitz.local.ellipsoid.is_large", lambda units, inputs: units > 0)
    monkeypatch.setattr("normscope.lipschitz.local.feedback_system.is_large", lambda units, inputs: units > 0)
    for radius, usual in plain.items():
        ball = on_balls(program, steps, [x], [radius])[0]
        for k in range(60):
            d = points(1, 1, 6, 6, seed=k)
            jacobian = torch.autograd.functional.jacobian(model, x + radius * d / d.norm()).reshape(3, -1)
            assert spectral_norm(jacobian) <= ball.constant
        assert ball.constant == pytest.approx(usual, rel=0.1)
