"""Sketched walks: the constants of enclosed ones, no Jacobian above them, and probabilities that samples bear out."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from networks import captured_of, jacobian_norm, points, program_of, residual_network, seeded
from normscope.lipschitz.local import bounded_rounding, precise_values, sketched_tangents
from normscope.lipschitz.local.balanced_channels import balanced_program, with_balanced_channels
from normscope.lipschitz.local.ball import Ball, on_balls
from normscope.lipschitz.local.bounded_rounding import BoundedRoundingPropagation
from normscope.lipschitz.local.feedback_system import gain
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.local.sketched_tangents import SketchedPropagation, sketch_failure
from normscope.lipschitz.local.tangent_propagation import TangentPropagation
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.expression import Expr


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer combinations than a small network has inputs, raised so much that they hardly ever fail."""
    monkeypatch.setattr(sketched_tangents, "COUNT", 20)
    monkeypatch.setattr(sketched_tangents, "RAISED", 3.0)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("seed", range(4))
def test_it_gives_what_an_enclosed_walk_gives(seed: int) -> None:
    x = points(1, 2, 4, 4, seed=seed)
    program, steps = program_of(residual_network(seed), x), Steps(SegmentNorms())
    for radius in (0.0, 0.1):
        whole, sketch = (
            make(program, steps, [x], radius) for make in (BoundedRoundingPropagation, SketchedPropagation)
        )
        assert gain(sketch.run()).value == pytest.approx(gain(whole.run()).value, rel=1e-3)
        assert abs(len(sketch.units) - len(whole.units)) <= 1
        assert sketch.along == 20 < whole.along == 32


@pytest.mark.usefixtures("few")
def test_no_jacobian_exceeds_the_constant_and_the_probability_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precise_values, "TOO_LARGE", 0.0)
    model, x = residual_network(3), points(1, 2, 4, 4, seed=3)
    found = on_balls(program_of(model, x), Steps(SegmentNorms()), [x], [0.0, 0.2], sketched=True)
    assert all(0.0 < b.delta < 1.0 for b in found)
    assert found[0].constant == pytest.approx(jacobian_norm(model, x), rel=1e-5)
    for k in range(20):
        d = points(*x.shape, seed=k)
        assert jacobian_norm(model, x + 0.2 * (1 - 1e-9) * d / d.norm()) <= found[1].constant


def test_few_inputs_are_not_sketched() -> None:
    x = points(1, 2, 4, 4)
    walk = SketchedPropagation(program_of(residual_network(0), x), Steps(SegmentNorms()), [x], 0.1)
    assert walk.along == 32
    assert walk.delta == 0.0


@pytest.mark.parametrize("raised", [1.2, 1.5])
def test_the_probability_is_not_below_what_samples_show(raised: float) -> None:
    z, count, runs = points(7), 6, 20_000
    drawn = points(runs, count, 7, seed=1) * raised / count**0.5
    missed = float(((drawn @ z).norm(dim=1) < z.norm()).double().mean())
    assert 0.01 < missed <= sketch_failure(1, count, raised) < 3 * missed + 0.5
    assert sketch_failure(5, 400, 1.4) == pytest.approx(5 * sketch_failure(1, 400, 1.4))
    assert sketch_failure(10**9, 4, 1.1) == 1.0


def test_ranges_by_the_ellipsoid_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """What entries are said to deviate before their rows are made backwards is more than any sample does."""
    model, radius, quick = residual_network(1), 0.5, SketchedPropagation._quick_ranges
    ranges: list[tuple[Expr, Tensor, Tensor]] = []

    def noted(walk: SketchedPropagation, flat: Tensor, entries: Tensor, error: float) -> Tensor | None:
        found = quick(walk, flat, entries, error)
        if found is not None:
            ranges.append((walk._now.atom.inputs[0], entries, found))
        return found

    monkeypatch.setattr(SketchedPropagation, "_quick_ranges", noted)
    x = points(1, 2, 4, 4, seed=1)
    walk = SketchedPropagation(program_of(model, x), Steps(SegmentNorms()), [x], radius)
    walk.tangents()
    steps = [radius * (1 - 1e-9) * d / d.norm() for d in (points(*x.shape, seed=k) for k in range(200))]
    moved = [TangentPropagation(walk.program, walk.steps, [x + d], 0.0).values() for d in steps]
    assert ranges
    for expr, entries, bound in ranges:
        away = torch.stack([at[expr.id].value - walk.nominal[expr.id].value for at in moved]).flatten(1)
        reached = away.abs().amax(0)[entries]
        assert bool((reached <= bound).all())
        assert bool((bound <= 30 * reached).all())


