"""The engine from step to step: angles, numbers of the user's, layers that break, failures beside training."""

from __future__ import annotations

import copy
import math
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.monitor import Run
from normscope.monitor.live.watched_run import WatchedRun
from normscope.monitor.monitor import Monitor
from normscope.monitor.sinks.group import MonitorWarning


def _net() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2)
        )


def _probe() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1] * 4)


def _monitor(path: Path, model: nn.Module | None = None, **settings: Any) -> Monitor:
    return Monitor(
        _net() if model is None else model, _probe(), run=path, **{"budget": math.inf, "every": 1, **settings}
    )


def _turn(model: nn.Sequential, step: int) -> float:
    """Move a weight, and return the angle by which it turned."""
    with torch.no_grad():
        before = model[0].weight.detach().double().flatten()
        model[0].weight.add_(0.1 * step)
        after = model[0].weight.detach().double().flatten()
    return math.acos(float(before @ after / (before.norm() * after.norm())))


@pytest.mark.parametrize("every", [1, 4, 6])
@pytest.mark.parametrize("last", [3, 7, 8])
def test_an_angle_is_recorded_where_an_update_lies_between_and_only_there(
    tmp_path: Path, every: int, last: int
) -> None:
    model = _net()
    mon = _monitor(tmp_path, model, every=every, quantities=["angle", "loss"])
    turns: dict[int, float] = {}
    with mon:
        for step in range(1, last + 1):
            turns[step] = _turn(model, step)
            mon.step()
            if step == 3:
                assert "angle/0" not in mon.probe()
    run = Run.open(tmp_path)
    assert last in run.series("probe/loss").steps  # measured at the end
    if "angle/0" in run.names:
        series = run.series("angle/0")
        for step, angle in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            assert angle == pytest.approx(turns[step], rel=1e-4)
    expected = {1: list(range(1, last + 1)), 4: [7] if last >= 7 else [], 6: []}[every]  # after 3 counted anew
    assert (run.series("angle/0").steps.tolist() if "angle/0" in run.names else []) == expected


@pytest.mark.parametrize("broken", [0, 3, 6])
def test_a_layer_that_is_no_number_is_left_out_until_it_is_one_again(tmp_path: Path, broken: int) -> None:
    model = _net()
    good = copy.deepcopy(model.state_dict())
    with _monitor(tmp_path, model, preset="standard", mode="running") as mon, warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        mon.step()
        with torch.no_grad():
            model[broken].weight[0, 0] = math.nan
        for _ in range(5):
            mon.step()
        assert f"norm/{broken}" not in mon.latest
        assert "product/norms_log10" not in mon.latest
        model.load_state_dict(good)
        for _ in range(2):
            mon.step()
    run = Run.open(tmp_path)
    for name in (0, 3, 6):
        expected = [0, 1, 7, 8] if name == broken else list(range(9))
        assert run.series(f"norm/{name}").steps.tolist() == expected, name
    for name in ("product/norms_log10", "bound/chain_log10", "constant/4", "product/inverse_sigma_proved_log10"):
        found = run.series(name)
        assert found.steps.tolist()[-2:] == [7, 8], name
        assert all(map(math.isfinite, found.values)), name
    told = [str(each.message) for each in w if each.category is MonitorWarning]
    assert told == [f"monitor: skipped from step 2: the weights of {broken} contain NaN or infinite values"]
    assert {each.filename for each in w if each.category is MonitorWarning} == {__file__}


def test_numbers_logged_count_as_spent_and_wait_where_there_is_no_time() -> None:
    class Slow:
        """Takes its time."""

        def __init__(self) -> None:
            self.points: list[tuple[int, dict[str, float]]] = []

        def log(self, metrics: dict[str, float], step: int) -> None:
            """Keep slowly."""
            time.sleep(0.01)
            self.points.append((step, metrics))

    slow = Slow()
    mon = Monitor(_net(), _probe(), sinks=[slow], every=1000, budget=1e-3)
    with mon:
        time.sleep(0.1)
        for step in range(1, 8):
            mon.step(step)
            mon.log(loss=float(step))
            if step == 2:
                mon.log(accuracy=0.5)
        assert mon.budget.spent >= 0.01 * len(slow.points[1:])
        assert mon.budget.spent < 0.05  # and not seven times a hundredth
        mon.probe()
        assert slow.points[-1][1]["train/loss"] == 7.0
    losses = [(step, m["train/loss"]) for step, m in slow.points if "train/loss" in m]
    assert losses == [(step, float(step)) for step in range(1, 8)]  # none is lost, each at its own step
    assert [(step, m["train/accuracy"]) for step, m in slow.points if "train/accuracy" in m] == [(2, 0.5)]
    assert [step for step, _ in slow.points] == sorted(step for step, _ in slow.points)


def test_metrics_that_wait_keep_the_times_of_their_steps(tmp_path: Path) -> None:
    """The speed of a run is that of its steps, also where they are written together and certifying took long."""
    with Monitor(_net(), _probe(), run=tmp_path, every=1000, budget=1e-6) as mon:
        for _ in range(20):
            time.sleep(0.002)
            mon.step(loss=1.0)
        time.sleep(0.5)
        mon.certify(fast=True)
    times = Run.open(tmp_path).series("train/loss").times
    assert np.all(np.diff(times) >= 0.0015)
    assert times[-1] - times[0] < 0.4
    watched = WatchedRun(tmp_path, "run")
    watched.open()
    assert watched.status()["rate"] > 40


