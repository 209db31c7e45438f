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
from normscope.monitor.sinks.folder import FolderLock, RunFolder

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


def test_the_clock_of_a_resumed_run_starts_where_it_stood(tmp_path: Path) -> None:
    """Time between the runs does not count, the time before does."""
    _filled(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    late = [json.dumps({**line, "time": line["time"] + 1000.0}) for line in lines]
    (tmp_path / METRICS).write_text("\n".join(late) + "\n")
    again = RunFolder(tmp_path)
    again.begin(FACTS, None)
    again.log({"a": 5.0}, step=5)
    again.close()
    times = Run.open(tmp_path).series("a").times
    assert 1000.0 <= times[-2] <= times[-1] < 1100.0


def test_a_run_is_not_begun_over_another(tmp_path: Path) -> None:
    _filled(tmp_path)
    before = (tmp_path / METRICS).read_bytes()
    with pytest.raises(InputError, match="starts at step 0"):
        RunFolder(tmp_path).begin(FACTS, 0)
    with pytest.raises(InputError, match="differs in parameters"):
        RunFolder(tmp_path).begin(FACTS | {"parameters": 4}, None)
    with pytest.raises(InputError, match=r"holds a run of another model \(net; this one is Other\)\. Use"):
        RunFolder(tmp_path).begin(FACTS | {"model": "Other", "parameters": 4}, None)
    assert (tmp_path / METRICS).read_bytes() == before


def test_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text("mine")
    with pytest.raises(InputError, match="another folder"):
        RunFolder(tmp_path).begin(FACTS, None)
    for content in ("{", "{}"):
        (tmp_path / CONFIG).write_text(content)
        with pytest.raises(InputError, match="another folder"):
            RunFolder(tmp_path).begin(FACTS, None)
    assert (tmp_path / METRICS).read_text() == "mine"
    with pytest.raises(InputError, match="Call begin"):
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
    assert RunFolder(tmp_path).begin(FACTS, None) == 3  # and holds no lock


def test_a_run_without_a_point_has_not_begun(tmp_path: Path) -> None:
    """A process killed before its first point: the next one measures the start."""
    RunFolder(tmp_path).begin(FACTS, None)
    again = RunFolder(tmp_path)
    assert again.begin(FACTS | {"started": "later"}, None) == 0
    assert not again.resumed
    again.log({}, step=0, note="something failed")  # a note alone is no measurement
    again.close()
    once_more = RunFolder(tmp_path)
    assert once_more.begin(FACTS, None) == 0
    assert not once_more.resumed
    once_more.log({"a": 1.0}, step=0)
    once_more.close()
    run = Run.open(tmp_path)
    assert "resumed" not in run.config
    assert run.notes == ["something failed"]
    last = RunFolder(tmp_path)
    last.begin(FACTS, None)
    assert last.resumed


def test_another_structure_is_another_model(tmp_path: Path) -> None:
    facts = FACTS | {"layers": ["0", "3"], "normalizers": [{"name": "1", "kind": "batch_norm"}]}
    folder = RunFolder(tmp_path / "run")
    folder.begin(facts, None)
    folder.log({"a": 1.0}, step=1)
    folder.close()
    for change in ({"layers": ["0", "4"]}, {"normalizers": [{"name": "1", "kind": "layer_norm"}]}):
        with pytest.raises(InputError, match=f"differs in {next(iter(change))}"):
            RunFolder(tmp_path / "run").begin(facts | change, None)
    with pytest.raises(InputError, match=r"'kind': 'batch_norm'.*now None"):
        RunFolder(tmp_path / "run").begin(facts | {"normalizers": []}, None)
    _filled(tmp_path / "old")  # written without them
    old = RunFolder(tmp_path / "old")
    assert old.begin(facts, None) == 4
    assert old.resumed


def test_what_is_no_folder_is_refused_with_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="Cannot write to the run folder"):
            RunFolder(path).begin(FACTS, None)
    (tmp_path / "odd" / METRICS).mkdir(parents=True)
    (tmp_path / "odd" / CONFIG).write_text(json.dumps(FACTS | {"format": 1}))
    odd = RunFolder(tmp_path / "odd")
    with pytest.raises(InputError, match="Cannot write to the run folder"):
        odd.begin(FACTS, None)
    FolderLock(tmp_path / "odd").acquire()  # the lock was given back
    assert (tmp_path / "file").read_text() == "mine"


