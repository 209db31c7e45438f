"""How much to measure: presets, and the share of the training time that the monitor may use."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from normscope.core.errors import InputError

#: The part of the share that is used for planning, and the factor by which the next probe may cost more than the last:
#: costs vary when weights change fast or others use the machine.
PLANNED, COSTLIER = 0.9, 1.5


class Budget:
    r"""A share of the wall time since the start.

    A probe of expected cost ``c`` is allowed when ``spent + 1.5 c <= 0.9 share (now - start)``, so what was spent stays
    within the share unless a probe costs half as much again as the last one plus a tenth of all that was spent; then
    the next ones are delayed.

    Args:
        share: the part of the time that may be spent, in (0, 1]; infinity for no limit.
        now: the clock, in seconds.

    Attributes:
        spent: seconds spent so far.
        expected: seconds the next probe is expected to cost.

    Raises:
        InputError: if the share is neither in (0, 1] nor infinite.

    >>> ticks = iter([0.0, 10.0, 40.0, 100.0])
    >>> budget = Budget(0.02, lambda: next(ticks))
    >>> budget.start()
    >>> budget.expected = 1.0
    >>> budget.allows(), budget.allows(), budget.allows()
    (False, False, True)
    """

    def __init__(self, share: float, now: Callable[[], float] = time.perf_counter) -> None:
        if not hasattr(share, "__float__"):
            raise InputError(f"Expected budget to be a number, got {share!r}. 2 % is 0.02.")
        if not (0.0 < share <= 1.0 or share == math.inf):
            raise InputError(f"Expected a budget in (0, 1] or infinity, got {share}.")
        self.share, self.spent = share, 0.0
        self._now, self._begin = now, 0.0
        self._since: float | None = None
        self.expected = 0.0

    def start(self) -> None:
        """Start the clock, with nothing spent."""
        self._begin, self.spent = self._now(), 0.0

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return self._now() - self._begin

    def used(self, more: float = 0.0) -> float:
        """Return the share of the time spent so far, plus ``more`` seconds that are being spent now."""
        elapsed = self.elapsed()
        return (self.spent + more) / elapsed if elapsed > 0 else 0.0

    def allows(self, part: float = 1.0, cost: float | None = None) -> bool:
        """Return whether something of a cost in seconds, by default a probe, fits into a part of the budget now."""
        expected = self.expected if cost is None else cost
        planned = PLANNED * part * self.share * self.elapsed()
        # The block that is running is not in ``spent`` yet.
        running = 0.0 if self._since is None else self._now() - self._since
        return math.isinf(self.share) or self.spent + running + COSTLIER * expected <= planned

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of a block as spent."""
        self._since = begin = self._now()
        try:
            yield
        finally:
            self.spent += self._now() - begin
            self._since = None


#: At the start the gap between probes is an eighth of the steps so far, at most ``every``; late in a long run it is a
#: two-hundredth of the steps.
DENSE, SPARSE = 8, 200


def gap_after(step: int, every: int) -> int:
    """Return the least number of steps between a probe and the next: few at the start, then growing with the run.

    >>> [gap_after(step, 10) for step in (0, 4, 16, 80, 1000, 100_000)]
    [1, 1, 3, 10, 10, 500]
    """
    return max(min(every, 1 + step // DENSE), step // SPARSE)


@dataclass(frozen=True)
class Preset:
    """How much to measure: the quantities that declare the preset or a smaller one, and how often."""

    budget: float  #: share of the wall time that probes may take
    every: int  #: least number of updates between two probes
    certify: int = 0  #: probes between two certified analyses; 0 for none


#: From the smallest to the largest.
PRESETS = {"economy": Preset(0.02, 20), "standard": Preset(0.05, 10), "full": Preset(0.5, 10, certify=10)}
