"""Several runs as one feed: what the page shows now, what came since, and detail where it looks closer."""

import math
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from normscope.core.errors import InputError
from normscope.monitor.chart import on_page
from normscope.monitor.live.groups import Group, grouped
from normscope.monitor.live.store import RunStore
from normscope.monitor.live.thinning import limit_for, thinned
from normscope.monitor.run import CONFIG

#: Seconds between two looks at the folders.
INTERVAL = 0.5
#: Notes of a run that the page lists.
NOTES = 20
_POSITION = re.compile(r"\d{1,9}\.\d{1,12}(-\d{1,9}\.\d{1,12})*", re.ASCII)


def run_folders(paths: Sequence[str | Path], *, wait: bool = False) -> list[Path]:
    """Return the folders of runs: those given, or in the place of one that holds runs, the runs.

    Folders in which there is no run yet are accepted to ``wait`` for one.

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
            raise InputError(f"Not a run folder: {path} ({what}). Use --wait to wait for a run that has not started.")
    unique = list(dict.fromkeys(p.resolve() for p in found))
    if not unique:
        raise InputError("Expected at least one run.")
    return unique


def run_names(folders: Sequence[Path]) -> list[str]:
    """Return a short name for each folder, none twice.

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
    """Return a number with six digits as JSON carries it; ``nan`` and infinities as words.

    >>> json_float(1 / 3), json_float(float("inf"))
    (0.333333, 'inf')
    """
    return float(f"{x:.6g}") if math.isfinite(x) else str(x)


def json_line(values: np.ndarray) -> list[float | None]:
    """Return the values of a line as JSON carries them, ``None`` where there is none."""
    return [float(f"{x:.6g}") if x == x else None for x in values.tolist()]


class Feed:
    """The runs of a page, read by one thread and asked by many."""

    def __init__(self, paths: Sequence[str | Path], names: Sequence[str] | None = None) -> None:
        folders = [Path(p) for p in paths]
        self.runs = [RunStore(p, n) for p, n in zip(folders, names or run_names(folders), strict=True)]
        self.closed = False
        self._changed = threading.Condition(threading.RLock())
        self._version = 0
        self._thread: threading.Thread | None = None
        self._groups: tuple[object, list[Group]] = (None, [])

    def open(self, asked: Sequence[str | Path] = ()) -> list[InputError]:
        """Read all runs for the first time; leave out those that cannot be read, and return what is wrong with them.

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
        """Read what is new in all runs, and tell whether anything is."""
        with self._changed:
            new = [run.poll() for run in self.runs]
            if any(new):
                self._version += 1
                self._changed.notify_all()
                return True
            return False

    def start(self) -> None:
        """Keep reading beside everything else, until :meth:`close`."""
        self._thread = threading.Thread(target=self._keep_reading, daemon=True)
        self._thread.start()

    def _keep_reading(self) -> None:
        while not self.closed:
            self.poll()
            time.sleep(INTERVAL)

    def close(self) -> None:
        """Stop reading, and wake everyone who waits."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def wait(self, version: int, timeout: float) -> int:
        """Wait until there is something newer than a version, for some seconds at most; return the version then."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self._version != version, timeout)
            return self._version

    def position(self) -> str:
        """Return how far each run was read, as events are numbered: ``generation.count`` joined by ``-``."""
        with self._changed:
            return "-".join(f"{run.generation}.{run.count}" for run in self.runs)

    def groups(self) -> list[Group]:
        """Return the charts; they are put together again when a metric is new."""
        with self._changed:
            known = tuple((run.generation, len(run.tracks), len(run.config)) for run in self.runs)
            if self._groups[0] != known:
                names = dict.fromkeys(name for run in self.runs for name in run.tracks)
                said = [d for run in self.runs for d in run.listed("metrics") if isinstance(d, dict)]
                charts = on_page(chart for run in self.runs for chart in run.listed("charts"))
                self._groups = known, grouped(names, said, charts)
            return self._groups[1]

    def numbers(self) -> int:
        """Return how many numbers all lines have together."""
        with self._changed:
            return sum(len(track.series()[0]) for run in self.runs for track in run.tracks.values())

    def shape(self) -> str:
        """Return what changes when the page needs other charts, lines or facts."""
        with self._changed:
            broken = [sum(track.broken > 0 for track in run.tracks.values()) for run in self.runs]
            return "-".join(
                f"{run.generation}.{len(run.tracks)}.{len(run.notes)}.{count}.{run.exists:d}"
                for run, count in zip(self.runs, broken, strict=True)
            )

    def status(self) -> list[dict[str, Any]]:
        """Return how each run is doing."""
        with self._changed:
            return [run.status() for run in self.runs]

    def state(self) -> dict[str, Any]:
        """Return everything the page shows except the lines of its charts."""
        with self._changed:
            return {
                "runs": [_run_state(run) for run in self.runs],
                "groups": [group.to_dict() for group in self.groups()],
                "position": self.position(),
                "shape": self.shape(),
            }

    def series(
        self, key: str, low: float = -math.inf, high: float = math.inf, limit: int | None = None
    ) -> dict[str, Any] | None:
        """Return the lines of a chart between two steps, thinned to what a screen shows; ``None`` without such a chart.

        A line has at most ``limit`` points, by default by the number of lines.
        """
        with self._changed:
            group = next((g for g in self.groups() if g.key == key), None)
            if group is None:
                return None
            taken = [
                (run.generation, run.count, {n: run.tracks[n].series() for n in group.lines if n in run.tracks})
                for run in self.runs
            ]
        most = limit or limit_for(sum(len(series) for _, _, series in taken))
        blocks = []
        for generation, count, series in taken:
            block = thinned(series, most, low, high)
            blocks.append({
                "generation": generation,
                "count": count,
                "exact": block.exact,
                "x": [int(s) for s in block.steps],
                "lines": {name: json_line(line) for name, line in block.lines.items()},
            })  # fmt: skip
        return {"key": key, "limit": most, "runs": blocks}

    def since(self, position: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what happened after a position: ``points`` of a run, or its ``reset`` where it must be read anew.

        Anything but what :meth:`position` gave resets all runs.
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
        yield from events


def _run_state(run: RunStore) -> dict[str, Any]:
    """Return what the page says about a run, with the last number of each of its metrics."""
    kinds = {"model": str, "parameters": int, "preset": str, "started": str, "commit": str}
    facts = {k: value if isinstance(value := run.config.get(k), kind) else None for k, kind in kinds.items()}
    notes = [*map(str, run.listed("notes")), *run.notes]
    broken = {name: [t.broken, t.broken_at] for name, t in run.tracks.items() if t.broken}
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
        "last": {name: json_float(track.last) for name, track in run.tracks.items()},
    }
