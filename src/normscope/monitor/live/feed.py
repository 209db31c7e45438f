"""The data behind the live page: its current state, the lines of its charts, and what is new since then."""

import math
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from normscope.core.errors import InputError
from normscope.monitor.chart import ChartLines, all_charts, charts_of
from normscope.monitor.live.thinning import limit_for, thinned
from normscope.monitor.live.watched_run import WatchedRun
from normscope.monitor.run import CONFIG

#: Seconds between two reads of the folders.
INTERVAL = 0.5
#: Notes of a run that the page lists.
NOTES = 20
_POSITION = re.compile(r"\d{1,9}\.\d{1,12}(-\d{1,9}\.\d{1,12})*", re.ASCII)


def run_folders(paths: Sequence[str | Path], *, wait: bool = False) -> list[Path]:
    """Return the folders of runs: those given, and the runs inside folders of runs.

    With ``wait``, folders without a run are accepted: the run may start later.

    Raises:
        InputError: if there is no run.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(child for child in path.iterdir() if (child / CONFIG).is_file()) if path.is_dir() else []
        if (path / CONFIG).is_file() or (wait and not inside):
            found.append(path)
        elif inside:
            found += inside
        else:
            what = "not found" if not path.exists() else f"no {CONFIG} in it"
            raise InputError(
                f"Not a run folder: {path} ({what}). To wait for a run that has not started, use wait=True or --wait."
            )
    unique = list(dict.fromkeys(p.resolve() for p in found))
    if not unique:
        raise InputError("Expected at least one run.")
    return unique


def run_names(folders: Sequence[Path]) -> list[str]:
    """Return a short, unique name for each folder.

    >>> run_names([Path("/runs/a/0"), Path("/runs/b/0"), Path("/runs/c")])
    ['a/0', 'b/0', 'c']
    """
    depth = dict.fromkeys(folders, 1)
    while True:
        names = ["/".join(folder.parts[-depth[folder] :]) for folder in folders]
        twice = {name for name, count in Counter(names).items() if count > 1}
        longer = [f for f, n in zip(folders, names, strict=True) if n in twice and depth[f] < len(f.parts)]
        if not longer:
            return names
        for folder in longer:
            depth[folder] += 1


def json_float(x: float) -> float | str | None:
    """Return a number with six digits for JSON; NaN and infinities become strings.

    >>> json_float(1 / 3), json_float(float("inf"))
    (0.333333, 'inf')
    """
    return float(f"{x:.6g}") if math.isfinite(x) else str(x)


def json_line(values: np.ndarray) -> list[float | None]:
    """Return the values of a line for JSON, ``None`` for NaN."""
    return [float(f"{x:.6g}") if x == x else None for x in values.tolist()]


class LiveFeed:
    """The runs of a page; one thread reads them, and many requests are answered from them."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        folders = [Path(p) for p in paths]
        self.runs = [WatchedRun(folder, name) for folder, name in zip(folders, run_names(folders), strict=True)]
        self.closed = False
        self._changed = threading.Condition(threading.RLock())
        self._version = 0
        self._thread: threading.Thread | None = None
        self._charts: tuple[object, list[ChartLines]] = (None, [])

    def open(self, asked: Sequence[str | Path] = ()) -> list[InputError]:
        """Read all runs for the first time, leave out those that cannot be read, and return their errors.

        Raises:
            InputError: if a run that was asked for cannot be read, or none can.
        """
        needed = {Path(path).resolve() for path in asked}
        broken: list[InputError] = []
        with self._changed:
            good = []
            for run in self.runs:
                try:
                    run.open()
                    good.append(run)
                except InputError as error:
                    if run.path.resolve() in needed:
                        raise
                    broken.append(error)
            if broken and not good:
                raise broken[0]
            self.runs = good
            self._version += 1
            self._changed.notify_all()
        return broken

    def poll(self) -> bool:
        """Read what is new in all runs, and return whether anything is."""
        with self._changed:
            changed = [run.poll() for run in self.runs]
            if any(changed):
                self._version += 1
                self._changed.notify_all()
            return any(changed)

    def start(self) -> None:
        """Keep reading in a background thread until :meth:`close`."""
        self._thread = threading.Thread(target=self._keep_reading, daemon=True)
        self._thread.start()

    def _keep_reading(self) -> None:
        while not self.closed:
            self.poll()
            time.sleep(INTERVAL)

    def close(self) -> None:
        """Stop reading, and wake all waiting threads."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def wait(self, version: int, timeout: float) -> int:
        """Wait until there is a newer version or the timeout is over, and return the current version."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self._version != version, timeout)
            return self._version

    def position(self) -> str:
        """Return how far each run has been read, ``generation.count`` joined by ``-``; events are numbered by it."""
        with self._changed:
            return "-".join(f"{run.generation}.{run.count}" for run in self.runs)

    def charts(self) -> list[ChartLines]:
        """Return the charts; they are built again when there is a new metric."""
        with self._changed:
            known = tuple((run.generation, len(run.lines), len(run.config)) for run in self.runs)
            if self._charts[0] != known:
                names = dict.fromkeys(name for run in self.runs for name in run.lines)
                said = [d for run in self.runs for d in run.listed("metrics") if isinstance(d, dict)]
                charts = all_charts(chart for run in self.runs for chart in run.listed("charts"))
                self._charts = known, charts_of(names, said, charts)
            return self._charts[1]

    def numbers(self) -> int:
        """Return how many numbers all lines have in total."""
        with self._changed:
            return sum(len(line.series()[0]) for run in self.runs for line in run.lines.values())

    def shape(self) -> str:
        """Return a text that changes when the page needs other charts, lines or facts."""
        with self._changed:
            broken = [sum(line.broken > 0 for line in run.lines.values()) for run in self.runs]
            return "-".join(
                f"{run.generation}.{len(run.lines)}.{len(run.notes)}.{count}.{run.exists:d}"
                for run, count in zip(self.runs, broken, strict=True)
            )

    def status(self) -> list[dict[str, Any]]:
        """Return the state of each run."""
        with self._changed:
            return [run.status() for run in self.runs]

    def state(self) -> dict[str, Any]:
        """Return everything the page shows except the lines of its charts."""
        with self._changed:
            return {
                "runs": [_run_state(run) for run in self.runs],
                "groups": [chart.to_dict() for chart in self.charts()],
                "position": self.position(),
                "shape": self.shape(),
            }

    def series(
        self, key: str, low: float = -math.inf, high: float = math.inf, limit: int | None = None
    ) -> dict[str, Any] | None:
        """Return the lines of a chart between two steps, thinned to what a screen shows, or ``None`` if it is unknown.

        A line has at most ``limit`` points; the default depends on the number of lines.
        """
        with self._changed:
            chart = next((c for c in self.charts() if c.key == key), None)
            if chart is None:
                return None
            taken = [
                (run.generation, run.count, {n: run.lines[n].series() for n in chart.lines if n in run.lines})
                for run in self.runs
            ]
        most = limit or limit_for(sum(len(series) for _, _, series in taken))
        blocks = []
        for generation, count, series in taken:
            lines = thinned(series, most, low, high)
            blocks.append({
                "generation": generation,
                "count": count,
                "exact": lines.exact,
                "x": [int(s) for s in lines.steps],
                "lines": {name: json_line(line) for name, line in lines.lines.items()},
            })  # fmt: skip
        return {"key": key, "limit": most, "runs": blocks}

    def since(self, position: str) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        """Return what happened after a position, and the position now.

        An event is new ``points`` of a run, or its ``reset`` if it must be read again. A text that :meth:`position` did
        not return resets all runs.
        """
        known = _POSITION.fullmatch(position)
        parts = [tuple(map(int, part.split("."))) for part in position.split("-")] if known else []
        with self._changed:
            if len(parts) != len(self.runs):
                parts = [(-1, 0)] * len(self.runs)
            events: list[tuple[str, dict[str, Any]]] = []
            for index, (run, (generation, count)) in enumerate(zip(self.runs, parts, strict=True)):
                new = run.after(count) if generation == run.generation else None
                if new is None:
                    events.append(("reset", {"run": index, "generation": run.generation, "count": run.count}))
                elif new:
                    rows = [[p.step, {name: json_float(x) for name, x in p.metrics.items()}] for p in new]
                    events.append(("points", {"run": index, "generation": generation, "first": count, "points": rows}))
            return events, self.position()


def _run_state(run: WatchedRun) -> dict[str, Any]:
    """Return the facts of a run that the page shows, with the last number of each metric."""
    kinds = {"model": str, "parameters": int, "preset": str, "started": str, "commit": str}
    facts = {k: value if isinstance(value := run.config.get(k), kind) else None for k, kind in kinds.items()}
    notes = [*map(str, run.listed("notes")), *run.notes]
    broken = {name: [x.broken, x.broken_at] for name, x in run.lines.items() if x.broken}
    return {
        "name": run.name,
        "facts": facts,
        "resumed": len(run.listed("resumed")),
        "layers": len(run.listed("layers")),
        "normalizers": len(run.listed("normalizers")),
        "notes": notes[:NOTES],
        "more_notes": max(0, len(notes) - NOTES),
        "broken": broken,
        "status": run.status(),
        "last": {name: json_float(line.last) for name, line in run.lines.items()},
    }
