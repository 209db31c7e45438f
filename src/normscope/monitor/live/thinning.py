"""Series with more points than a screen has pixels, thinned so that every peak is kept."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

#: Points of a line in a chart with few lines and in one with many lines, and numbers in a whole chart.
MOST, LEAST, CHART = 2000, 120, 40_000


@dataclass(frozen=True, eq=False)
class ThinnedLines:
    """Lines over common steps."""

    steps: np.ndarray  #: in ascending order
    lines: dict[str, np.ndarray]  #: one array as long as the steps for each name; ``nan`` where a line has no number
    exact: bool  #: whether these are all points; otherwise the minimum and maximum of each interval of steps


def limit_for(lines: int) -> int:
    """Return how many points each of a chart's lines gets.

    >>> limit_for(1), limit_for(100), limit_for(10_000)
    (2000, 400, 120)
    """
    return int(min(MOST, max(LEAST, CHART // max(1, lines))))


def thinned(
    series: Mapping[str, tuple[np.ndarray, np.ndarray]], limit: int, low: float = -math.inf, high: float = math.inf
) -> ThinnedLines:
    """Return series over common steps, at most ``limit`` of them.

    If there are more, the steps are divided into intervals of equal length. A line keeps the minimum and maximum of
    each interval, in their order, at the first and last step of the interval. One point before the first step and one
    after the last are kept, so that a line reaches the edges of a chart.

    >>> steps = np.arange(1000.0)
    >>> block = thinned({"a": (steps, np.where(steps == 700, 9.0, 0.0))}, 100)
    >>> len(block.steps), float(block.lines["a"].max()), block.exact
    (100, 9.0, False)
    """
    cut = {name: _within(*_ordered(steps, values), low, high) for name, (steps, values) in series.items()}
    steps = _union([s for s, _ in cut.values()])
    lines = {}
    if len(steps) <= limit:
        for name, (at, values) in cut.items():
            lines[name] = np.full(len(steps), np.nan)
            lines[name][np.searchsorted(steps, at)] = values
        return ThinnedLines(steps, lines, exact=True)
    intervals = limit // 2
    begin, span = steps[0], steps[-1] - steps[0]

    def interval(at: np.ndarray) -> np.ndarray:
        return np.minimum(((at - begin) * (intervals / span)).astype(np.int64), intervals - 1)

    starts = _starts(interval(steps))
    ends = np.append(starts[1:], len(steps)) - 1
    columns = np.unique(np.concatenate([starts, ends]))  # an interval of one step is one column
    first, last = np.full(intervals, -1), np.full(intervals, -1)
    number = interval(steps[starts])
    first[number], last[number] = np.searchsorted(columns, starts), np.searchsorted(columns, ends)
    for name, (at, values) in cut.items():
        line = np.full(len(columns), np.nan)
        if len(at):
            where, earlier, later = _extremes(interval(at), values)
            line[first[where]] = earlier
            line[last[where]] = later
        lines[name] = line
    return ThinnedLines(steps[columns], lines, exact=False)


def _ordered(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a series with ascending steps; the last of several numbers at one step is kept."""
    if len(steps) < 2 or bool(np.all(np.diff(steps) > 0)):
        return steps, values
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    keep = np.append(np.diff(steps) > 0, True)
    return steps[keep], values[keep]


def _within(steps: np.ndarray, values: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the part of a series between two steps, and one point on each side."""
    start = max(0, int(np.searchsorted(steps, low)) - 1)
    end = int(np.searchsorted(steps, high, side="right")) + 1
    return steps[start:end], values[start:end]


def _union(all_steps: Sequence[np.ndarray]) -> np.ndarray:
    """Return the union of all steps; most arrays are equal, as layers are measured together, and need no sorting."""
    different: list[np.ndarray] = []
    for steps in all_steps:
        if not any(np.array_equal(steps, other) for other in different):
            different.append(steps)
    if len(different) == 1:
        return different[0]
    return np.unique(np.concatenate(different)) if different else np.empty(0)


def _starts(interval: np.ndarray) -> np.ndarray:
    """Return where each interval starts in an ascending array of interval numbers."""
    return np.append(0, np.flatnonzero(np.diff(interval)) + 1)


def _extremes(interval: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the intervals with points, and the earlier and the later extreme of each."""
    starts = _starts(interval)
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(interval))))
    least, most = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)

    def first_at(extreme: np.ndarray) -> np.ndarray:
        hits = np.flatnonzero(values == extreme[group])
        return hits[np.searchsorted(group[hits], np.arange(len(starts)))]

    rising = first_at(least) <= first_at(most)
    return interval[starts], np.where(rising, least, most), np.where(rising, most, least)
