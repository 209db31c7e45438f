"""Around the data: statements cover fresh points, too few points say nothing, Ctrl-C keeps what is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, jacobian_norm, points, residual_network, seeded
from normscope.analysis import analyze, around_data
from normscope.core.errors import InputError
from normscope.core.result import Result
from normscope.core.value import Kind

pytestmark = pytest.mark.usefixtures("usual_balls")

FAST = {"ascent": 0, "points": 1, "without_normalizers": False}


def _model() -> nn.Module:
    return seeded(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)))


def _result(count: int, **settings: Any) -> Result:
    return analyze(_model(), points(count, 4), **{**FAST, **settings})


def test_every_ball_is_above_the_jacobian_and_fresh_points_stay_below_the_bound() -> None:
    found = _result(100, radius=(0.01, 0.1)).around
    assert found is not None
    assert [n.radius for n in found.neighbourhoods] == [0.0, 0.01, 0.1]
    assert found.points == 100
    fresh = points(300, 4, seed=1)
    model = _model()
    for row in found.neighbourhoods:
        assert row.bound is not None
        assert row.bound.kind is Kind.PROBABILISTIC
        assert row.bound.delta == pytest.approx(0.01)
        below = sum(jacobian_norm(model, x[None]) <= row.bound.value for x in fresh)
        assert below >= 0.9 * len(fresh)
    small, large = found.neighbourhoods[0].constants, found.neighbourhoods[-1].constants
    assert all(a <= b * (1 + 1e-6) for a, b in zip(small, large, strict=True))


def test_no_local_constant_exceeds_the_one_on_all_inputs() -> None:
    result = _result(3, radius=1e6)
    assert result.around is not None
    whole = result.end_to_end["global"]
    assert whole is not None
    assert result.around.neighbourhoods[-1].largest <= whole.value * (1 + 1e-9)


def test_too_few_points_say_nothing_about_the_share() -> None:
    found = _result(12, radius=0.1).around
    assert found is not None
    assert all(n.bound is None for n in found.neighbourhoods)
    assert any("90 points are needed" in note for note in found.notes)
    assert _result(12, radius=0.1, share=0.6, confidence=0.9).around.best() is not None  # type: ignore[union-attr]


def test_radii_are_chosen_by_the_spread_of_the_data() -> None:
    first = analyze(_model(), points(5, 4), **FAST).around
    second = analyze(_model(), 100 * points(5, 4), **FAST).around
    assert first is not None
    assert second is not None
    assert second.neighbourhoods[1].radius == pytest.approx(100 * first.neighbourhoods[1].radius, rel=0.6)
    moved = analyze(_model(), 50 + points(5, 4), **FAST).around  # far from zero, and no wider
    assert moved is not None
    assert [n.radius for n in moved.neighbourhoods] == [n.radius for n in first.neighbourhoods]


def test_without_data_there_is_nothing_around_it() -> None:
    assert analyze(_model(), input_shape=(4,), **FAST).around is None


def test_without_time_nothing_is_looked_at_unless_a_radius_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(around_data, "on_balls", lambda *args, **rest: pytest.fail("a ball was looked at"))
    monkeypatch.setattr(around_data, "batched_norms", lambda *args, **rest: pytest.fail("a point was looked at"))
    for cheap in (0.0, math.inf):
        monkeypatch.setattr(around_data, "CHEAP", cheap)
        assert _result(20, time=0).around is None


def test_of_expensive_networks_only_jacobians_at_the_points_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(around_data, "CHEAP", 1.0)
    result = _result(3)
    assert result.around is not None
    assert [n.radius for n in result.around.neighbourhoods] == [0.0]
    assert any("--radius" in note for note in result.around.notes)
    assert any("not enclosed" in note for note in result.around.notes)
    asked = _result(3, radius=0.1).around
    assert asked is not None
    assert [n.radius for n in asked.neighbourhoods] == [0.0, 0.1]
    assert result.around.neighbourhoods[0].constants == pytest.approx(asked.neighbourhoods[0].constants, rel=1e-6)


def test_the_time_limits_the_points_and_ctrl_c_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _result(50, radius=0.1, time=0.0).around
    assert found is not None
    assert found.points == 1
    assert any("1 of 50" in note for note in found.notes)
    whole, calls = around_data.on_balls, []

    def interrupted(*args: Any, **rest: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return whole(*args, **rest)

    monkeypatch.setattr(around_data, "on_balls", interrupted)
    stopped = _result(50, radius=0.1).around
    assert stopped is not None
    assert stopped.points == 3
    assert any("stopped after 3" in note for note in stopped.notes)


def test_what_has_no_local_rule_is_said() -> None:
    model = seeded(Lambda(lambda s, x: s.a(x).norm(dim=-1), a=nn.Linear(4, 8)))
    found = analyze(model, points(5, 4), radius=0.1, **FAST).around
    assert found is not None
    assert all(math.isfinite(c) for n in found.neighbourhoods for c in n.constants)  # the bound on all inputs stands in
    assert any("norm" in note and "no local rule" in note for note in found.notes)


@pytest.mark.parametrize("settings", [{"radius": -1.0}, {"radius": math.inf}, {"share": 1.0}, {"confidence": 0.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InputError):
        _result(3, **settings)


def test_nothing_random_is_left_to_chance() -> None:
    model, data = _model(), points(20, 4)
    state = torch.random.get_rng_state()
    first, second = (analyze(model, data, radius=0.1, **FAST).around for _ in range(2))
    assert first is not None
    assert second is not None
    assert [n.constants for n in first.neighbourhoods] == [n.constants for n in second.neighbourhoods]
    assert bool((torch.random.get_rng_state() == state).all())


def test_a_derivative_that_is_not_finite_is_no_constant_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root has no bounded slope at zero: nothing finite may be said there, in large networks either."""
    monkeypatch.setattr("normscope.analysis.around_data.CHEAP", 0.0)
    model = Lambda(lambda s, x: s.head(x.abs().sqrt()), head=nn.Linear(3, 2)).eval()
    found = analyze(model, torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.0, 2.0]]), points=1, ascent=0).around
    assert found is not None
    low, high = sorted(found.neighbourhoods[0].constants)
    assert 0.0 < low < high == float("inf")


