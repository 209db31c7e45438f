"""The sinks of a monitor as one: run folders, TensorBoard, trackers. A sink that fails does not affect the others."""

import contextlib
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from normscope.core.errors import InputError, listed
from normscope.monitor.run import Run
from normscope.monitor.sinks.folder import RunFolder
from normscope.monitor.sinks.tensorboard import TensorBoard

#: Logs failures where warnings are errors: that setting is meant for the user's own code and must not stop training.
LOG = logging.getLogger("normscope.monitor")
#: Consecutive failures after which something is given up.
PATIENCE = 3
#: Modules that a warning does not point to: this package, and what calls it back.
WITHIN = ("normscope", "contextlib", "functools")


class MonitorWarning(UserWarning):
    """Something could not be measured or written; training is not affected."""


class ConsecutiveFailures:
    """Counts consecutive failures by what failed; the first of them is reported by a warning and a note.

    Args:
        note: records a message at a step; its own failures are ignored.

    >>> failures = ConsecutiveFailures(lambda message, step: print(step, message))
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     with failures.tolerate("quantity loss", 3):
    ...         _ = 1 / 0
    3 monitor: quantity loss failed at step 3: ZeroDivisionError: division by zero
    """

    def __init__(self, note: Callable[[str, int], None]) -> None:
        self._note = note
        self._count: Counter[str] = Counter()
        self._given_up: set[str] = set()
        self._skips = False

    @contextmanager
    def tolerate(self, what: str, step: int, give_up: Callable[[], None] | None = None) -> Iterator[None]:
        """Swallow any exception of the block, except an interrupt or an exit.

        Failures are counted by ``what`` the block does; after :data:`PATIENCE` in a row ``give_up`` is called, once.
        """
        try:
            yield
        except Exception as error:  # e.g. a full disk or NaN weights: training must go on
            self._count[what] += 1
            if self._count[what] == 1:
                self.report(f"monitor: {what} failed at step {step}: {type(error).__name__}: {error}", step)
            if self._count[what] >= PATIENCE and give_up is not None and what not in self._given_up:
                self._given_up.add(what)
                give_up()
        else:
            self._count.pop(what, None)
            self._given_up.discard(what)

    def skip(self, what: Sequence[str], step: int) -> None:
        """Report what is skipped at a step, once until a step at which nothing is."""
        if what and not self._skips:
            self.report(f"monitor: skipped from step {step}: {listed(what, 3)} contain NaN or infinite values", step)
        self._skips = bool(what)

    def report(self, message: str, step: int) -> None:
        """Give a warning and a note."""
        with contextlib.suppress(Exception):
            self._note(message, step)
        try:
            warnings.warn(message, MonitorWarning, stacklevel=_levels_to_caller())
        except MonitorWarning:
            LOG.warning(message)


def _levels_to_caller() -> int:
    """Return the ``stacklevel`` at which the calling function warns about the first line outside of this package."""
    levels, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in WITHIN:
        levels, frame = levels + 1, frame.f_back
    return levels


#: The least number of steps between a probe and the next, as a function of the step of the first.
Gap = Callable[[int], int]
#: A metric that every probe writes.
PROBED = "clock/probe_seconds"


@dataclass(frozen=True)
class RunStart:
    """Where a run starts."""

    step: int  #: the step it starts from
    resumed: bool = False  #: whether it continues the run of a folder
    probed: int | None = None  #: in that run, the step from which the next probe is counted


class SinkGroup:
    """The sinks that have not been given up, the run folder first, each with its own count of failures.

    Raises:
        InputError: if one of them has no ``log(dict, step=...)``.
    """

    def __init__(self, run: str | Path | None, sinks: Iterable[Any]) -> None:
        if not isinstance(sinks, Iterable):
            raise InputError(f"Expected sinks to be a list, got {type(sinks).__name__}. Pass one sink as sinks=[sink].")
        self.sinks = [*([] if run is None else [RunFolder(run)]), *sinks]
        for sink in self.sinks:
            if not callable(getattr(sink, "log", None)):
                raise InputError(f"Expected a sink with a method log(dict, step=...), got {type(sink).__name__}.")
        self.failures = ConsecutiveFailures(self.note)
        kinds = [type(sink).__name__ for sink in self.sinks]
        self._names = {  # failures are counted by these names; sinks of one class are numbered
            id(sink): f"sink {kind}" + (f" (number {i + 1})" if kinds.count(kind) > 1 else "")
            for i, (sink, kind) in enumerate(zip(self.sinks, kinds, strict=True))
        }

    def begin(self, config: Mapping[str, Any], step: int, resumed: int | None, gap: Gap, *, again: bool) -> RunStart:
        """Start the run folders with a configuration, and return where the run starts.

        It continues from the step ``resumed``, if given, or with ``again`` from where the same monitor ended.
        """
        start = RunStart(step)
        for sink in self.sinks:
            if isinstance(sink, RunFolder):
                at = max(start.step, sink.begin(config, resumed))
                probed = start.probed
                if sink.resumed:
                    run = Run.open(sink.path)
                    steps = run.series(PROBED).steps.tolist() if PROBED in run.names else []
                    probed = last_scheduled(steps, gap, sink.ended)
                start = RunStart(at, start.resumed or sink.resumed, probed)
        for sink in self.sinks:
            if isinstance(sink, TensorBoard) and (again or start.resumed or resumed):
                sink.resume(start.step)
        return start

    def log_points(self, points: Mapping[int, Mapping[str, float]], times: Mapping[int, float] | None = None) -> None:
        """Write the metrics of several steps to every sink; a run folder writes them together, with their times."""
        for sink in tuple(self.sinks):
            for step in points if not isinstance(sink, RunFolder) else list(points)[-1:]:
                with self.failures.tolerate(self._names[id(sink)], step, partial(self._give_up, sink)):
                    if isinstance(sink, RunFolder):
                        sink.log_many(points, times)
                    else:
                        sink.log(dict(points[step]), step=step)

    def note(self, message: str, step: int) -> None:
        """Write a message to the run folders."""
        for sink in self.sinks:
            if isinstance(sink, RunFolder):
                sink.log({}, step=step, note=message)

    def close(self, step: int) -> None:
        """Close run folders and TensorBoard files."""
        for sink in self.sinks:
            if isinstance(sink, RunFolder | TensorBoard):
                with self.failures.tolerate(self._names[id(sink)], step):
                    sink.close()

    def _give_up(self, sink: Any) -> None:
        self.sinks = [other for other in self.sinks if other is not sink]


def last_scheduled(probed: Iterable[int], gap: Gap, ended: int | None) -> int | None:
    """Return the step from which the next probe is counted, as if the run had not been interrupted.

    The last step of a run is measured when it is closed, whatever its number, so it does not count.

    >>> ten = lambda step: 10
    >>> last_scheduled([0, 10, 20, 25], ten, ended=25), last_scheduled([0, 10, 20, 25], ten, ended=None)
    (20, 25)
    """
    steps = list(probed)
    if len(steps) > 1 and steps[-1] == ended and steps[-1] - steps[-2] < gap(steps[-2]):
        return steps[-2]
    return steps[-1] if steps else None
