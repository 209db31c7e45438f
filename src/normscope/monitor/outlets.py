"""Where the numbers go: run folders, TensorBoard, trackers; one that fails does not keep them from the others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from normscope.core.errors import InputError
from normscope.monitor.failures import Failures
from normscope.monitor.run import CONFIG, Run
from normscope.monitor.sinks.folder import RunFolder
from normscope.monitor.sinks.tensorboard import TensorBoard

#: A metric that every point of a probe has.
PROBED = "clock/probe_seconds"


@dataclass(frozen=True)
class Start:
    """Where a run begins.

    Attributes:
        step: the number of updates so far.
        resumed: whether a run folder goes on with points it holds.
        probed: the step the next probe is counted from, where a run folder tells it.
    """

    step: int
    resumed: bool = False
    probed: int | None = None


class Outlets:
    """The sinks of a monitor, each with its own failures.

    Args:
        run: a folder to write the run to.
        sinks: objects with ``log(dict, step=...)``.

    Raises:
        InputError: if one of them cannot log.

    Attributes:
        sinks: those that are not given up, the run folder first.
        failures: where what fails is told.
    """

    def __init__(self, run: str | Path | None, sinks: Iterable[Any]) -> None:
        self.sinks = [*([] if run is None else [RunFolder(run)]), *sinks]
        for sink in self.sinks:
            if not callable(getattr(sink, "log", None)):
                raise InputError(f"Expected a sink with a method log(dict, step=...), got {type(sink).__name__}.")
        self.failures = Failures(self.note)
        kinds = [type(sink).__name__ for sink in self.sinks]
        self._names = {
            id(sink): f"sink {kind}" + (f" (number {i + 1})" if kinds.count(kind) > 1 else "")
            for i, (sink, kind) in enumerate(zip(self.sinks, kinds, strict=True))
        }

    def begin(self, config: Mapping[str, Any], step: int, resumed: int | None, every: int, *, again: bool) -> Start:
        """Start the run folders, and tell where the run begins.

        Args:
            config: what a run folder keeps of the run.
            step: the number of updates so far.
            resumed: the step training goes on from, if it was given.
            every: least number of steps between probes.
            again: whether this is a run of the same monitor, taken up again.
        """
        start = Start(step)
        for sink in self.sinks:
            if isinstance(sink, RunFolder):
                ended = _ended(sink.path)
                at = max(start.step, sink.begin(config, resumed))
                probed = _probed(sink.path, every, ended) if sink.resumed else start.probed
                start = Start(at, start.resumed or sink.resumed, probed)
        for sink in self.sinks:
            if isinstance(sink, TensorBoard) and (again or start.resumed or resumed):
                sink.resume(start.step)
        return start

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Hand metrics to every sink."""
        for sink in tuple(self.sinks):
            with self.failures.survived(self._name(sink), step, partial(self._give_up, sink)):
                sink.log(dict(metrics), step=step)

    def note(self, message: str, step: int) -> None:
        """Write a message to the run folders."""
        for sink in self.sinks:
            if isinstance(sink, RunFolder):
                sink.log({}, step=step, note=message)

    def close(self, step: int) -> None:
        """Close the sinks that are ours."""
        for sink in self.sinks:
            if isinstance(sink, RunFolder | TensorBoard):
                with self.failures.survived(self._name(sink), step):
                    sink.close()

    def _name(self, sink: Any) -> str:
        """Return what a sink is called, and its failures are counted by: those of one class are told apart."""
        return self._names.get(id(sink), f"sink {type(sink).__name__}")

    def _give_up(self, sink: Any) -> None:
        """Do without a sink."""
        self.sinks = [other for other in self.sinks if other is not sink]


def last_scheduled(probed: Iterable[int], every: int, ended: int | None) -> int | None:
    """Return the step from which the next probe is counted, as if the run had not been broken.

    Args:
        probed: the steps of the probes, in order.
        every: least number of steps between probes.
        ended: the last step of a run that was closed: it is measured then whatever its number.

    >>> last_scheduled([0, 10, 20, 25], 10, ended=25), last_scheduled([0, 10, 20, 25], 10, ended=None)
    (20, 25)
    """
    steps = list(probed)
    if len(steps) > 1 and steps[-1] == ended and steps[-1] - steps[-2] < every:
        return steps[-2]
    return steps[-1] if steps else None


def _ended(path: Path) -> int | None:
    """Return the step at which the run in a folder was closed, if it was."""
    try:
        step = json.loads((path / CONFIG).read_text())["ended"]["step"]
    except (OSError, ValueError, TypeError, KeyError):  # what is wrong with the folder is told when it is begun
        return None
    return step if isinstance(step, int) else None


def _probed(path: Path, every: int, ended: int | None) -> int | None:
    """Return the step from which the next probe of the run in a folder is counted."""
    run = Run.open(path)
    steps = run.series(PROBED).steps.tolist() if PROBED in run.names else []
    return last_scheduled(steps, every, ended)