@pytest.mark.parametrize(
    ("op", "function"),
    [("zeta", lambda x: torch.special.zeta(x.abs() + 2, 2.0)), ("to", lambda x: x.int().to(x.dtype))],
)
def test_of_an_operation_without_a_derivative_nothing_is_said(
    op: str, function: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In large networks too, whose Jacobians are differentiated; the coverage tells of the operation."""
    monkeypatch.setattr("normscope.analysis.around_data.CHEAP", 0.0)
    model = Lambda(lambda s, x: s.head(function(x)), head=nn.Linear(3, 2)).eval()
    result = analyze(model, points(4, 3).float(), points=1, ascent=0)
    assert result.around is None
    assert any(op in opaque.op for opaque in result.coverage.opaque)


def test_a_sketch_of_a_deep_network_says_how_likely_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.lipschitz.local.precise_values.TOO_LARGE", 0.0)
    monkeypatch.setattr("normscope.lipschitz.local.sketched_tangents.COUNT", 24)
    monkeypatch.setattr("normscope.lipschitz.local.sketched_tangents.RAISED", 4.0)
    model, data = residual_network(0), points(2, 2, 4, 4)
    plain, sketched = (analyze(model, data, radius=0.05, sketch=s, **FAST).around for s in (False, True))
    assert plain is not None
    assert sketched is not None
    assert not any("sketched" in note for note in plain.notes)
    assert any("sketched: each constant fails with probability below" in note for note in sketched.notes)
    for a, b in zip(plain.neighbourhoods, sketched.neighbourhoods, strict=True):
        assert a.constants == pytest.approx(b.constants, rel=1e-3)


def test_certified_decisions_of_a_linear_network_stay_within_the_exact_distances() -> None:
    """A score leads another by its margin over the norm of the difference of their rows."""
    model, data = seeded(nn.Linear(4, 3)), points(6, 4)
    found = analyze(model, data, radius=(0.05, 50.0), **FAST).around
    assert found is not None
    scores, rows = model(data).detach(), model.weight.detach()
    exact = []
    for each in scores:
        first = int(each.argmax())
        exact.append(
            min(float((each[first] - each[k]) / (rows[first] - rows[k]).norm()) for k in range(3) if k != first)
        )
    assert len(found.radii) == 6
    assert all(a <= b * (1 + 1e-9) for a, b in zip(sorted(found.radii), sorted(exact), strict=True))
    assert sum(a > 0.3 * b for a, b in zip(sorted(found.radii), sorted(exact), strict=True)) >= 3


def test_the_largest_probability_of_failure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all balls of all points: one that was sketched is enough."""
    original = around_data.on_balls

    def sketched(*args: Any, **rest: Any) -> Any:
        first, *others = original(*args, **rest)
        return [first, *(replace(ball, delta=1e-7) for ball in others)]

    monkeypatch.setattr(around_data, "on_balls", sketched)
    found = _result(3, radius=0.1).around
    assert found is not None
    assert any("fails with probability below 1e-07" in note for note in found.notes)
