"""A run folder: ``config.json``, and ``metrics.jsonl``, appended line by line.

``config.json`` is written at the start of a run, and again when the run is resumed or closed.
"""

import contextlib
import errno
import json
import os
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from normscope.core.errors import InputError
from normscope.core.files import replacing, write_text
from normscope.monitor.run import CONFIG, METRICS, Point, from_line, to_line, whole_lines

#: Version of the format of a run folder.
FORMAT = 1
#: What a resumed run must have in common with the one it continues, as far as that one records it.
SAME = ("model", "parameters", "probe", "layers", "normalizers")


class RunFolder:
    """Writes a run; after every line the run on disk is complete, however the process ends.

    Between :meth:`begin` and :meth:`close` the folder is locked: a second writer is refused.

    Args:
        path: the folder, which is created; a run in it is continued.

    Attributes:
        resumed: whether the points of an earlier run were kept.
        ended: the step at which that run was closed, if it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as here:
    ...     folder = RunFolder(here)
    ...     _ = folder.begin({"model": "net"}, step=None)
    ...     folder.log({"probe/loss": 2.0}, step=1)
    ...     folder.close()
    ...     (Path(here) / "metrics.jsonl").read_text().count("probe/loss")
    1
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.resumed = False
        self.ended: int | None = None
        self._begun = False
        self._start = 0.0
        self._last_step = 0
        self._lock = FolderLock(self.path)

    def begin(self, config: Mapping[str, Any], step: int | None) -> int:
        """Start a run, or continue the one in the folder.

        An incomplete last line is dropped. With a step, points after it are dropped as well: training continues from a
        checkpoint of that step.

        Args:
            config: what is written to ``config.json`` at the start of a new run.
            step: the step from which training continues; ``None`` for the last point. A new run does not overwrite the
                points of an earlier one.

        Returns:
            The step from which the run continues, 0 for a new one.

        Raises:
            InputError: if the folder cannot be written, is in use, or contains something else or a run of another model
                or probe.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._known(config)  # do not lock a folder that holds something else
            self._lock.acquire()
            return self._begin(config, step)
        except InputError:
            self._lock.release()
            raise
        except OSError as error:
            self._lock.release()
            raise InputError(f"Cannot write to the run folder {self.path} ({error.strerror or error}).") from None

    def _begin(self, config: Mapping[str, Any], step: int | None) -> int:
        """Write the configuration and the points that are kept, in a locked folder."""
        known = self._known(config)
        ended = (known or {}).get("ended")
        self.ended = ended.get("step") if isinstance(ended, dict) else None
        at, kept, seconds, self.resumed = self._kept(step)
        if known is None or not self.resumed:  # a run without points has not started
            self._write_config({"format": FORMAT, **config})
        else:
            resumed = {"step": at, "started": config.get("started", "")}
            goes_on = {key: value for key, value in known.items() if key != "ended"}
            self._write_config({**goes_on, "resumed": [*(known.get("resumed") or ()), resumed]})
        self._start = time.time() - seconds
        file = self.path / METRICS
        if not file.exists() or file.read_bytes() != kept:
            with replacing(file) as temporary:
                temporary.write_bytes(kept)
        self._begun, self._last_step = True, at
        return at

    def _known(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the configuration of the run in the folder, if there is one that ``config`` can continue."""
        known = self._configuration()
        if known is None:
            if (self.path / METRICS).exists():
                raise InputError(f"{self.path} contains {METRICS} without {CONFIG}. Use another folder.")
            return None
        now = json.loads(json.dumps(dict(config)))
        differing = [key for key in SAME if key in known and known[key] != now.get(key)]
        if "model" in differing:
            raise InputError(
                f"{self.path} holds a run of another model ({known['model']}; this one is {now.get('model')}). "
                "Use a new folder."
            )
        if differing:
            was, comes = _first_difference(known[differing[0]], now.get(differing[0]))
            raise InputError(
                f"{self.path} holds a run that differs in {' and '.join(differing)} ({was}, now {comes}). "
                "Use a new folder."
            )
        return known

    def _configuration(self) -> dict[str, Any] | None:
        """Return the configuration, if there is one."""
        try:
            known = json.loads((self.path / CONFIG).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise InputError(f"{self.path / CONFIG} is not JSON ({error}). Use another folder.") from None
        if not isinstance(known, dict) or known.get("format") != FORMAT:
            raise InputError(f"{self.path / CONFIG} is not a run of format {FORMAT}. Use another folder.")
        return known

    def _kept(self, step: int | None) -> tuple[int, bytes, float, bool]:
        """Return the step to continue from, the lines to keep, the duration so far, and whether metrics are kept."""
        file = self.path / METRICS
        pairs = [(line, from_line(line)) for line in whole_lines(file.read_bytes() if file.exists() else b"")]
        points = [(line, point) for line, point in pairs if point is not None]
        if step == 0 and points and points[-1][1].step > 0:
            raise InputError(
                f"{self.path} contains a run that is past its start, but training starts at step 0. Use a new folder, "
                "or remove that one."
            )
        points = [(line, point) for line, point in points if step is None or point.step <= step]
        last = points[-1][1] if points else Point(0, 0.0)
        kept = b"".join(line for line, _ in points)
        return (last.step if step is None else step), kept, last.time, any(point.metrics for _, point in points)

    def _write_config(self, config: Mapping[str, Any]) -> None:
        write_text(self.path / CONFIG, json.dumps(config, indent=1) + "\n")

    def log(self, metrics: Mapping[str, float], step: int, note: str = "") -> None:
        """Append one point."""
        self._append([Point(step, time.time() - self._start, dict(metrics), note)])

    def log_many(self, points: Mapping[int, Mapping[str, float]], times: Mapping[int, float] | None = None) -> None:
        """Append points by step, with the times of the steps as of ``time.time()``, or the time now."""
        times, now = times or {}, time.time()
        self._append([Point(at, times.get(at, now) - self._start, dict(metrics)) for at, metrics in points.items()])

    def _append(self, points: Sequence[Point]) -> None:
        """Append points with one unbuffered write: at worst, the last line is incomplete.

        Raises:
            InputError: if the run was not started, or is closed.
            OSError: if they could not be written completely; then none of them is kept.
        """
        if not self._begun:
            raise InputError("Call begin() before writing to a run folder, and do not write after close().")
        line = b"".join(to_line(point) for point in points)
        with (self.path / METRICS).open("ab", buffering=0) as file:
            written = file.write(line)
            if written != len(line):  # the next line must not be appended to what a full disk cut off
                file.truncate(file.tell() - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._last_step = points[-1].step

    def close(self) -> None:
        """End the run, and record that in its configuration until it is continued."""
        if self._begun:
            self._begun = False
            # The run is complete without this record; do not hide an exception that is being raised.
            with contextlib.suppress(OSError, InputError):
                known = self._configuration()
                if known is not None:
                    self._write_config({**known, "ended": {"step": self._last_step}})
        self._lock.release()


def _first_difference(was: Any, comes: Any) -> tuple[Any, Any]:
    """Return the first entries in which two lists differ, or the values themselves if they are not lists.

    >>> _first_difference(["a", "b"], ["a", "c"]), _first_difference(["a"], []), _first_difference(3, 4)
    (('b', 'c'), ('a', None), (3, 4))
    """
    if isinstance(was, list) and isinstance(comes, list):
        return next((a, b) for a, b in zip_longest(was, comes) if a != b)
    return was, comes


if sys.platform != "win32":
    import fcntl

LOCK = ".lock"


class FolderLock:
    """An advisory lock on a file in a folder, which only writers use.

    The system releases it when the process ends, however that happens, so there is nothing to clean up: the file stays,
    and means nothing without its lock. Without such locks, as on Windows, nothing is locked.

    Args:
        folder: the folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as here:
    ...     lock = FolderLock(Path(here))
    ...     lock.acquire()
    ...     lock.release()
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock, unless it is already held.

        Raises:
            InputError: if another writer has it.
        """
        if sys.platform == "win32" or self._file is not None:
            return
        file = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        _HELD.add(self)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file = file
        except (BlockingIOError, PermissionError):  # the second on network file systems
            os.close(file)
            raise InputError(f"Another monitor is writing to {self.folder}. Close it, or use another folder.") from None
        except OSError:  # a file system without locks
            os.close(file)

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    __del__ = release


_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _forget() -> None:
    """Release inherited locks in a forked process, such as a DataLoader worker, which may outlive its parent."""
    for lock in _HELD:
        lock.release()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)
