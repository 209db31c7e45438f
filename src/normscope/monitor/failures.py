"""What goes wrong beside training: told once, and never a reason to stop training."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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

        Args:
            what: the part of the monitor that works in the block; failures are counted by it.
            step: the number of updates so far.
            give_up: called once after :data:`PATIENCE` failures in a row.
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
