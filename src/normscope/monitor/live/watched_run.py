"""A run that is watched: its metrics in memory, kept up to date while its folder grows, is resumed or replaced."""

import itertools
import math
import statistics
import time
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from normscope.core.errors import InputError
from normscope.monitor.run import METRICS, Point, RunReader

#: How many numbers of the newest points are kept so that they can be sent one by one.
RECENT = 200_000
#: A run is called quiet when it has not grown for this many seconds and this many times the usual gap between points.
QUIET_SECONDS, QUIET_GAPS = 20.0, 10.0


class MetricLine:
    """The line of one metric.

    Attributes:
        last: its last number, finite or not.
        broken: how many of its numbers are not finite; they are not part of the line.
        broken_at: the step of the first such number.
    """

    def __init__(self) -> None:
        self.last, self.broken, self.broken_at = math.nan, 0, 0
        self._steps, self._values = array("d"), array("d")

    def append(self, step: int, value: float) -> None:
        """Add a number."""
        self.last = value
        if math.isfinite(value):
            self._steps.append(step)
            self._values.append(value)
        else:
            self.broken_at = self.broken_at if self.broken else step
            self.broken += 1

    def series(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps and the finite values so far."""
        return np.array(self._steps), np.array(self._values)


class WatchedRun:
    """A run on the live page.

    Args:
        path: its folder, which may not exist yet.
        name: its name on the page.

    Attributes:
        generation: incremented when everything is read again: the run was resumed from an earlier step, or replaced.
        count: number of points read in this generation.
        config: the run's configuration; empty as long as there is no run.
        lines: the lines of its metrics, by name.
        trouble: why it cannot be read at the moment; empty if it can.
    """

    def __init__(self, path: str | Path, name: str) -> None:
        self.path, self.name = Path(path), name
        self.generation, self.trouble = 0, ""
        self.config: dict[str, Any] = {}
        self._reader: RunReader | None = None
        self._clear()

    def _clear(self) -> None:
        self.count, self.first_step, self.last_step = 0, 0, 0
        self.lines: dict[str, MetricLine] = {}
        self.notes: dict[str, None] = {}
        self._recent: deque[tuple[int, Point]] = deque()
        self._recent_numbers = 0
        self._clock: deque[tuple[int, float]] = deque(maxlen=64)

    @property
    def exists(self) -> bool:
        """Return whether there is a run in the folder."""
        return self._reader is not None

    def listed(self, key: str) -> list[Any]:
        """Return a list of the configuration, or an empty one if the entry is missing or is not a list."""
        value = self.config.get(key)
        return value if isinstance(value, list) else []

    def open(self) -> None:
        """Read the run for the first time.

        Raises:
            InputError: if there is none in the folder, or none that can be read.
        """
        try:
            reader = RunReader.open(self.path)
            points = reader.poll()
        except OSError as error:
            raise InputError(f"Cannot read {error.filename or self.path} ({error.strerror or error}).") from None
        self._reader, self.config, self.generation = reader, reader.config, reader.generation
        self._add(points)

    def poll(self) -> bool:
        """Read what is new, and return whether anything is."""
        try:
            if self._reader is None:
                self.open()
                return True
            return self._follow(self._reader)
        except Exception as error:  # another process is writing the file: try again next time
            if self._reader is not None:
                self.trouble = f"cannot be read at the moment: {error}"
            return False

    def _follow(self, reader: RunReader) -> bool:
        """Read what is new, or everything if points that were read are gone."""
        new = reader.poll()
        self.trouble = ""
        if reader.generation != self.generation:
            self.generation = reader.generation
            self._clear()
        changed = reader.config is not self.config
        self.config = reader.config
        self._add(new)
        return bool(new) or changed

    def _add(self, points: list[Point]) -> None:
        for point in points:
            for name, value in point.metrics.items():
                if name not in self.lines:
                    self.lines[name] = MetricLine()
                self.lines[name].append(point.step, value)
            if point.note:
                self.notes[point.note] = None
            self._recent.append((self.count, point))
            self._recent_numbers += 1 + len(point.metrics)
            if not self._clock or self._clock[-1][0] != point.step:  # certifying may add a late point to a step
                self._clock.append((point.step, point.time))
            self.first_step = min(self.first_step, point.step) if self.count else point.step
            self.count, self.last_step = self.count + 1, point.step
        while self._recent_numbers > RECENT and len(self._recent) > 1:
            self._recent_numbers -= 1 + len(self._recent.popleft()[1].metrics)

    def after(self, count: int) -> list[Point] | None:
        """Return the points after the first ``count``, or ``None`` if some of them are no longer kept."""
        if count == self.count:
            return []
        if count > self.count or not self._recent or count < self._recent[0][0]:
            return None
        return [point for index, point in self._recent if index >= count]

    def steps_per_second(self) -> float | None:
        """Return how fast training went over the last points, or ``None`` if that is not known."""
        if len(self._clock) < 2:
            return None
        (first, begin), (last, end) = self._clock[0], self._clock[-1]
        return (last - first) / (end - begin) if end > begin and last > first else None

    def status(self, now: Callable[[], float] = time.time) -> dict[str, Any]:
        """Return the state of the run: waiting, live, quiet or ended.

        A run that was closed has ended. One that was killed, or hangs, leaves no mark: if nothing was written for long,
        it is called quiet, with the time since then.
        """
        share = self.lines["clock/share"].last if "clock/share" in self.lines else None
        status: dict[str, Any] = {
            "first": self.first_step,
            "step": self.last_step,
            "points": self.count,
            "rate": self.steps_per_second(),
            "share": share if share is not None and math.isfinite(share) else None,
            "trouble": self.trouble,
        }
        if self._reader is None:
            return status | {"state": "waiting", "age": None}
        try:
            age: float | None = max(0.0, now() - (self.path / METRICS).stat().st_mtime)
        except OSError:
            age = None
        if self.config.get("ended"):
            return status | {"state": "ended", "age": None if age is None else round(age, 1)}
        if age is None:
            return status | {"state": "quiet" if self.count else "live", "age": None}
        gaps = [b - a for (_, a), (_, b) in itertools.pairwise(self._clock)]
        patience = max(QUIET_SECONDS, QUIET_GAPS * statistics.median(gaps)) if gaps else QUIET_SECONDS
        return status | {"state": "live" if age <= patience else "quiet", "age": round(age, 1)}
