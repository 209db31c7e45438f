"""A run that is torn, grows, is resumed, begun again or gone."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from monitor.live.runs import begin, written
from normscope.core.errors import InputError
from normscope.monitor.live import watched_run as module
from normscope.monitor.live.watched_run import WatchedRun
from normscope.monitor.run import Run


def _opened(folder: Path) -> WatchedRun:
    watched = WatchedRun(folder, "run")
    watched.open()
    return watched


def test_series_are_those_of_the_run(tmp_path: Path) -> None:
    """Metric by metric what the reader of runs gives."""
    points = {s: {"train/loss": 1 / s} | ({"norm/a": float(s)} if s % 3 == 0 else {}) for s in range(1, 200)}
    folder = written(tmp_path / "run", points)
    watched, run = _opened(folder), Run.open(folder)
    assert (watched.count, watched.first_step, watched.last_step) == (199, 1, 199)
    for name in run.names:
        expected = run.series(name)
        steps, values = watched.lines[name].series()
        np.testing.assert_array_equal(steps, expected.steps)
        np.testing.assert_array_equal(values, expected.values)


def test_it_grows_and_a_torn_line_waits(tmp_path: Path) -> None:
    """Only what is new is read; half a line is read when its other half is there."""
    run = begin(tmp_path)
    run.log({"norm/a": 1.0}, step=1)
    watched = _opened(tmp_path)
    assert not watched.poll()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "time": 1.0, "met')
        file.flush()
        assert not watched.poll()
        file.write(b'rics": {"norm/a": 5.0}}\nnot a line\n{"step": 1e999, "time": 0}\n[]\n')
    assert watched.poll()
    assert watched.count == 2
    assert watched.lines["norm/a"].series()[1].tolist() == [1.0, 5.0]
    assert [p.step for p in watched.after(1) or ()] == [2]


def test_resuming_from_an_earlier_step_begins_a_generation(tmp_path: Path) -> None:
    """Points that are gone are forgotten; resuming after the last one loses nothing."""
    folder = written(tmp_path / "run", {s: {"norm/a": float(s)} for s in range(10)})
    watched = _opened(folder)
    begin(folder).log({"norm/a": 10.0}, step=10)
    assert watched.poll()
    assert (watched.generation, watched.count) == (0, 11)
    assert len(watched.config["resumed"]) == 1
    begin(folder, step=4).log({"norm/a": -1.0}, step=5)
    assert watched.poll()
    assert watched.generation == 1
    assert watched.lines["norm/a"].series()[1].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, -1.0]


def test_another_run_in_the_same_place(tmp_path: Path) -> None:
    """It is told apart by its start, even if its file is longer and has the same number on the disk."""
    folder = written(tmp_path / "run", {1: {"norm/a": 1.0}})
    watched = _opened(folder)
    shutil.rmtree(folder)
    assert not watched.poll()
    assert watched.lines["norm/a"].last == 1.0  # what was read stays until there is something else
    written(folder, {s: {"norm/b": 2.0} for s in range(5)}, started="2025-02-02T00:00:00+00:00")
    assert watched.poll()
    assert (watched.generation, watched.count, list(watched.lines)) == (1, 5, ["norm/b"])


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    """It is waited for; opening it says what is missing."""
    watched = WatchedRun(tmp_path / "later", "later")
    with pytest.raises(InputError, match=r"no config\.json"):
        watched.open()
    assert not watched.poll()
    assert watched.status()["state"] == "waiting"
    begin(tmp_path / "later").log({"norm/a": 1.0}, step=3)
    assert watched.poll()
    assert watched.status()["state"] == "live"


def test_a_folder_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """The page keeps what it has and says why there is no more; afterwards it goes on."""
    folder = written(tmp_path / "run", {1: {"norm/a": 1.0}})
    watched = _opened(folder)
    good = (folder / "config.json").read_text()
    (folder / "config.json").write_text("{")
    assert not watched.poll()
    assert "cannot be read at the moment" in watched.status()["trouble"]
    (folder / "config.json").write_text(good)
    begin(folder).log({"norm/a": 2.0}, step=2)
    assert watched.poll()
    assert watched.status()["trouble"] == ""
    assert watched.count == 2


def test_numbers_that_are_none(tmp_path: Path) -> None:
    """They are no part of a line, and are counted with the step of the first."""
    watched = _opened(
        written(tmp_path / "run", {1: {"train/loss": 1.0}, 2: {"train/loss": math.nan}, 3: {"train/loss": math.inf}})
    )
    line = watched.lines["train/loss"]
    assert line.series()[0].tolist() == [1.0]
    assert (line.broken, line.broken_at, line.last) == (2, 2, math.inf)


def test_status(tmp_path: Path) -> None:
    """Speed by the run's own clock; quiet when nothing came for long; the share of the last probe."""
    run = begin(tmp_path)
    lines = [f'{{"step": {s}, "time": {s / 50}, "metrics": {{"clock/share": 0.02}}}}\n' for s in range(10)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    watched = _opened(run.path)
    status = watched.status()
    assert status["rate"] == pytest.approx(50)
    assert (status["share"], status["step"], status["points"], status["state"]) == (0.02, 9, 10, "live")
    later = os.stat(tmp_path / "metrics.jsonl").st_mtime + 100
    assert watched.status(now=lambda: later) == status | {"state": "quiet", "age": 100.0}


def test_a_run_that_was_closed_has_ended_until_it_is_resumed(tmp_path: Path) -> None:
    """One that was closed says so, and the page is told; one that goes on is live again."""
    run = begin(tmp_path)
    run.log({"norm/a": 1.0}, step=3)
    watched = _opened(tmp_path)
    assert watched.status()["state"] == "live"
    run.close()
    assert watched.poll()
    assert watched.status()["state"] == "ended"
    assert _opened(tmp_path).status()["state"] == "ended"
    begin(tmp_path).log({"norm/a": 2.0}, step=4)
    assert watched.poll()
    assert (watched.status()["state"], watched.count) == ("live", 2)


def test_only_the_newest_points_are_kept_to_be_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is further behind is told to ask anew."""
    monkeypatch.setattr(module, "RECENT", 20)
    watched = _opened(written(tmp_path / "run", {s: {"norm/a": 1.0} for s in range(100)}))
    assert [p.step for p in watched.after(95) or ()] == [95, 96, 97, 98, 99]
    assert watched.after(100) == []
    assert watched.after(10) is None
    assert watched.after(101) is None


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    """Also those that come while the run is watched; the points after them are read."""
    folder = written(tmp_path / "run", {s: {"norm/a": 1.0} for s in range(3)})
    damage = b'[[\n{"step": 1, "ti\n'
    (folder / "metrics.jsonl").write_bytes(damage + (folder / "metrics.jsonl").read_bytes())
    watched = _opened(folder)
    assert (watched.count, watched.last_step) == (3, 2)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(damage + b"x\ry\n" + b'{"step": 3, "time": 9, "metrics": {"norm/a": 2}}\n')
    assert watched.poll()
    assert not watched.poll()
    assert (watched.count, watched.last_step, watched.trouble) == (4, 3, "")


def test_runs_that_cannot_be_read(tmp_path: Path) -> None:
    """Each with its own words."""
    folder = written(tmp_path / "run", {1: {"norm/a": 1.0}})
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").mkdir()
    with pytest.raises(InputError, match=r"Cannot read .*metrics\.jsonl"):
        WatchedRun(folder, "run").open()
    (folder / "config.json").write_text("[[")
    with pytest.raises(InputError, match=r"config\.json is"):
        WatchedRun(folder, "run").open()


@pytest.mark.parametrize("value", [None, 7, "text", {"a": 1}])
def test_lists_that_are_none_are_empty(tmp_path: Path, value: object) -> None:
    """A configuration may be another's."""
    folder = written(tmp_path / "run", {1: {"norm/a": 1.0}})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "notes": value}))
    watched = _opened(folder)
    assert watched.listed("notes") == []
    assert watched.listed("layers") == ["a", "b"]
    assert watched.listed("nothing") == []
