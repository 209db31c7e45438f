"""Series with more points than a screen has pixels, thinned so that every peak stays."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

#: Most points of a line in a chart of few lines, least ones in a chart of many, and numbers of a whole chart.
MOST, LEAST, CHART = 2000, 120, 40_000


@dataclass(frozen=True, eq=False)
class Block:
    """Lines over common steps."""

    steps: np.ndarray  #: in ascending order
    lines: dict[str, np.ndarray]  #: one array as long as the steps for each name; ``nan`` where a line has no number
    exact: bool  #: whether these are the points themselves; otherwise the least and the most of each stretch of steps


def limit_for(lines: int) -> int:
    """Return how many points each of a chart's lines gets.

    >>> limit_for(1), limit_for(100), limit_for(10_000)
    (2000, 400, 120)
    """
    return int(min(MOST, max(LEAST, CHART // max(1, lines))))


def thinned(
    series: Mapping[str, tuple[np.ndarray, np.ndarray]], limit: int, low: float = -math.inf, high: float = math.inf
) -> Block:
    """Return series over common steps, at most ``limit`` of them.

    Where there are more, the steps are cut into stretches of equal length. Of each stretch a line keeps its least and
    its largest number, in the order in which they came, at the first and the last step of the stretch. One point before
    the first step wanted and one after the last stay, so that a line reaches the edges of a chart.

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
        return Block(steps, lines, exact=True)
    stretches = limit // 2
    begin, span = steps[0], steps[-1] - steps[0]

    def stretch(at: np.ndarray) -> np.ndarray:
        return np.minimum(((at - begin) * (stretches / span)).astype(np.int64), stretches - 1)

    starts = _starts(stretch(steps))
    ends = np.append(starts[1:], len(steps)) - 1
    columns = np.unique(np.concatenate([starts, ends]))  # a stretch of one step is one column
    first, last = np.full(stretches, -1), np.full(stretches, -1)
    number = stretch(steps[starts])
    first[number], last[number] = np.searchsorted(columns, starts), np.searchsorted(columns, ends)
    for name, (at, values) in cut.items():
        line = np.full(len(columns), np.nan)
        if len(at):
            where, earlier, later = _extremes(stretch(at), values)
            line[first[where]] = earlier
            line[last[where]] = later
        lines[name] = line
    return Block(steps[columns], lines, exact=False)


def _ordered(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a series by ascending steps; of several numbers at one step the last one stays."""
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
    """Return all steps once; layers are measured together, so most arrays are equal and need no sorting."""
    different: list[np.ndarray] = []
    for steps in all_steps:
        if not any(np.array_equal(steps, other) for other in different):
            different.append(steps)
    if len(different) == 1:
        return different[0]
    return np.unique(np.concatenate(different)) if different else np.empty(0)


def _starts(stretch: np.ndarray) -> np.ndarray:
    """Return where each stretch begins in an ascending array of their numbers."""
    return np.append(0, np.flatnonzero(np.diff(stretch)) + 1)


def _extremes(stretch: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the stretches that hold a point, and of each the extreme that came first and the other one."""
    starts = _starts(stretch)
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(stretch))))
    least, most = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)

    def first_at(extreme: np.ndarray) -> np.ndarray:
        hits = np.flatnonzero(values == extreme[group])
        return hits[np.searchsorted(group[hits], np.arange(len(starts)))]

    rising = first_at(least) <= first_at(most)
    return stretch[starts], np.where(rising, least, most), np.where(rising, most, least)
