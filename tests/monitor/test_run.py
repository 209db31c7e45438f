"""Points as lines, and reading runs, also while they are written."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from normscope.core.errors import InputError
from normscope.monitor.run import METRICS, Point, Run, from_line, to_line, whole_lines
from normscope.monitor.sinks.folder import RunFolder

NUMBERS = some.floats(allow_nan=False) | some.just(-0.0)


@pytest.mark.turns(2)
@given(some.integers(0, 10**12), some.dictionaries(some.text(max_size=8), NUMBERS, max_size=4), some.text(max_size=9))
def test_a_point_survives(step: int, metrics: dict[str, float], note: str) -> None:
    line = to_line(Point(step, 1.25, metrics, note))
    assert line.count(b"\n") == 1
    assert from_line(line) == Point(step, 1.25, metrics, note)
    assert list(whole_lines(line + line[:-1])) == [line]


def test_lines_are_strict_json() -> None:
    line = to_line(Point(1, 0.0, {"a": math.nan, "b": -math.inf}))
    assert json.loads(line, parse_constant=pytest.fail)["metrics"] == {"a": "nan", "b": "-inf"}
    assert math.isnan(from_line(line).metrics["a"])


@pytest.mark.parametrize("line", [b"", b"{}", b"[1]", b"no", b'{"step": 1}', b'{"step": 1, "time": "x"}', b"\xff"])
def test_what_is_no_point_is_none(line: bytes) -> None:
    assert from_line(line) is None


@pytest.mark.parametrize("step", [-1, '"x"', "null", "1e999", "NaN"], ids=lambda step: str(step)[:20])
def test_steps_that_cannot_be_are_damage(step: object) -> None:
    """A step is a number that is not negative."""
    line = '{"step": %s, "time": 1, "metrics": {"a": 1}}'
    assert from_line((line % step).encode()) is None
    assert from_line((line % 0).encode()) == Point(0, 1.0, {"a": 1.0})


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 1, "time": NaN, "metrics": {}}\n',
        b'{"step": 1, "time": 1e999, "metrics": {}}\n',
        b'{"step": 1, "time": 1, "metrics": null}\n',
        b'{"step": 1, "time": 1, "metrics": {"a": null}}\n',
    ],
)
def test_damaged_lines_are_no_points(line: bytes) -> None:
    """However they are damaged."""
    assert from_line(line) is None


def test_a_note_that_is_null_is_none() -> None:
    assert from_line(b'{"step": 1, "time": 1, "metrics": {}, "note": null}') == Point(1, 1.0)


def test_lines_end_at_newlines_alone() -> None:
    """So that the lengths of the lines add up to what was read."""
    content = b"a\rb\nc\x0bd\r\n"
    assert list(whole_lines(content + b"e\r")) == [b"a\rb\n", b"c\x0bd\r\n"]


def _begun(path: Path, step: int | None = None) -> RunFolder:
    folder = RunFolder(path)
    folder.begin({"model": "net", "notes": ["by modules"]}, step)
    return folder


def test_series_are_arrays(tmp_path: Path) -> None:
    folder = _begun(tmp_path)
    folder.log({"norm/a": 1.0, "train/loss": 2.0}, step=1)
    folder.log({"train/loss": math.inf}, step=2, note="odd")
    run = Run.open(tmp_path)
    series = run.series("train/loss")
    assert series.steps.tolist() == [1, 2]
    assert series.values.tolist() == [2.0, math.inf]
    assert series.steps.dtype == np.int64
    assert len(series.times) == len(series) == 2
    assert run.names == ["norm/a", "train/loss"]
    assert run.group("norm").keys() == {"a"}
    assert run.notes == ["by modules", "odd"]
    assert run.last_step == 2
    with pytest.raises(InputError, match="It has: norm/a, train/loss"):
        run.series("norm/b")


def test_polling_returns_each_point_once_and_waits_for_whole_lines(tmp_path: Path) -> None:
    folder = _begun(tmp_path)
    run = Run.open(tmp_path)
    assert run.poll() == []
    folder.log({"a": 1.0}, step=1)
    assert [p.step for p in run.poll()] == [1]
    assert run.poll() == []
    with (tmp_path / METRICS).open("ab") as file:
        file.write(b'{"step": 2, "time": 0.5, "met')
        file.flush()
        assert run.poll() == []
        file.write(b'rics": {"a": 2.0}}\n')
    assert [p.metrics["a"] for p in run.poll()] == [2.0]
    assert run.series("a").values.tolist() == [1.0, 2.0]
    assert run.generation == 0


def test_a_resumed_run_is_read_anew(tmp_path: Path) -> None:
    folder = _begun(tmp_path)
    for step in range(1, 6):
        folder.log({"a": float(step)}, step=step)
    folder.close()
    run = Run.open(tmp_path)
    again = _begun(tmp_path, step=3)
    again.log({"a": 40.0}, step=4)
    run.poll()
    assert run.generation == 1
    assert run.series("a").values.tolist() == [1.0, 2.0, 3.0, 40.0]
    assert run.config["resumed"][0]["step"] == 3


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json in"):
        Run.open(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        Run.open(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="does not describe a run"):
        Run.open(tmp_path)


def test_reading_loads_no_torch() -> None:
    code = "import sys; from normscope import Run; assert Run.open; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_no_run_folder_is_refused_with_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="Pass the folder that the monitor writes to"):
        Run.open(tmp_path / "file")
    (tmp_path / "odd" / "config.json").mkdir(parents=True)
    with pytest.raises(InputError, match="Cannot read"):
        Run.open(tmp_path / "odd")


def test_a_damaged_configuration_is_refused_or_read_as_empty(tmp_path: Path) -> None:
    """Half a file is no JSON; notes that are null are none."""
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "config.json").write_text('{"format": ')
    with pytest.raises(InputError, match="is not JSON"):
        Run.open(tmp_path)
    (tmp_path / "config.json").write_text('{"format": 1, "notes": null}')
    assert Run.open(tmp_path).notes == []
