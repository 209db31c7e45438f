"""A model that is changed in the middle of a run is noticed at the next probe, and measured as it is."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

from fingerprints import fingerprint
from normscope.monitor import Run
from normscope.monitor.monitor import Monitor
from normscope.monitor.sinks.group import MonitorWarning


def _net(*, weight_norm: bool = False) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
        if weight_norm:
            parametrizations.weight_norm(model[0])
    return model


def _normed() -> nn.Sequential:
    return _net(weight_norm=True)


class Switch(nn.Module):
    """Computes what its attributes say."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.n, self.o = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)
        self.use, self.scale = True, 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, normalized if so wished."""
        h = self.a(x)
        return self.o(torch.relu(self.n(h) if self.use else h)) * self.scale


def _probe() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(12, 4, generator=generator), torch.randint(0, 3, (12,), generator=generator)


def _remove_weight_norm(model: nn.Sequential) -> None:
    parametrize.remove_parametrizations(model[0], "weight")


def _pruned(model: nn.Sequential) -> None:
    prune.l1_unstructured(model[0], "weight", amount=0.5)


def _widened(model: nn.Sequential) -> None:
    model[0], model[1], model[3] = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)


CHANGES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], object]]] = {
    "pruned": (_net, _pruned),
    "weight norm added": (_net, lambda m: parametrizations.weight_norm(m[0])),
    "weight norm removed": (_normed, _remove_weight_norm),
    "layer appended": (_net, lambda m: m.append(nn.Linear(3, 3))),
    "normalizer taken out": (_net, lambda m: m.__setitem__(1, nn.Identity())),
    "activation replaced": (_net, lambda m: m.__setitem__(2, nn.Tanh())),
    "widened": (_net, _widened),
    "switched": (Switch, lambda m: setattr(m, "use", False)),
    "scaled": (Switch, lambda m: setattr(m, "scale", 3.0)),
}


def _scale(model: nn.Module) -> None:
    """Move every weight, as training does."""
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5).add_(0.01)


@pytest.mark.turns(3)
@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("preset", ["standard"])
def test_numbers_are_those_of_the_model_as_it_is(kind: str, preset: str, tmp_path: Path) -> None:
    make, change = CHANGES[kind]
    model, (x, y) = make(), _probe()
    mon = Monitor(model, (x, y), preset, mode="running", run=tmp_path, budget=math.inf, every=1, remember=False)
    with mon:
        mon.step()
        change(model)
        for _ in range(2):
            _scale(model)
            before = fingerprint(model)
            mon.step()
            assert fingerprint(model) == before
    latest = mon.latest
    model.eval()
    with torch.no_grad():
        assert latest["probe/loss"] == pytest.approx(float(F.cross_entropy(model(x), y)), rel=1e-5)
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    norms = {name.removeprefix("norm/"): value for name, value in latest.items() if name.startswith("norm/")}
    assert norms.keys() == linear.keys()
    for name, layer in linear.items():
        truth = float(torch.linalg.matrix_norm(layer.weight.detach().double(), 2))
        assert norms[name] == pytest.approx(truth, rel=1e-4), name
    assert "angle/0" in latest or "angle/a" in latest
    assert any("has changed" in note for note in Run.open(tmp_path).notes)


def test_a_change_that_cannot_be_captured_is_told_once_and_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise RuntimeError("not today")

    model = _net()
    mon = Monitor(model, _probe(), quantities=["norms", "loss"], budget=math.inf, every=1)
    with mon:
        mon.step()
        monkeypatch.setattr("normscope.monitor.graph_view._capture_smallest", refuse)
        _pruned(model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(4):
                mon.step()
        (told,) = [str(w.message) for w in caught if w.category is MonitorWarning]
        assert all(words in told for words in ("0.weight", "cannot be captured again", "not today"))
        assert not [name for name in mon.latest if name.startswith(("norm/", "probe/"))]
        monkeypatch.undo()
        mon.step()
        model(_probe()[0])  # computes the pruned weight
        truth = float(torch.linalg.matrix_norm(model[0].weight.detach().double(), 2))
        assert mon.latest["norm/0"] == pytest.approx(truth, rel=1e-3)


def test_a_model_that_is_the_same_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Growing(nn.Module):
        """Remembers, in a buffer it does not compute with and in an attribute."""

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)
            self.calls = 0
            self.register_buffer("seen", torch.zeros(0))

        def forward(self, x: Tensor) -> Tensor:
            """Return logits."""
            self.calls += 1
            return torch.relu(self.fc(x))

    model = Growing()
    mon = Monitor(model, _probe(), quantities=["norms"], budget=math.inf, every=1)
    with mon:
        captures_again = "normscope.monitor.graph_view._capture_smallest"
        monkeypatch.setattr(captures_again, lambda *a, **k: pytest.fail("captured again"))
        for _ in range(3):
            model.seen = torch.cat([model.seen, torch.ones(1)])
            model.calls += 1
            _scale(model)
            mon.step()
        with torch.no_grad():
            model.fc.weight.fill_(math.nan)
        with pytest.warns(MonitorWarning, match="the weights of fc"):
            mon.step()


def test_a_model_that_cannot_be_captured_again_is_certified_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise RuntimeError("not today")

    model = _net()
    with Monitor(model, _probe(), quantities=["norms"], budget=math.inf, every=1) as mon:
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", MonitorWarning)
            patch.setattr("normscope.monitor.graph_view._capture_smallest", refuse)
            parametrizations.weight_norm(model[0])
            mon.step()
            result = mon.certify()
        weight = copy.deepcopy(model[0]).double().weight.detach()  # of the given parameters in exact arithmetic
        truth = float(torch.linalg.matrix_norm(weight, 2))
        assert truth * (1 - 1e-12) <= mon.value("certified/norm_log10/0").value <= 1.001 * truth
        assert result.layers[0].name == "0"
