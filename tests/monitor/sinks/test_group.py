"""Sinks: each by itself, and where a run goes on."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope.core.errors import InputError
from normscope.monitor import Run
from normscope.monitor.monitor import Monitor
from normscope.monitor.sinks.group import PATIENCE, ConsecutiveFailures, MonitorWarning, SinkGroup, last_scheduled


class Tracker:
    """A tracker that may have no connection."""

    def __init__(self, *, lost: bool) -> None:
        self.lost, self.calls = lost, 0

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Count, and fail without a connection."""
        self.calls += 1
        if self.lost:
            raise ConnectionError("no network")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tracker)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("lost", [(True, False), (False, True), (True, True), (True,)])
def test_sinks_of_one_class_are_told_and_given_up_each_by_itself(lost: tuple[bool, ...]) -> None:
    trackers = [Tracker(lost=one) for one in lost]
    group = SinkGroup(None, trackers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(20):
            group.log_points({step: {"a": 1.0}})
    assert [tracker.calls for tracker in trackers] == [PATIENCE if one else 20 for one in lost]
    assert len(group.sinks) == lost.count(False)
    assert len({str(w.message) for w in caught if w.category is MonitorWarning}) == len(caught) == lost.count(True)


def test_what_cannot_log_is_no_sink() -> None:
    with pytest.raises(InputError, match="Expected a sink with a method log"):
        SinkGroup(None, [object()])


def _ten(step: int) -> int:
    """Return the gap after any probe."""
    return 10


def test_the_next_probe_is_counted_from_the_last_of_the_schedule() -> None:
    assert last_scheduled([], _ten, None) is None
    assert last_scheduled([0], _ten, 0) == 0
    assert last_scheduled([0, 10, 17], _ten, 17) == 10
    assert last_scheduled([0, 10, 20], _ten, 20) == 20
    assert last_scheduled([0, 10, 17], _ten, 25) == 17


def _trained(path: Path, first: int, last: int, *, step: int | None = None, state: object = None, end: bool) -> object:
    """Train from one step to another, and return the state at the end."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    if state is not None:
        model.load_state_dict(state)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(24, 4, generator=generator), torch.randint(0, 3, (24,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mon = Monitor(
        model, (x, y), optimizer=optimizer, run=path, every=5, budget=math.inf, step=step, remember=False,
        quantities=["norms", "angle", "loss"],
    ).begin()  # fmt: skip
    for _ in range(first, last):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mon.step(loss=loss)
    mon.close(measure=end)
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.turns(3)
@pytest.mark.parametrize(("broken", "goes_on", "end"), [(13, 8, False), (9, 9, False), (9, 9, True), (10, 10, True)])
def test_a_resumed_run_is_that_of_an_unbroken_one(tmp_path: Path, broken: int, goes_on: int, end: bool) -> None:
    """Broken at one step, gone on with from a checkpoint of the same or an earlier one; ended properly or not."""
    _trained(tmp_path / "whole", 0, 20, end=True)
    state = _trained(tmp_path / "checkpoint", 0, goes_on, end=False)
    _trained(tmp_path / "broken", 0, broken, end=end)
    _trained(tmp_path / "broken", goes_on, 20, step=goes_on, state=state, end=True)
    whole, resumed = Run.open(tmp_path / "whole"), Run.open(tmp_path / "broken")
    for name in ("norm/0", "angle/0", "probe/loss", "train/loss"):
        a, b = whole.series(name), resumed.series(name)
        extra = {goes_on} - set(a.steps.tolist()) if end else set()  # measured when it ended
        kept = [step not in extra for step in b.steps.tolist()]
        assert b.steps[kept].tolist() == a.steps.tolist(), name
        assert b.values[kept].tolist() == a.values.tolist(), name


def test_numbers_given_before_the_start_and_after_the_end_are_kept(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    mon = Monitor(model, x, run=tmp_path, budget=math.inf, every=100)
    mon.log(before=1.0)
    mon.step(loss=2.0)
    mon.close()
    mon.log(after=3.0)
    other = Monitor(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), x, run=tmp_path, budget=math.inf)
    with other, pytest.warns(MonitorWarning, match="after the end.*Another monitor is writing"):
        mon.log(late=4.0)
    run = Run.open(tmp_path)
    found = {name: run.series(name).steps.tolist() for name in run.names if name.startswith("train/")}
    assert found == {"train/before": [0], "train/loss": [1], "train/after": [1]}
    assert run.config["ended"] == {"step": 1}
    mon.step()  # the folder is free again
    mon.close()
    assert "train/late" in Run.open(tmp_path).names


def _fail(failures: ConsecutiveFailures, times: int, **settings: object) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(times):
            with failures.tolerate("sink Lost", step, **settings):  # type: ignore[arg-type]
                raise ConnectionError("no network")
    return caught


def test_a_row_of_failures_is_told_once_and_given_up_once() -> None:
    notes: list[tuple[str, int]] = []
    gone: list[int] = []
    failures = ConsecutiveFailures(lambda message, step: notes.append((message, step)))
    told = _fail(failures, PATIENCE + 2, give_up=lambda: gone.append(1))
    message = "monitor: sink Lost failed at step 0: ConnectionError: no network"
    assert [(w.category, str(w.message)) for w in told] == [(MonitorWarning, message)]
    assert notes == [(message, 0)]
    assert gone == [1]


def test_success_ends_a_row() -> None:
    gone: list[int] = []
    failures = ConsecutiveFailures(lambda message, step: None)
    for _ in range(PATIENCE):
        assert len(_fail(failures, PATIENCE - 1, give_up=lambda: gone.append(1))) == 1
        with failures.tolerate("sink Lost", 9):
            pass
    assert not gone


def test_a_note_that_fails_is_survived_too() -> None:
    def full(message: str, step: int) -> None:
        raise OSError("no space left")

    assert len(_fail(ConsecutiveFailures(full), 2)) == 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupts_and_exits_get_through(kind: type[BaseException]) -> None:
    failures = ConsecutiveFailures(lambda message, step: pytest.fail("no failure"))
    with pytest.raises(kind), failures.tolerate("probing", 1):
        raise kind


def test_where_warnings_are_errors_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    notes: list[str] = []
    failures = ConsecutiveFailures(lambda message, step: notes.append(message))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(2):
            with failures.tolerate("probing", step):
                raise OSError("gone")
    assert [record.getMessage() for record in caplog.records] == notes
    assert "gone" in notes[0]
    caplog.clear()


def test_what_failed_where_nothing_could_be_given_up_is_given_up_later() -> None:
    gone: list[int] = []
    failures = ConsecutiveFailures(lambda message, step: None)
    _fail(failures, PATIENCE + 1)
    _fail(failures, 3, give_up=lambda: gone.append(1))
    assert gone == [1]
