"""A run folder: ``config.json`` written once at the start, ``metrics.jsonl`` appended line by line."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normscope.core.errors import InputError
from normscope.monitor.lines import Point, from_line, to_line, whole_lines
from normscope.monitor.run import CONFIG, METRICS

#: Version of the format of a run folder.
FORMAT = 1
#: What a resumed run must have in common with the one it continues.
SAME = ("model", "parameters", "probe")


class RunFolder:
    """Writes a run; what is on disk is a whole run after every line, however the process ends.

    Args:
        path: the folder; it is made. One that holds a run is continued.

    Attributes:
        resumed: whether an earlier run goes on.

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
        self._begun = False
        self._start = 0.0
        self._last_step = 0

    def begin(self, config: Mapping[str, Any], step: int | None) -> int:
        """Start a run, or continue the one in the folder.

        A torn last line is dropped. With a step, points after it are dropped as well: training goes on from a
        checkpoint of that step.

        Args:
            config: what is written to ``config.json`` at the start of a new run.
            step: the step from which training goes on; ``None`` after the last point. A run is not begun anew over
                points of an earlier one.

        Returns:
            The step from which the run goes on, 0 for a new one.

        Raises:
            InputError: if the folder holds something else, or a run of another model or probe.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        known = self._known()
        if known is None:
            if (self.path / METRICS).exists():
                raise InputError(f"{self.path} holds {METRICS} without {CONFIG}: give the monitor a folder of its own")
            self._write_config({"format": FORMAT, **config})
            at, kept, seconds = step or 0, b"", 0.0
        else:
            differing = [key for key in SAME if known.get(key) != config.get(key)]
            if differing:
                raise InputError(
                    f"{self.path} holds a run of another {' and '.join(differing)} "
                    f"({known.get(differing[0])}, now {config.get(differing[0])}): give the monitor a new folder"
                )
            at, kept, seconds = self._kept(step)
            if step == 0 and self._kept(None)[0] > 0:
                raise InputError(
                    f"{self.path} holds a run that went further than its start, and training starts at step 0: "
                    "give the monitor a new folder, or remove that one"
                )
            self.resumed = True
            resumed = {"step": at, "started": config.get("started", "")}
            goes_on = {key: value for key, value in known.items() if key != "ended"}
            self._write_config({**goes_on, "resumed": [*known.get("resumed", ()), resumed]})
        self._start = time.time() - seconds
        file = self.path / METRICS
        if not file.exists() or file.read_bytes() != kept:
            _replace(file, kept)
        self._begun, self._last_step = True, at
        return at

    def _known(self) -> dict[str, Any] | None:
        """Return the configuration of the run in the folder, if there is one."""
        try:
            known = json.loads((self.path / CONFIG).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise InputError(f"{self.path / CONFIG} is not JSON ({error}): give the monitor another folder") from None
        if not isinstance(known, dict) or known.get("format") != FORMAT:
            raise InputError(
                f"{self.path / CONFIG} is not of a run of format {FORMAT}: give the monitor another folder"
            )
        return known

    def _kept(self, step: int | None) -> tuple[int, bytes, float]:
        """Return where the run goes on, the lines that stay, and the seconds it has lasted."""
        file = self.path / METRICS
        pairs = [(line, from_line(line)) for line in whole_lines(file.read_bytes() if file.exists() else b"")]
        points = [(line, point) for line, point in pairs if point is not None and (step is None or point.step <= step)]
        last = points[-1][1] if points else Point(0, 0.0)
        return (last.step if step is None else step), b"".join(line for line, _ in points), last.time

    def _write_config(self, config: Mapping[str, Any]) -> None:
        """Write the configuration; readers see the old one or the new one, never a part."""
        _replace(self.path / CONFIG, (json.dumps(config, indent=1) + "\n").encode())

    def log(self, metrics: Mapping[str, float], step: int, note: str = "") -> None:
        """Append one point, by one write without a buffer: it is whole, or at worst a torn last line.

        Raises:
            InputError: if the run was not begun, or is closed.
        """
        if not self._begun:
            raise InputError("a run folder is written between begin() and close()")
        line = to_line(Point(step, time.time() - self._start, dict(metrics), note))
        with (self.path / METRICS).open("ab", buffering=0) as file:
            file.write(line)
        self._last_step = step

    def close(self) -> None:
        """End the run: its configuration says so until it is continued."""
        if self._begun:
            self._begun = False
            # Without the mark the run is whole all the same; an error on its way must not be hidden by this one.
            with contextlib.suppress(OSError, InputError):
                known = self._known()
                if known is not None:
                    self._write_config({**known, "ended": {"step": self._last_step}})


def _replace(file: Path, content: bytes) -> None:
    """Write a file by replacing it as a whole."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, file)