def test_where_warnings_are_errors_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = _net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with _monitor(tmp_path, model) as mon:
            with torch.no_grad():
                model[0].weight.fill_(math.nan)
            for _ in range(4):
                mon.step(loss=1.0)
    assert any("the weights of 0" in record.getMessage() for record in caplog.records)
    assert any("the weights of 0" in note for note in Run.open(tmp_path).notes)
    caplog.clear()


def test_a_run_too_short_for_its_budget_says_so(tmp_path: Path) -> None:
    """Two points are no curve: the notes say how to get more. With no limit there is nothing to say."""
    note = "only 2 probes fitted into 0.0001 % of the run's time; pass budget=math.inf to measure more"
    for budget, said in ((1e-6, 1), (math.inf, 0)):
        folder = tmp_path / str(budget)
        with Monitor(_net(), _probe(), run=folder, budget=budget) as mon:
            for _ in range(40):
                mon.step(loss=1.0)
        assert Run.open(folder).notes.count(note) == said


@pytest.mark.parametrize("step", [torch.tensor(0.7), 0.3, 3.0, -7, torch.tensor([1, 2]), "3"])
def test_a_step_that_is_not_a_whole_number_is_refused(tmp_path: Path, step: Any) -> None:
    """The loss in the place of the step is named as the likely mistake, and the counter stays where it was."""
    with _monitor(tmp_path, every=100) as mon:
        mon.step(torch.tensor(4), loss=1.0)
        with pytest.raises(InputError, match="Expected step"):
            mon.step(step)
        with pytest.raises(InputError, match="scalar metric"):
            mon.step(loss=torch.zeros(2))
        mon.step(loss=0.5)
    assert Run.open(tmp_path).series("train/loss").steps.tolist() == [4, 5]
    with pytest.raises(InputError, match=r"got a tensor\. Pass the loss as loss=\.\.\."):
        mon.step(torch.tensor(0.7))  # type: ignore[arg-type]


def test_steps_that_go_back_give_one_warning(tmp_path: Path) -> None:
    """Own metrics are kept, but nothing is measured before the last probe: the user is told, once."""
    with _monitor(tmp_path) as mon:
        mon.step(5, loss=5.0)
        with pytest.warns(MonitorWarning, match="step 3 follows step 5: the monitor measures only after step 5"):
            mon.step(3, loss=3.0)
        for step in (4, 2, 6):  # warnings are errors in tests, which the monitor would log
            mon.step(step, loss=float(step))
    run = Run.open(tmp_path)
    assert run.series("train/loss").steps.tolist() == [5, 3, 4, 2, 6]
    assert run.series("norm/0").steps.tolist() == [0, 5, 6]


def test_metrics_may_be_given_by_name(tmp_path: Path) -> None:
    """As to other trackers; a name with a group keeps it, but does not replace a metric of the monitor."""
    with _monitor(tmp_path, every=100) as mon:
        mon.step(loss=1.0)
        mon.log({"val/acc": 0.3, "f1": 0.5, "norm/0": 7.0, "train/top5": 0.9}, late=2.0)
        with pytest.raises(InputError, match=r"Expected metrics by name, such as log\(loss=\.\.\.\), got float"):
            mon.log(0.3)  # type: ignore[arg-type]
    run = Run.open(tmp_path)
    for name, value in {
        "val/acc": 0.3,
        "train/f1": 0.5,
        "train/norm/0": 7.0,
        "train/top5": 0.9,
        "train/late": 2.0,
    }.items():
        assert run.series(name).values.tolist() == [value]
    assert 7.0 not in run.series("norm/0").values


def test_a_complex_loss_is_refused(tmp_path: Path) -> None:
    with _monitor(tmp_path, every=100) as mon:
        for loss in (torch.tensor(1 + 2j), torch.tensor(1 + 0j), 1j):
            for give in (mon.step, mon.log):
                with pytest.raises(InputError, match=r"one element|scalar metric|real"):
                    give(loss=loss)
    with pytest.raises(InputError, match="complex"):
        Monitor(_net(), _probe(), loss=lambda out, y: out.sum() * 1j).begin()


def test_the_rates_of_several_optimizers(tmp_path: Path) -> None:
    model = _net()
    several = [torch.optim.SGD(model[i].parameters(), lr=rate) for i, rate in ((0, 0.5), (3, 0.25))]
    with _monitor(tmp_path, model, optimizer=several, quantities=["effective_rate"]) as mon:
        mon.step()
    for i, rate in ((0, 0.5), (3, 0.25)):
        square = float(model[i].weight.detach().double().square().sum())
        assert mon.latest[f"effective_rate/{i}"] == pytest.approx(rate / square, rel=1e-6)
    assert "effective_rate/6" not in mon.latest


def test_nothing_certified_of_a_layer_is_below_what_is_attained() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1)
        )
    with torch.no_grad():
        model[0].weight.abs_()
    x = torch.randn(4, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    with Monitor(model, x, "full", quantities=["norms"], budget=math.inf) as mon:
        mon.certify()
    for name in ("0", "2"):
        attained, certified = math.log10(mon.latest[f"norm/{name}"]), mon.latest[f"certified/norm_log10/{name}"]
        assert attained <= certified <= attained + 1e-3


def test_one_warning_tells_of_a_nan_that_spreads(tmp_path: Path) -> None:
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with _monitor(tmp_path, model, preset="full") as mon, warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        for step in range(4):
            model(torch.randn(8, 3)).sum().backward()
            optimizer.step()
            if step == 1:
                with torch.no_grad():
                    model[0].weight[0, 0] = math.nan
            mon.step()
    told = [str(each.message) for each in w if each.category is MonitorWarning]
    assert told == ["monitor: skipped from step 2: the weights of 0 contain NaN or infinite values"]
