"""Runs on disk: points as lines of JSON, a reader that follows a folder, and a run with its series.

``metrics.jsonl`` has one point per line; a line is complete when it ends with a newline, so a crash loses at most the
last one. Numbers that strict JSON cannot represent are strings: ``"nan"``, ``"inf"``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from normscope.core.display import Shown, frame
from normscope.core.errors import InputError, listed

CONFIG, METRICS = "config.json", "metrics.jsonl"


@dataclass(frozen=True)
class Point:
    """What was logged at one step."""

    step: int  #: number of updates so far
    time: float  #: seconds since the start of the run
    metrics: Mapping[str, float] = field(default_factory=dict)  #: numbers by name
    note: str = ""  #: what a reader must know, if anything


def to_line(point: Point) -> bytes:
    r"""Return a point as one line.

    >>> to_line(Point(3, 0.5, {"probe/loss": math.inf}))
    b'{"step": 3, "time": 0.5, "metrics": {"probe/loss": "inf"}}\n'
    """
    body: dict[str, Any] = {"step": point.step, "time": round(point.time, 6)}
    body["metrics"] = {name: x if math.isfinite(x) else str(x) for name, x in point.metrics.items()}
    if point.note:
        body["note"] = point.note
    return json.dumps(body, allow_nan=False).encode() + b"\n"


def from_line(line: bytes) -> Point | None:
    """Return the point of a line, or ``None`` if the line is incomplete, damaged, or has an impossible step.

    >>> from_line(b'{"step": 3, "ti') is None
    True
    """
    try:
        body = json.loads(line)
        metrics = {name: float(value) for name, value in body.get("metrics", {}).items()}
        point = Point(int(body["step"]), float(body["time"]), metrics, str(body.get("note") or ""))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    return point if point.step >= 0 and math.isfinite(point.time) else None


def whole_lines(content: bytes) -> Iterator[bytes]:
    r"""Yield the lines that end with a newline, without an incomplete last one.

    >>> list(whole_lines(b"a\nb\nc"))
    [b'a\n', b'b\n']
    """
    yield from (line + b"\n" for line in content.split(b"\n")[:-1])  # splitlines() would end one at a carriage return


@dataclass(frozen=True, eq=False)
class Series:
    """One metric over time."""

    steps: np.ndarray  #: numbers of updates
    times: np.ndarray  #: seconds since the start
    values: np.ndarray  #: the numbers

    def __len__(self) -> int:
        return len(self.steps)


class RunReader:
    """Reads a run folder that may still be growing.

    Args:
        path: the folder.
        config: its configuration.

    Attributes:
        generation: incremented when points that were read are gone, because the run was resumed from an earlier step
            or replaced. The next points are then those from the start, and what was kept of the earlier ones is stale.
    """

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self.config = path, config
        self.generation = 0
        self._offset = 0
        self._inode: int | None = None
        self._config_stamp: tuple[int, ...] = ()

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the run in a folder.

        Args:
            path: the folder a monitor writes to.

        Raises:
            InputError: if there is no run in it.
        """
        return cls(Path(path), read_config(Path(path)))

    def poll(self) -> list[Point]:
        """Return the points written since the last call; an incomplete last line is left for the next call."""
        self._update_config()
        try:
            with (self.path / METRICS).open("rb") as file:
                content = self._new_content(file)
        except FileNotFoundError:
            return []
        complete = list(whole_lines(content))
        self._offset += sum(map(len, complete))
        return [point for point in map(from_line, complete) if point is not None]

    def _update_config(self) -> None:
        """Read the configuration again if its file has changed: the run was resumed, closed, or replaced by another."""
        try:
            status = (self.path / CONFIG).stat()
        except OSError:
            return
        stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        if stamp != self._config_stamp:
            started, self.config = self.config.get("started"), read_config(self.path)
            self._config_stamp = stamp
            if self.config.get("started") != started:  # the points of another run may be in a file of the same inode
                self._start_again()

    def _start_again(self) -> None:
        self._offset, self._inode = 0, None
        self.generation += 1

    def _new_content(self, file: BinaryIO) -> bytes:
        """Return the unread bytes: all of them if the file was replaced, or is shorter than it was."""
        status = os.fstat(file.fileno())
        replaced = self._inode is not None and status.st_ino != self._inode
        if replaced or status.st_size < self._offset:
            self._start_again()
        self._inode = status.st_ino
        file.seek(self._offset)
        return file.read()


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of the run in a folder.

    Raises:
        InputError: if there is no run in it.
    """
    try:
        config = json.loads((folder / CONFIG).read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"Not a run folder: no {CONFIG} in {folder}. Pass the folder that the monitor writes to."
        ) from None
    except OSError as error:
        raise InputError(f"Cannot read {folder / CONFIG}: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(f"{folder / CONFIG} is not JSON ({error}); it was not written by a monitor.") from None
    if not isinstance(config, dict) or "format" not in config:
        raise InputError(f"{folder / CONFIG} does not describe a run; it was not written by a monitor.")
    return config


class Run(RunReader, Shown):
    """A run with all of its points; ``to_frame()`` has one row per step and one column per metric."""

    _layout = ("normscope.report.live", "run_sections")

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        super().__init__(path, config)
        self._points: list[Point] = []
        self._columns: dict[str, tuple[list[int], list[float], list[float]]] = {}
        self.poll()

    def poll(self) -> list[Point]:
        """Read the points written since the last call, and return them."""
        generation = self.generation
        new = super().poll()
        if self.generation != generation:
            self._points, self._columns = [], {}
        self._points += new
        for point in new:
            for name, value in point.metrics.items():
                steps, times, values = self._columns.setdefault(name, ([], [], []))
                steps.append(point.step)
                times.append(point.time)
                values.append(value)
        return new

    @property
    def points(self) -> tuple[Point, ...]:
        """Return all points read so far, in order."""
        return tuple(self._points)

    @property
    def names(self) -> list[str]:
        """Return the names of all metrics, in the order of their first appearance."""
        return list(self._columns)

    @property
    def notes(self) -> list[str]:
        """Return the notes of the configuration and of the points."""
        return [*(self.config.get("notes") or ()), *(point.note for point in self._points if point.note)]

    @property
    def last_step(self) -> int:
        """Return the step of the last point, 0 if there is none."""
        return self._points[-1].step if self._points else 0

    def series(self, name: str) -> Series:
        """Return one metric over time, as numpy arrays.

        Args:
            name: the metric.

        Raises:
            InputError: if no point has it.
        """
        if name not in self._columns:
            raise InputError(f"No metric {name!r} in the run. It has: {listed(self.names) or 'none yet'}.")
        steps, times, values = self._columns[name]
        return Series(np.array(steps, dtype=np.int64), np.array(times), np.array(values, dtype=np.float64))

    def to_frame(self) -> Any:
        """Return every metric by step as a pandas data frame.

        Raises:
            MissingDependencyError: if pandas is not installed.
        """
        rows: dict[int, dict[str, float]] = {}
        for name, (steps, _, values) in self._columns.items():
            for step, value in zip(steps, values, strict=True):
                rows.setdefault(step, {"step": step})[name] = value
        return frame(rows[step] for step in sorted(rows))

    def group(self, prefix: str) -> dict[str, Series]:
        """Return the metrics of a group by the rest of their names, e.g. ``norm`` by layer."""
        start = prefix.rstrip("/") + "/"
        return {name.removeprefix(start): self.series(name) for name in self.names if name.startswith(start)}