def test_a_run_has_one_writer(tmp_path: Path) -> None:
    one, two = RunFolder(tmp_path), RunFolder(tmp_path)
    one.begin(FACTS, None)
    one.log({"a": 1.0}, step=1)
    with pytest.raises(InputError, match="Another monitor is writing"):
        two.begin(FACTS, None)
    one.log({"a": 2.0}, step=2)
    assert Run.open(tmp_path).last_step == 2  # readers need no lock
    one.close()
    assert two.begin(FACTS, None) == 2


def test_foreign_folders_are_not_locked(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text("{}")
    with pytest.raises(InputError, match="another folder"):
        RunFolder(tmp_path).begin(FACTS, None)
    assert [p.name for p in tmp_path.iterdir()] == [CONFIG]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of a file's size to set")
def test_a_disk_that_was_full_for_a_while_leaves_whole_lines(tmp_path: Path) -> None:
    code = (
        "import resource\n"
        "from normscope.monitor.sinks.folder import RunFolder\n"
        f"folder = RunFolder({str(tmp_path)!r})\n"
        f"folder.begin({FACTS!r}, None)\n"
        "folder.log({'a': 1.0}, step=1)\n"
        f"size = (folder.path / {METRICS!r}).stat().st_size\n"
        "limits = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))\n"
        "try:\n"
        "    folder.log({'a': 2.0}, step=2)\n"
        "except OSError:\n"
        "    print('full')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, limits)\n"
        "folder.log({'a': 3.0}, step=3)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "full\n"
    assert Run.open(tmp_path).series("a").values.tolist() == [1.0, 3.0]


def test_damaged_lines_do_not_keep_a_run_from_going_on(tmp_path: Path) -> None:
    """They are dropped as a torn line is; a list of resumptions that is null is empty."""
    _filled(tmp_path)
    with (tmp_path / METRICS).open("ab") as file:
        file.write(b'[[\n{"step": 1, "ti\n')
    config = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps({**config, "resumed": None}))
    assert Run.open(tmp_path).series("a").steps.tolist() == [1, 2, 3, 4]
    again = RunFolder(tmp_path)
    assert again.begin(FACTS, None) == 4
    again.log({"a": 5.0}, step=5)
    again.close()
    assert (tmp_path / METRICS).read_bytes().count(b"\n") == 5
    assert Run.open(tmp_path).config["resumed"] == [{"step": 4, "started": "today"}]


@pytest.mark.parametrize("begun", [False, True])
def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path, begun: bool) -> None:
    """At the start the run is refused; at the end it is whole, without the mark of its end."""
    code = (
        "import resource, sys\n"
        "from normscope.core.errors import InputError\n"
        "from normscope.monitor.sinks.folder import RunFolder\n"
        f"folder, config = RunFolder({str(tmp_path)!r}), {FACTS!r} | {{'notes': ['x' * 1000]}}\n"
        f"if {begun}:\n"
        "    folder.begin(config, None)\n"
        "    folder.log({'a': 1.0}, step=1)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))\n"
        "try:\n"
        f"    folder.close() if {begun} else folder.begin(config, None)\n"
        "except InputError as error:\n"
        "    sys.stdout.write('refused' if 'Cannot write' in str(error) else str(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ("" if begun else "refused")
    assert not list(tmp_path.glob(f".{CONFIG}*"))
    assert (tmp_path / CONFIG).exists() == begun
    if begun:
        run = Run.open(tmp_path)
        assert run.last_step == 1
        assert "ended" not in run.config


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")

#: Takes the lock, starts a process that inherits every file, and waits.
HOLDER = """
import os, sys, time
from pathlib import Path
from normscope.monitor.sinks.folder import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.acquire()
if os.fork() == 0:
    print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_the_second_is_refused_until_the_first_gives_it_back(tmp_path: Path) -> None:
    one, two = FolderLock(tmp_path), FolderLock(tmp_path)
    one.acquire()
    one.acquire()  # it is ours
    with pytest.raises(InputError, match="Another monitor is writing"):
        two.acquire()
    one.release()
    two.acquire()
    two.release()
    two.release()


def test_a_lock_that_nobody_knows_any_more_is_free(tmp_path: Path) -> None:
    FolderLock(tmp_path).acquire()
    FolderLock(tmp_path).acquire()


def test_a_killed_process_holds_nothing_even_if_its_children_live(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        with pytest.raises(InputError, match="Another monitor"):
            FolderLock(tmp_path).acquire()
        process.kill()
        process.wait()
        os.kill(child, 0)  # still there
        FolderLock(tmp_path).acquire()
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_a_folder_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FolderLock(tmp_path / "gone").acquire()
