"""Where the numbers go: run folders, TensorBoard, trackers; one that fails does not keep them from the others."""

import contextlib
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from normscope.core.errors import InputError
from normscope.monitor.run import Run
from normscope.monitor.sinks.folder import RunFolder
from normscope.monitor.sinks.tensorboard import TensorBoard

#: Where failures are told if warnings are errors: that is a wish for the user's own code, and training goes on.
LOG = logging.getLogger("normscope.monitor")
#: Failures in a row after which something is given up.
PATIENCE = 3


class MonitorWarning(UserWarning):
    """Something could not be measured or written; training is not disturbed."""


class Failures:
    """Counts failures in a row by what failed; the first of a row is told by a warning and a note.

    Args:
        note: keeps a message at a step; that it may fail too is no further news.

    >>> failures = Failures(lambda message, step: print(step, message))
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     with failures.survived("quantity loss", 3):
    ...         _ = 1 / 0
    3 quantity loss of the monitor failed at step 3: ZeroDivisionError: division by zero
    """

    def __init__(self, note: Callable[[str, int], None]) -> None:
        self._note = note
        self._in_a_row: Counter[str] = Counter()
        self._given_up: set[str] = set()

    @contextmanager
    def survived(self, what: str, step: int, give_up: Callable[[], None] | None = None) -> Iterator[None]:
        """Go on after the block whatever fails in it; only an interrupt or an exit gets through.

        Failures are counted by ``what`` works in the block; after :data:`PATIENCE` in a row it is given up, once.
        """
        try:
            yield
        except Exception as error:  # a full disk, weights that are no longer numbers: training is not ours to stop
            self._in_a_row[what] += 1
            if self._in_a_row[what] == 1:
                message = f"{what} of the monitor failed at step {step}: {type(error).__name__}: {error}"
                with contextlib.suppress(Exception):
                    self._note(message, step)
                try:
                    warnings.warn(message, MonitorWarning, stacklevel=4)
                except MonitorWarning:
                    LOG.warning(message)
            if self._in_a_row[what] >= PATIENCE and give_up is not None and what not in self._given_up:
                self._given_up.add(what)
                give_up()
        else:
            self._in_a_row.pop(what, None)
            self._given_up.discard(what)


#: From a step at which was probed to the least number of steps before the next probe.
Gap = Callable[[int], int]
#: A metric that every point of a probe has.
PROBED = "clock/probe_seconds"


@dataclass(frozen=True)
class Start:
    """Where a run begins: its step, and where a run folder goes on the step the next probe is counted from."""

    step: int
    resumed: bool = False
    probed: int | None = None


class Outlets:
    """The sinks of a monitor that are not given up, the run folder first, each with its own failures.

    Raises:
        InputError: if one of them has no ``log(dict, step=...)``.
    """

    def __init__(self, run: str | Path | None, sinks: Iterable[Any]) -> None:
        self.sinks = [*([] if run is None else [RunFolder(run)]), *sinks]
        for sink in self.sinks:
            if not callable(getattr(sink, "log", None)):
                raise InputError(f"Expected a sink with a method log(dict, step=...), got {type(sink).__name__}.")
        self.failures = Failures(self.note)
        kinds = [type(sink).__name__ for sink in self.sinks]
        self._names = {  # by which failures are counted: sinks of one class are told apart
            id(sink): f"sink {kind}" + (f" (number {i + 1})" if kinds.count(kind) > 1 else "")
            for i, (sink, kind) in enumerate(zip(self.sinks, kinds, strict=True))
        }

    def begin(self, config: Mapping[str, Any], step: int, resumed: int | None, gap: Gap, *, again: bool) -> Start:
        """Start the run folders with a configuration, and tell where the run begins.

        It goes on from ``resumed``, if that is given, or ``again`` where the same monitor ended.
        """
        start = Start(step)
        for sink in self.sinks:
            if isinstance(sink, RunFolder):
                at = max(start.step, sink.begin(config, resumed))
                probed = start.probed
                if sink.resumed:
                    run = Run.open(sink.path)
                    steps = run.series(PROBED).steps.tolist() if PROBED in run.names else []
                    probed = last_scheduled(steps, gap, sink.ended)
                start = Start(at, start.resumed or sink.resumed, probed)
        for sink in self.sinks:
            if isinstance(sink, TensorBoard) and (again or start.resumed or resumed):
                sink.resume(start.step)
        return start

    def log_points(self, points: Mapping[int, Mapping[str, float]]) -> None:
        """Hand the metrics of several steps to every sink; a run folder takes them at once."""
        for sink in tuple(self.sinks):
            for step in points if not isinstance(sink, RunFolder) else list(points)[-1:]:
                with self.failures.survived(self._names[id(sink)], step, partial(self._give_up, sink)):
                    if isinstance(sink, RunFolder):
                        sink.log_many(points)
                    else:
                        sink.log(dict(points[step]), step=step)

    def note(self, message: str, step: int) -> None:
        """Write a message to the run folders."""
        for sink in self.sinks:
            if isinstance(sink, RunFolder):
                sink.log({}, step=step, note=message)

    def close(self, step: int) -> None:
        """Close the sinks that are ours."""
        for sink in self.sinks:
            if isinstance(sink, RunFolder | TensorBoard):
                with self.failures.survived(self._names[id(sink)], step):
                    sink.close()

    def _give_up(self, sink: Any) -> None:
        """Do without a sink."""
        self.sinks = [other for other in self.sinks if other is not sink]


def last_scheduled(probed: Iterable[int], gap: Gap, ended: int | None) -> int | None:
    """Return the step from which the next probe is counted, as if the run had not been broken.

    The last step of a run that was closed is measured whatever its number, so it does not count.

    >>> ten = lambda step: 10
    >>> last_scheduled([0, 10, 20, 25], ten, ended=25), last_scheduled([0, 10, 20, 25], ten, ended=None)
    (20, 25)
    """
    steps = list(probed)
    if len(steps) > 1 and steps[-1] == ended and steps[-1] - steps[-2] < gap(steps[-2]):
        return steps[-2]
    return steps[-1] if steps else None
