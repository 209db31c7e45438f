"""The engine: when it probes, what it writes, what it does when something fails."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope
from monitor.moments import batch, small
from normscope.core.errors import InputError
from normscope.core.value import Kind
from normscope.monitor import Run
from normscope.monitor.monitor import Monitor
from normscope.monitor.quantities import descriptions
from normscope.monitor.quantities.loss import ProbeLoss
from normscope.monitor.sinks.group import MonitorWarning
from normscope.monitor.sinks.tensorboard import TensorBoard
from normscope.monitor.view import View


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Keep."""
        self.points.append((step, metrics))

    def close(self) -> None:
        """Fail: it is not the monitor's to close."""
        pytest.fail("closed by the monitor")


def plain() -> nn.Module:
    """Return a network that is captured quickly."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def probe() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1] * 4)


class Clock:
    """A clock that moves when told to."""

    now = 0.0

    def __call__(self) -> float:
        """Return the seconds, a microsecond later every time."""
        self.now += 1e-6
        return self.now


def monitored(model: nn.Module | None = None, **settings: Any) -> tuple[Monitor, Kept]:
    kept = Kept()
    sinks = [*settings.pop("sinks", ()), kept]
    settings = {"budget": math.inf, "every": 3, **settings}
    return Monitor(plain() if model is None else model, probe(), sinks=sinks, **settings), kept


def test_it_is_offered_by_the_package() -> None:
    assert normscope.Monitor is Monitor
    assert normscope.Run is Run


def test_it_probes_at_the_start_and_every_so_many_steps() -> None:
    mon, kept = monitored()
    with mon:
        for _ in range(10):
            mon.step(loss=1.0)
    probed = [step for step, metrics in kept.points if "product/norms_log10" in metrics]
    assert probed == [0, 3, 6, 9, 10]  # and at the end
    assert [step for step, metrics in kept.points if "train/loss" in metrics] == list(range(1, 11))


def test_every_step_can_be_probed() -> None:
    mon, kept = monitored(every=1, quantities=["angle", "loss"])
    with mon:
        for _ in range(4):
            mon.step()
    assert [step for step, _ in kept.points] == [0, 1, 2, 3, 4]
    assert all("angle/0" in metrics for _, metrics in kept.points[1:])
    mon, kept = monitored(every=1, quantities=["loss"])
    with mon:
        mon.step()
    assert [step for step, _ in kept.points] == [0, 1]


def test_numbers_are_never_thinned_whatever_they_cost() -> None:
    mon, kept = monitored(every=100, budget=1e-9)
    with mon:
        for step in range(5):
            mon.step(loss=float(step))
    found = [(step, m["train/loss"]) for step, m in kept.points if "train/loss" in m]
    assert found == [(step + 1, float(step)) for step in range(5)]


def test_an_error_in_the_loop_ends_the_run_at_once(tmp_path: Path) -> None:
    def fail() -> None:
        with mon:
            mon.step(loss=1.0)
            raise KeyError("mine")

    mon, kept = monitored(every=100, run=tmp_path)
    with pytest.raises(KeyError, match="mine"):
        fail()
    assert [step for step, metrics in kept.points if "norm/0" in metrics] == [0]  # no last probe
    assert Run.open(tmp_path).last_step == 1


def test_a_folder_that_is_refused_leaves_the_monitor_unbegun(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    mon, _ = monitored(run=tmp_path)
    for _ in range(2):
        with pytest.raises(InputError, match="another folder"):
            mon.begin()


def test_every_number_is_described() -> None:
    mon, kept = monitored(preset="full", optimizer=None, every=2)
    with mon:
        for _ in range(4):
            mon.step(lr=0.1, loss=torch.tensor(0.5))
    names = {name for _, metrics in kept.points for name in metrics}
    own = [n for n in names if not n.startswith(("clock/", "train/"))]
    assert all(sum(d.matches(name) for d in descriptions()) == 1 for name in own)
    used = {d.pattern for d in descriptions() for name in own if d.matches(name)}
    missing = {d.pattern for d in descriptions()} - used
    rare = ("radial/", "weight_norm/", "logit/", "not_finite/")  # those need such a network, or something that is wrong
    assert not {name for name in missing if not name.startswith(rare)}


def test_values_say_what_they_are() -> None:
    mon, _ = monitored()
    with mon:
        value = mon.value("product/folded_log10")
        assert value.kind is Kind.LOWER
        assert value.log10 == pytest.approx(mon.latest["product/folded_log10"])
        assert mon.value("norm/0").kind is Kind.LOWER
        assert mon.value("product/inverse_sigma_printed_log10").kind is Kind.PRINTED
        with pytest.raises(InputError, match="No metric 'norm/9' yet"):
            mon.value("norm/9")
        with pytest.raises(InputError, match="not one of the monitor's own"):
            mon.value("clock/probe_seconds")


def test_angles_are_those_of_one_update() -> None:
    model = plain()
    mon, kept = monitored(model, every=4)
    weight = model[0].weight
    turns: dict[int, float] = {}
    with mon:
        for step in range(1, 9):
            before = weight.detach().clone()
            with torch.no_grad():
                weight.add_(torch.full_like(weight, 0.1 * step))
            after = weight.detach()
            cosine = F.cosine_similarity(before.double().flatten(), after.double().flatten(), dim=0)
            turns[step] = math.acos(float(cosine))
            mon.step()
    found = {step: metrics["angle/0"] for step, metrics in kept.points if "angle/0" in metrics}
    assert set(found) == {4, 8}
    assert all(angle == pytest.approx(turns[step], rel=1e-4) for step, angle in found.items())


def test_learning_rates_come_from_the_optimizer_or_the_step() -> None:
    model = plain()
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[3].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    mon, kept = monitored(model, optimizer=optimizer, every=1, quantities=["effective_rate"])
    with mon:
        mon.step(lr=2.0)
    first, second = kept.points[0][1], kept.points[1][1]
    square = float(model[0].weight.detach().double().square().sum())
    assert first["effective_rate/0"] == pytest.approx(0.5 / square, rel=1e-6)
    assert first["effective_rate/3"] == pytest.approx(0.1 / float(model[3].weight.detach().square().sum()), rel=1e-6)
    assert second["effective_rate/0"] == pytest.approx(2.0 / square, rel=1e-6)


@pytest.mark.parametrize(("preset", "share"), [("economy", 0.02), ("standard", 0.05)])
def test_it_stays_within_its_budget(preset: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of its own, so that no busy machine decides."""
    clock = Clock()
    monkeypatch.setattr("normscope.monitor.monitor.time.perf_counter", clock)
    measure = ProbeLoss.measure

    def costly(self: ProbeLoss, moment: Any) -> dict[str, float]:
        clock.now += 0.03 * (1 + clock.now % 0.4)  # a probe costs up to 1.4 times what another does
        return measure(self, moment)

    monkeypatch.setattr(ProbeLoss, "measure", costly)
    mon, _ = monitored(preset=preset, budget=None, every=1)
    mon.budget._now = clock
    with mon:
        for _ in range(4000):
            clock.now += 0.005  # a training step
            mon.step(loss=1.0)
            assert mon.budget.spent <= share * mon.budget.elapsed() or mon.probes < 2
        assert mon.probes > 5
        assert mon.budget.spent >= 0.5 * share * mon.budget.elapsed()  # and it is used


