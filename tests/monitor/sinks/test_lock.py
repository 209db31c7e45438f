"""One writer at a time, and a lock that nothing survives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from normscope.core.errors import InputError
from normscope.monitor.sinks.lock import FolderLock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")

#: Takes the lock, starts a process that inherits every file, and waits.
HOLDER = """
import os, sys, time
from pathlib import Path
from normscope.monitor.sinks.lock import FolderLock
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
