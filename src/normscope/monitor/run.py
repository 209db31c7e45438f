"""Reading a run: its configuration and its series, also while it is being written."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from normscope.core.display import Shown, frame
from normscope.core.errors import InputError, listed
from normscope.monitor.run_lines import Point, from_line, whole_lines

CONFIG, METRICS = "config.json", "metrics.jsonl"


@dataclass(frozen=True, eq=False)
class Series:
    """One metric over time."""

    steps: np.ndarray  #: numbers of updates
    times: np.ndarray  #: seconds since the start
    values: np.ndarray  #: the numbers

    def __len__(self) -> int:
        return len(self.steps)


class Run(Shown):
    """A run folder that may still be growing; ``to_frame()`` has one row per step and one column per metric.

    Args:
        path: the folder.
        config: its configuration.

    Attributes:
        generation: rises when points that were read are gone, because the run was resumed from an earlier step; then
            everything has been read anew, and what was kept elsewhere is stale.
    """

    _layout = ("normscope.report.live", "run_sections")

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self.config = path, config
        self.generation = 0
        self._points: list[Point] = []
        self._columns: dict[str, tuple[list[int], list[float], list[float]]] = {}
        self._offset = 0
        self._file: int | None = None

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Return the run in a folder, with all points written so far.

        Args:
            path: the folder a monitor writes to.

        Raises:
            InputError: if there is no run in it.
        """
        folder = Path(path)
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
        run = cls(folder, config)
        run.poll()
        return run

    def poll(self) -> list[Point]:
        """Read what was written since the last time, and return it; a torn last line waits for its end."""
        try:
            with (self.path / METRICS).open("rb") as file:
                content = self._new_content(file)
        except FileNotFoundError:
            return []
        new: list[Point] = []
        for line in whole_lines(content):
            self._offset += len(line)
            point = from_line(line)
            if point is not None:
                new.append(point)
                for name, value in point.metrics.items():
                    steps, times, values = self._columns.setdefault(name, ([], [], []))
                    steps.append(point.step)
                    times.append(point.time)
                    values.append(value)
        self._points += new
        return new

    def _new_content(self, file: Any) -> bytes:
        """Return the bytes after what was read; everything if the file is another one, or shorter than it was."""
        status = os.fstat(file.fileno())
        moved = self._file is not None and status.st_ino != self._file
        if moved or status.st_size < self._offset:
            self._points, self._columns, self._offset = [], {}, 0
            self.generation += 1
            self.config = json.loads((self.path / CONFIG).read_text())
        self._file = status.st_ino
        file.seek(self._offset)
        return file.read()

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
        """Return what a reader must know: of the configuration, and of the points."""
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
