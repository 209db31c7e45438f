"""The first look: quick, certified, below the full analysis in nothing but tightness; Ctrl-C keeps what is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import normscope
from normscope.analysis.capacity import ASSUMPTION, NOTE
from normscope.core.errors import STOPPED, InputError
from normscope.core.result import Result
from normscope.core.value import Kind


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.LayerNorm(8)
    ).eval()


def _data() -> torch.Tensor:
    return torch.randn(8, 2, 6, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def looks() -> tuple[Result, Result]:
    """Return the first look and the full result of one network."""
    model, data = _network(), _data()
    return normscope.analyze(model, data, fast=True), normscope.analyze(model, data, time=0.0, points=2, ascent=0)


def test_bounds_are_certified_and_only_looser(looks: tuple[Result, Result]) -> None:
    """On all inputs and layer by layer: never below the tight bound, nor what is attained."""
    first, full = looks
    for key in ("global", "without_normalizers"):
        quick, tight = first.end_to_end[key], full.end_to_end[key]
        assert quick is not None
        assert tight is not None
        assert quick.kind is Kind.CERTIFIED
        assert quick.log >= tight.log - 1e-9
        assert ASSUMPTION in quick.assumptions
    for row, other in zip(first.layers, full.layers, strict=True):
        assert row.upper.log >= other.lower.log
    attained = first.end_to_end["lower_everywhere"]
    assert attained is not None
    assert attained.log <= full.upper.log  # type: ignore[union-attr]


def test_everything_else_is_there(looks: tuple[Result, Result]) -> None:
    """Coverage, normalizers, what they change, data; and that it is a first look is said."""
    first, full = looks
    assert first.coverage == full.coverage
    assert [n.proved for n in first.normalizers] == [n.proved for n in full.normalizers]
    assert first.statistics["samples"] > 0
    assert "change_of_bound" in first.effect
    assert first.model["fast"] is True
    assert NOTE in first.messages
    assert Result.from_dict(first.to_dict()).end_to_end == first.end_to_end


@pytest.mark.parametrize("unused", [{"radius": 0.1}, {"time": 5.0}])
def test_settings_that_a_first_look_does_not_use_are_refused(unused: dict[str, float]) -> None:
    """Nothing within a radius is bounded in it."""
    with pytest.raises(InputError, match="uses neither radius nor time"):
        normscope.analyze(_network(), _data(), fast=True, **unused)


@pytest.mark.parametrize("where", ["layers", "search"])
def test_what_is_known_is_kept_when_stopped(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the second layer, or in the search: every number that is there holds, and none is missing."""
    model, data, calls = _network(), _data(), 0
    full = normscope.analyze(model, data, time=0.0, points=2, ascent=0)
    from normscope.analysis import end_to_end, layers

    place, name = (layers, "_layer") if where == "layers" else (end_to_end, "_search")
    real = getattr(place, name)

    def stopped(context: Any, *rest: Any, **more: Any) -> Any:
        nonlocal calls
        quick = context.options.stacked is False
        calls += not quick
        if not quick and calls == (2 if where == "layers" else 1):
            raise KeyboardInterrupt
        return real(context, *rest, **more)

    monkeypatch.setattr(place, name, stopped)
    monkeypatch.setattr("normscope.analysis.capacity.BIG_PARAMETERS", 1)
    found = normscope.analyze(model, data, time=0.0, points=2, ascent=0)
    assert STOPPED in found.messages
    assert found.layers[0] == full.layers[0]
    assert all(row.upper.log < math.inf for row in found.layers)
    assert found.upper is not None
    assert full.upper is not None
    assert full.upper.log - 1e-9 <= found.upper.log < math.inf
    assert (found.upper == full.upper) == (where == "search")
    assert found.end_to_end["lower_everywhere"] is not None


def test_the_first_look_of_a_large_network_is_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the work goes on, and nothing is handed out for a small one."""
    seen: list[Result] = []
    normscope.analyze(nn.Linear(3, 2), torch.ones(2, 3), first=seen.append)
    assert seen == []
    monkeypatch.setattr("normscope.analysis.capacity.BIG_PARAMETERS", 1)
    full = normscope.analyze(nn.Linear(3, 2), torch.ones(2, 3), first=seen.append)
    assert [look.model.get("fast") for look in seen] == [True]
    assert "fast" not in full.model


def _captures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with every graph that is made of a model."""
    from normscope.graph import capture

    calls = []

    def counted(name: str) -> Any:
        real = getattr(capture, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return real(*args, **kwargs)

        return call

    for name in ("export_graph", "graph_of_two_recordings", "record_graph"):
        monkeypatch.setattr(capture, name, counted(name))
    monkeypatch.setattr("normscope.analysis.capacity.BIG_PARAMETERS", 1)
    return calls


def test_the_graph_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The analysis goes on with the graph of the first look, and gives what it gives without one."""
    model, data = _network(), _data()
    alone = normscope.analyze(model, data, time=0.0, points=2, ascent=0)
    calls = _captures(monkeypatch)
    both = normscope.analyze(model, data, time=0.0, points=2, ascent=0)
    assert len(calls) == 1
    assert both.end_to_end == alone.end_to_end
    assert both.layers == alone.layers
    assert both.input == alone.input


class Branching(nn.Module):
    """Another function of large inputs, which an export does not show."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Double what is small."""
        large = not torch.compiler.is_exporting() and float(x.abs().max()) > 100
        return x if large else 2.0 * x


def test_a_graph_that_fails_elsewhere_is_not_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look says what it takes for granted; the analysis finds that it does not hold."""
    calls = _captures(monkeypatch)
    seen: list[Result] = []
    model = nn.Sequential(nn.Linear(3, 3), Branching())
    full = normscope.analyze(model, torch.ones(2, 3), first=seen.append)
    assert len(calls) > 1
    assert ASSUMPTION in seen[0].end_to_end["global"].assumptions  # type: ignore[union-attr]
    assert full.coverage.understood < full.coverage.ops or full.end_to_end["global"].domain != "all inputs"  # type: ignore[union-attr]


def test_less_is_looked_at_of_a_heavy_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No norms, no network without normalizers, one pair in float32: what is said holds, and nothing is printed."""
    model, data = _network(), _data()
    full = normscope.analyze(model, data, time=0.0, points=2, ascent=0)
    for name, value in (("capacity.HEAVY_FORWARD", 0.0), ("capacity.NORM_WORK", 0.0)):
        monkeypatch.setattr(f"normscope.analysis.{name}", value)
    monkeypatch.setattr("normscope.lipschitz.search.HEAVY", 0.0)
    first = normscope.analyze(model, data, fast=True)
    upper, lower = first.end_to_end["global"], first.end_to_end["lower_everywhere"]
    assert upper is not None
    assert lower is not None
    assert upper.kind is Kind.CERTIFIED
    assert full.upper is not None
    assert lower.log <= full.upper.log <= upper.log < math.inf
    assert first.end_to_end["without_normalizers"] is None
    assert not any(v is not None and v.kind is Kind.PRINTED for v in first.end_to_end.values())
