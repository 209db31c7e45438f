"""Run folders: whole after every line, continued after a crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from normscope.core.errors import InputError
from normscope.monitor.run import CONFIG, METRICS, Run
from normscope.monitor.sinks.folder import RunFolder

FACTS = {"model": "net", "parameters": 3, "probe": [[2, 2]], "started": "today"}


def _filled(path: Path, steps: int = 4) -> None:
    folder = RunFolder(path)
    assert folder.begin(FACTS, None) == 0
    for step in range(1, steps + 1):
        folder.log({"a": float(step)}, step=step)
    folder.close()


def test_the_configuration_is_written_at_the_start(tmp_path: Path) -> None:
    RunFolder(tmp_path / "deep" / "run").begin(FACTS, None)
    assert json.loads((tmp_path / "deep" / "run" / CONFIG).read_text())["model"] == "net"


def test_the_end_is_marked_until_the_run_goes_on(tmp_path: Path) -> None:
    _filled(tmp_path)
    assert Run.open(tmp_path).config["ended"] == {"step": 4}
    again = RunFolder(tmp_path)
    again.begin(FACTS, None)
    assert "ended" not in Run.open(tmp_path).config
    (tmp_path / CONFIG).unlink()  # someone cleans up: closing has nothing to mark, and nothing to complain about
    again.close()
    assert not (tmp_path / CONFIG).exists()


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    _filled(tmp_path)
    with (tmp_path / METRICS).open("ab") as file:
        file.write(b'{"step": 5, "time": 1.0, "metr')
    assert Run.open(tmp_path).last_step == 4
    again = RunFolder(tmp_path)
    assert again.begin(FACTS, None) == 4
    assert again.resumed
    again.log({"a": 5.0}, step=5)
    again.close()
    assert Run.open(tmp_path).series("a").values.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_points_after_the_resumed_step_are_dropped(tmp_path: Path) -> None:
    _filled(tmp_path)
    again = RunFolder(tmp_path)
    assert again.begin(FACTS, 2) == 2
    again.log({"a": 30.0}, step=3)
    again.close()
    run = Run.open(tmp_path)
    assert run.series("a").values.tolist() == [1.0, 2.0, 30.0]
    assert run.config["resumed"] == [{"step": 2, "started": "today"}]
    assert (run.series("a").times[1:] >= run.series("a").times[:-1]).all()  # the clock goes on where it stood


def test_a_run_is_not_begun_over_another(tmp_path: Path) -> None:
    _filled(tmp_path)
    before = (tmp_path / METRICS).read_bytes()
    with pytest.raises(InputError, match="starts at step 0"):
        RunFolder(tmp_path).begin(FACTS, 0)
    with pytest.raises(InputError, match="another parameters"):
        RunFolder(tmp_path).begin(FACTS | {"parameters": 4}, None)
    assert (tmp_path / METRICS).read_bytes() == before


def test_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text("mine")
    with pytest.raises(InputError, match="folder of its own"):
        RunFolder(tmp_path).begin(FACTS, None)
    for content in ("{", "{}"):
        (tmp_path / CONFIG).write_text(content)
        with pytest.raises(InputError, match="another folder"):
            RunFolder(tmp_path).begin(FACTS, None)
    assert (tmp_path / METRICS).read_text() == "mine"
    with pytest.raises(InputError, match="between begin"):
        RunFolder(tmp_path).log({}, step=1)


def test_a_killed_process_loses_nothing_it_logged(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from normscope.monitor.sinks.folder import RunFolder\n"
        f"folder = RunFolder({str(tmp_path)!r})\n"
        f"folder.begin({FACTS!r}, None)\n"
        "for step in range(1, 4):\n"
        "    folder.log({'a': float(step)}, step=step)\n"
        "print('written', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert Run.open(tmp_path).series("a").values.tolist() == [1.0, 2.0, 3.0]
