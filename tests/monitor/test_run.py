"""Reading runs, also while they are written."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from normscope.core.errors import InputError
from normscope.monitor.run import METRICS, Run
from normscope.monitor.sinks.folder import RunFolder


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