def test_a_run_folder_is_written_and_resumed(tmp_path: Path) -> None:
    mon, _ = monitored(run=tmp_path / "run", name="net")
    with mon:
        for _ in range(6):
            mon.step(loss=torch.tensor(0.25))
    run = Run.open(tmp_path / "run")
    assert run.config["preset"] == "economy"
    assert run.config["model"] == "net"
    assert run.config["budget"] == "inf"
    assert run.series("train/loss").values.tolist() == [0.25] * 6
    json.loads((tmp_path / "run" / "config.json").read_text())
    again, _ = monitored(run=tmp_path / "run", name="net", step=4)
    with again:
        again.step(loss=9.0)
    run = Run.open(tmp_path / "run")
    assert run.series("train/loss").steps.tolist() == [1, 2, 3, 4, 5]
    assert run.series("train/loss").values[-1] == 9.0
    further, _ = monitored(run=tmp_path / "run", name="net")
    with further:
        further.step(loss=9.5)
    assert Run.open(tmp_path / "run").series("train/loss").steps[-1] == 6


def test_a_failing_quantity_never_reaches_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ProbeLoss, moment: object) -> dict[str, float]:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(ProbeLoss, "measure", fail)
    mon, _ = monitored(every=1, run=tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with mon:
            for _ in range(8):
                mon.step()
    told = [w for w in caught if w.category is MonitorWarning]
    assert len(told) == 1
    assert "quantity loss" in str(told[0].message)
    assert "loss" not in [q.name for q in mon.quantities]  # given up after three in a row
    assert "variance" in [q.name for q in mon.quantities]
    assert any("on purpose" in note for note in Run.open(tmp_path).notes)


def test_a_failing_sink_never_reaches_training() -> None:
    class Lost:
        """A tracker without a connection."""

        def log(self, metrics: dict[str, float], step: int) -> None:
            """Fail."""
            raise ConnectionError("no network")

    mon, kept = monitored(sinks=[Lost()], every=1)
    with pytest.warns(MonitorWarning, match="no network"):
        mon.begin()
    for _ in range(5):
        mon.step(loss=1.0)
    assert len(kept.points) >= 6
    assert len(mon.sinks) == 1


def test_weights_that_are_no_numbers_are_survived() -> None:
    model = plain()
    mon, kept = monitored(model, preset="full", every=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MonitorWarning)
        with mon:
            with torch.no_grad():
                model[0].weight.fill_(math.nan)
            for _ in range(3):
                mon.step(loss=math.nan)
    assert math.isnan(kept.points[-1][1].get("probe/loss", math.nan))
    assert any(math.isnan(metrics.get("train/loss", 0.0)) for _, metrics in kept.points)


def test_certify_is_an_analysis_of_this_moment() -> None:
    model = plain()
    mon, kept = monitored(model)
    with mon:
        with torch.no_grad():
            model[3].weight.mul_(10.0)
        result = mon.certify()
        truth = float(torch.linalg.matrix_norm(model[3].weight.detach().double(), 2))
        assert result.layers[-1].upper.value >= truth
        assert mon.value("certified/norm_log10/3").kind is Kind.CERTIFIED
        assert mon.latest["certified/global_log10"] >= mon.latest["certified/lower_log10"]
        assert "certified/global_log10" in kept.points[-1][1]
        assert mon.budget.spent == 0.0


def test_probing_by_hand_and_numbers_known_later() -> None:
    mon, kept = monitored(every=100)
    mon.log(early=1.0)  # begins it
    assert kept.points[-1] == (0, {"train/early": 1.0})
    with mon:
        mon.step(7)
        mon.log(accuracy=0.5)
        assert kept.points[-1] == (7, {"train/accuracy": 0.5})
        assert "norm/0" in mon.probe()
        assert kept.points[-1][0] == 7


def test_wrong_settings_are_refused_at_once() -> None:
    for settings, words in (
        ({"preset": "all"}, "Unknown preset"),
        ({"quantities": ["normz"]}, "Unknown quantities"),
        ({"mode": "eval"}, "Expected mode"),
        ({"every": 0}, "every >= 1"),
        ({"every": 1.5}, r"Expected every to be a whole number, got 1\.5 \(float\)\."),
        ({"step": -3}, "Expected step >= 0, got -3"),
        ({"budget": 2.0}, "Expected a budget"),
        ({"budget": "2%"}, r"Expected budget to be a number, got '2%'\."),
        ({"sinks": print}, r"Expected sinks to be a list, got builtin_function_or_method\. Pass one sink as"),
        ({"sinks": [object()]}, "log"),
        ({"optimizer": "sgd"}, "str has no param_groups"),
        ({"optimizer": [None]}, "NoneType has no param_groups"),
        ({"optimizer": torch.optim.SGD(plain().parameters())}, "none of its parameters belongs to the model"),
    ):
        with pytest.raises(InputError, match=words):
            Monitor(plain(), probe(), **settings)
    assert [q.name for q in Monitor(plain(), probe(), quantities="norms").quantities] == ["norms"]
    with pytest.raises(InputError, match="does not run"):
        Monitor(plain(), torch.zeros(2, 9)).begin()


def test_a_network_with_own_statistics_and_convolutions() -> None:
    mon = Monitor(small(), batch(), preset="standard", budget=math.inf)
    with mon:
        found = mon.probe()
    assert {"norm/conv1", "folded/conv1", "variance/bn1", "variance/ln", "gradient/ratio/head"} <= found.keys()


def test_a_run_killed_before_its_first_point_measures_its_start(tmp_path: Path) -> None:
    mon, _ = monitored(run=tmp_path, every=1)
    mon._measure = _interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        mon.begin()
    assert Run.open(tmp_path).points == ()
    again, _ = monitored(run=tmp_path, every=1)  # while the first monitor is still known
    with again:
        again.step()
    assert Run.open(tmp_path).series("norm/0").steps.tolist() == [0, 1]


def _interrupted(*, at_once: bool) -> dict[str, float]:
    raise KeyboardInterrupt


def test_a_short_run_is_measured_at_its_end() -> None:
    """Where the budget allowed nothing but the start, and not after an error."""
    mon, kept = monitored(every=1, budget=1e-9)
    with mon:
        for _ in range(3):
            mon.step(loss=1.0)
    assert [step for step, found in kept.points if "probe/loss" in found] == [0, 3]
    mon, kept = monitored(every=1, budget=1e-9)
    with pytest.raises(ZeroDivisionError), mon:
        mon.step(loss=1 / 0)
    assert [step for step, found in kept.points if "probe/loss" in found] == [0]


def test_after_the_end_it_goes_on_from_its_last_step(tmp_path: Path) -> None:
    mon, kept = monitored(run=tmp_path, step=10, every=100)
    with mon:
        for _ in range(5):
            mon.step(loss=1.0)
    before = Run.open(tmp_path).points
    count = len(kept.points)
    mon.probe()
    assert [step for step, _ in kept.points[count:]] == [15]
    mon.step(loss=2.0)
    mon.close()
    run = Run.open(tmp_path)
    assert run.points[: len(before)] == before
    assert run.series("train/loss").steps.tolist() == [11, 12, 13, 14, 15, 16]
    mon.certify()
    mon.close()
    assert Run.open(tmp_path).series("certified/global_log10").steps.tolist() == [16]
    assert Run.open(tmp_path).points[: len(before)] == before


def test_a_failing_quantity_and_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mon, kept = monitored(every=1, run=tmp_path / "run")
    mon.begin()
    shutil.rmtree(tmp_path / "run")
    monkeypatch.setattr(ProbeLoss, "measure", lambda self, moment: 1 / 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            mon.step(loss=1.0)
        mon.close()
    told = [str(w.message) for w in caught if w.category is MonitorWarning]
    assert [next(p for p in ("quantity loss", "sink RunFolder") if p in text) for text in told] == [
        "quantity loss",
        "sink RunFolder",
    ]
    assert "norm/0" in kept.points[-1][1]


class Guarded(nn.Module):
    """Raises on its own when it meets what is no number, and so cannot be exported."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        y = self.fc(x)
        if not bool(torch.isfinite(y).all()):
            raise FloatingPointError("nan in activations")
        return y


def test_a_model_that_raises_is_survived_and_measured_again(tmp_path: Path) -> None:
    model = Guarded()
    mon, _ = monitored(model, every=1, run=tmp_path)
    with mon, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weight = model.fc.weight.detach().clone()
        with torch.no_grad():
            model.fc.weight.fill_(math.nan)
        for _ in range(4):
            mon.step(loss=1.0)
        with torch.no_grad():
            model.fc.weight.copy_(weight)
        mon.step(loss=1.0)
    told = [str(w.message) for w in caught if w.category is MonitorWarning]
    assert len([text for text in told if "probing" in text]) == 1
    run = Run.open(tmp_path)
    assert "nan in activations" in run.notes[-1]
    assert run.series("train/loss").steps.tolist() == [1, 2, 3, 4, 5]
    assert run.series("norm/fc").steps.tolist() == [0, 5]


def test_weights_that_cannot_be_kept_are_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    mon, kept = monitored(every=1)
    mon.begin()
    view = mon._view
    assert view is not None
    layers, calls = view.layers, [0]

    def full(self: View | None = None) -> Any:
        calls[0] += 1
        if calls[0] <= 6:
            raise MemoryError("no room")
        return layers()

    mon._previous_weights = None
    monkeypatch.setattr(view, "layers", full)
    with pytest.warns(MonitorWarning, match="keeping weights.*no room"):
        mon.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MonitorWarning)
        for _ in range(8):
            mon.step()
    assert "angle" not in [q.name for q in mon.quantities]  # the others do not wait for it for ever
    assert "variance/1" in kept.points[-1][1]
    assert kept.points[-1][0] == 9


def test_bad_numbers_are_refused_at_the_step_they_are_given() -> None:
    mon, _ = monitored(budget=1e-9)  # nothing is written, so nothing is read
    with mon:
        mon.step(loss=1.0)
        with pytest.raises(InputError, match="tensor of shape"):
            mon.step(loss=torch.zeros(3))


def test_labels_that_do_not_fit_are_refused_at_the_start() -> None:
    x = probe()[0]
    for labels, words in ((torch.zeros(5).long(), "labels are"), (torch.full((8,), 7), "got 7")):
        with pytest.raises(InputError, match=words):
            Monitor(plain(), (x, labels)).begin()


def test_tensorboard_leaves_out_what_a_resumed_run_repeats(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start, steps in ((None, 4), (2, 1), (None, 1)):
        sinks = [TensorBoard(tmp_path / "board")]
        mon, _ = monitored(run=tmp_path / "run", sinks=sinks, step=start, quantities=["loss"])
        with mon:
            for _ in range(steps):
                mon.step(loss=1.0)
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    assert [e.step for e in events.Scalars("train/loss")] == [1, 2, 3, 4]
    assert Run.open(tmp_path / "run").series("train/loss").steps.tolist() == [1, 2, 3, 4]