def test_entries_that_the_ellipsoid_closes_have_no_rows_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units that read and write in all directions: together they move the next one less than one by one."""
    layers = (nn.Linear(30, 60), nn.ReLU(), nn.Linear(60, 200), nn.ReLU(), nn.Linear(200, 2))
    model, x = seeded(nn.Sequential(*layers)), points(1, 30)
    with torch.no_grad():
        model[0].bias.copy_(-(x @ model[0].weight.double().T)[0] + 1e-3)
    monkeypatch.setattr(bounded_rounding, "PRECISE", 0.0)
    made: list[int] = []
    back = BoundedRoundingPropagation._backwards
    monkeypatch.setattr(
        BoundedRoundingPropagation, "_backwards", lambda *given: made.append(len(given[2])) or back(*given)
    )
    counts = []
    for quick in (SketchedPropagation._quick_ranges, lambda *given: None):
        monkeypatch.setattr(SketchedPropagation, "_quick_ranges", quick)
        made.clear()
        walk = SketchedPropagation(program_of(model, x), Steps(SegmentNorms()), [x], 0.3)
        walk.run()
        counts.append((made[1], len(walk.units)))
    assert counts[0][0] < counts[1][0]
    assert counts[0][1] == counts[1][1]


def _network(kind: str, generator: torch.Generator) -> nn.Module:
    """Return a network with BatchNorm, its statistics and factors drawn."""

    def drawn(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    if kind == "dense":
        layers = [nn.Linear(40, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 30), nn.BatchNorm1d(30), nn.ReLU()]
        layers.append(nn.Linear(30, 5))
    else:
        layers = [nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 10, 3, 2)]
        layers += [nn.BatchNorm2d(10), nn.ReLU(), nn.Flatten(), nn.Linear(90, 4)]
    model = seeded(nn.Sequential(*layers)).double().eval()
    for layer in model:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            count = layer.num_features
            for tensor, value in (
                (layer.running_mean, drawn(count) - 0.5),
                (layer.running_var, 0.01 + 0.1 * drawn(count)),
                (layer.weight.data, 0.5 + drawn(count)),
                (layer.bias.data, drawn(count) - 0.5),
            ):
                tensor.copy_(value)
    return model


@torch.no_grad()
def _rescaled(model: nn.Sequential, generator: torch.Generator) -> nn.Sequential:
    """Return the same function: channels before and behind every BatchNorm times 0.01 to 100."""
    other = copy.deepcopy(model)
    for before, norm, after in zip(other, other[1:], [*other[3:], *other[-1:] * 3], strict=False):
        if not isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            continue
        after = other[-1] if isinstance(after, nn.Flatten) else after
        first, second = 10.0 ** (4 * torch.rand(2, norm.num_features, generator=generator, dtype=torch.float64) - 2)
        wide = first.reshape(-1, *(1,) * (before.weight.ndim - 1))
        before.weight.mul_(wide)
        before.bias.mul_(first)
        norm.running_mean.mul_(first)
        spread = (first.square() * norm.running_var + norm.eps) / (norm.running_var + norm.eps)
        norm.running_var.mul_(first.square())
        norm.weight.mul_(spread.sqrt() / first * second)
        norm.bias.mul_(second)
        read = after.weight.reshape(len(after.weight), norm.num_features, -1)
        after.weight.copy_((read / second[:, None]).reshape(after.weight.shape))
    return other


def _balls(model: nn.Module, x: Tensor) -> list[Ball]:
    balanced = with_balanced_channels(captured_of(model, x))
    program = balanced_program(balanced, balanced.at_batch(1))
    return on_balls(program, Steps(SegmentNorms()), [x], [0.1, 0.5], sketched=True)


@pytest.mark.turns(3)
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("kind", "shape"), [("dense", (40,)), ("convolutional", (2, 8, 8))])
def test_scales_of_channels_do_not_move_it(
    kind: str, shape: tuple[int, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precise_values, "TOO_LARGE", 0.0)
    generator = torch.Generator().manual_seed(seed)
    model, x = _network(kind, generator), points(1, *shape, seed=seed)
    other = _rescaled(model, generator)
    assert torch.allclose(other(x), model(x), rtol=1e-10)
    assert not torch.allclose(other[0].weight, model[0].weight, rtol=0.5)
    found, moved = _balls(model, x), _balls(other, x)
    assert found[1].units > 2
    assert all(0.0 < b.delta < 1.0 for b in found)
    for ball, same in zip(found, moved, strict=True):
        assert same.constant == pytest.approx(ball.constant, rel=1e-9)
