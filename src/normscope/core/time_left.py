"""How long a series of steps will take, estimated from the finished ones."""

import time
from collections.abc import Callable, Sequence


class TimeLeft:
    """An estimate of the time left, from the share of the costs that is done.

    >>> left = TimeLeft([1.0, 1.0, 2.0], clock=iter([0.0, 10.0]).__next__)
    >>> left.text(1)
    ', about 30 s left'
    """

    def __init__(self, costs: Sequence[float], clock: Callable[[], float] = time.monotonic) -> None:
        self.costs = list(costs)
        self._clock, self._start = clock, clock()

    def seconds(self, done: int) -> float | None:
        """Return about how many seconds are left after some steps; nothing is known before the first is done."""
        spent, total = sum(self.costs[:done]), sum(self.costs)
        return (self._clock() - self._start) * (total / spent - 1.0) if spent else None

    def text(self, done: int) -> str:
        """Return the estimate as the end of a line; nothing below two seconds."""
        seconds = self.seconds(done)
        return "" if seconds is None or seconds < 2 else f", about {seconds:.0f} s left"
