"""One run in memory, metric by metric, kept up with its folder while that grows, is resumed or begins anew."""

import itertools
import json
import math
import statistics
import time
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from normscope.core.errors import InputError
from normscope.monitor.run import CONFIG, METRICS, Run
from normscope.monitor.run_lines import Point

#: Numbers of the newest points that are kept to be sent one by one.
RECENT = 200_000
#: Seconds, and multiples of the time between two points, after which a run that does not grow is called quiet.
QUIET_SECONDS, QUIET_GAPS = 20.0, 10.0


class Track:
    """One metric over time.

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


class _Tail(Run):
    """A run whose points are handed on and not kept."""

    def take(self) -> list[Point]:
        """Return what was read and not yet taken, with what was written since."""
        self.poll()
        taken, self._points = self._points, []
        return taken


class RunStore:
    """A run that is watched.

    Args:
        path: its folder; it need not exist yet.
        name: how the page calls it.

    Attributes:
        generation: rises when everything was read anew: the run was resumed from an earlier step, or begun again.
        count: points read in this generation.
        config: of the run; empty as long as there is none.
        tracks: metrics by name.
        trouble: why it cannot be read now, if so.
    """

    def __init__(self, path: str | Path, name: str) -> None:
        self.path, self.name = Path(path), name
        self.generation, self.trouble = 0, ""
        self.config: dict[str, Any] = {}
        self._run: _Tail | None = None
        self._stamp: tuple[int, ...] = ()
        self._clear()

    def _clear(self) -> None:
        """Forget all points."""
        self.count, self.first_step, self.last_step = 0, 0, 0
        self.tracks: dict[str, Track] = {}
        self.notes: dict[str, None] = {}
        self._recent: deque[tuple[int, Point]] = deque()
        self._held = 0
        self._clock: deque[tuple[int, float]] = deque(maxlen=64)

    @property
    def exists(self) -> bool:
        """Return whether there is a run in the folder."""
        return self._run is not None

    def listed(self, key: str) -> list[Any]:
        """Return a list of the configuration; an empty one where it has none, or something else."""
        value = self.config.get(key)
        return value if isinstance(value, list) else []

    def open(self) -> None:
        """Read the run for the first time.

        Raises:
            InputError: if there is none in the folder, or none that can be read.
        """
        stamp = self._config_stamp()
        try:
            run = cast(_Tail, _Tail.open(self.path))
        except OSError as error:
            raise InputError(f"Cannot read {error.filename or self.path} ({error.strerror or error}).") from None
        self._run, self._stamp, self.config = run, stamp, run.config
        self._take(run.take())

    def poll(self) -> bool:
        """Read what is new, and tell whether anything is."""
        try:
            if self._run is None:
                self.open()
                return True
            return self._follow(self._run)
        except Exception as error:  # a file that someone else writes: reading goes on, whatever it held just now
            if self._run is not None:
                self.trouble = f"cannot be read at the moment: {error}"
            return False

    def _follow(self, run: _Tail) -> bool:
        """Read on; everything anew if points that were read are gone."""
        news = False
        stamp = self._config_stamp()
        if stamp != self._stamp:  # resumed, or another run in the same place: its file may have got the same number
            started = self.config.get("started")
            config = json.loads((self.path / CONFIG).read_text())
            self._stamp = stamp
            if config.get("started") != started:
                self._restart()
                self.open()
                return True
            run.config = self.config = config
            news = True
        before = run.generation
        new = run.take()
        self.trouble = ""
        if run.generation != before:
            self._restart()
            self.config = run.config
        self._take(new)
        return bool(new) or news or run.generation != before

    def _restart(self) -> None:
        """Begin a new generation."""
        self.generation += 1
        self._clear()

    def _config_stamp(self) -> tuple[int, ...]:
        """Return what changes when the configuration is written."""
        try:
            status = (self.path / CONFIG).stat()
        except OSError:
            return self._stamp
        return (status.st_mtime_ns, status.st_ino, status.st_size)

    def _take(self, points: list[Point]) -> None:
        """Sort points into their metrics."""
        for point in points:
            for name, value in point.metrics.items():
                if name not in self.tracks:
                    self.tracks[name] = Track()
                self.tracks[name].append(point.step, value)
            if point.note:
                self.notes[point.note] = None
            self._recent.append((self.count, point))
            self._held += 1 + len(point.metrics)
            self._clock.append((point.step, point.time))
            self.first_step = min(self.first_step, point.step) if self.count else point.step
            self.count, self.last_step = self.count + 1, point.step
        while self._held > RECENT and len(self._recent) > 1:
            self._held -= 1 + len(self._recent.popleft()[1].metrics)

    def after(self, count: int) -> list[Point] | None:
        """Return the points after the first ``count`` ones, or ``None`` if some of them are kept no longer."""
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
        """Return how the run is doing.

        A run that was closed says that it has ended. One that was killed, or waits, cannot: where nothing came for
        long it is called quiet, with the time since.
        """
        share = self.tracks["clock/share"].last if "clock/share" in self.tracks else None
        status: dict[str, Any] = {
            "first": self.first_step,
            "step": self.last_step,
            "points": self.count,
            "rate": self.steps_per_second(),
            "share": share if share is not None and math.isfinite(share) else None,
            "trouble": self.trouble,
        }
        if self._run is None:
            return status | {"state": "waiting", "age": None}
        try:
            age: float | None = max(0.0, now() - (self.path / METRICS).stat().st_mtime)
        except OSError:
            age = None
        if self.config.get("ended"):
            return status | {"state": "ended", "age": None if age is None else round(age, 1)}
        if age is None:
            return status | {"state": "quiet" if self.count else "live", "age": None}
        times = [t for _, t in self._clock]
        gaps = [b - a for a, b in itertools.pairwise(times)]
        patience = max(QUIET_SECONDS, QUIET_GAPS * statistics.median(gaps)) if gaps else QUIET_SECONDS
        return status | {"state": "live" if age <= patience else "quiet", "age": round(age, 1)}
