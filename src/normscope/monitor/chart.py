"""The charts on the page of a run: every quantity declares its own."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True)
class Chart:
    """A chart: a title, the scale it starts with, patterns of the names of its metrics, and its place on the page."""

    key: str  #: its name in requests
    title: str  #: its heading
    scale: str  #: ``log`` or ``linear``, as it is first drawn
    patterns: tuple[str, ...]  #: of the names of its metrics
    place: int  #: charts stand in the order of these numbers, and the first that fits takes a metric
    whole: bool = False  #: whether its numbers are of the whole network: lines are called by what they are

    def fits(self, name: str) -> bool:
        """Return whether a metric belongs to this chart.

        >>> Chart("norm", "Norms", "log", ("norm/*",), 60).fits("norm/conv1")
        True
        """
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def to_dict(self) -> dict[str, Any]:
        """Return the form kept in a run's configuration."""
        return asdict(self) | {"patterns": list(self.patterns)}


#: Charts that numbers of the training loop share with the monitor's own, and of what the monitor costs.
COMMON = (
    Chart("loss", "Loss", "linear", ("train/*loss*", "probe/loss"), 10),
    Chart("accuracy", "Accuracy", "linear", ("train/*acc*", "probe/accuracy"), 20),
    Chart("own", "", "linear", ("train/?*",), 30),
    Chart("share", "Share of time spent in the monitor", "linear", ("clock/share",), 310, whole=True),
    Chart("clock", "Seconds spent in the monitor", "log", ("clock/*",), 320, whole=True),
)


def on_page(declared: Iterable[Any] = ()) -> list[Chart]:
    """Return the charts that runs declare and those of every run, in the order of the page.

    Args:
        declared: charts in their JSON form; what is none is passed over.

    >>> mine = {"key": "a", "title": "A", "scale": "log", "patterns": ["a/*"], "place": 15}
    >>> [chart.title for chart in on_page([mine])][:3]
    ['Loss', 'A', 'Accuracy']
    """
    found = set(COMMON)
    for entry in declared:
        with suppress(TypeError, KeyError):
            found.add(Chart(**{**entry, "patterns": tuple(entry["patterns"]), "place": int(entry["place"])}))
    return sorted(found, key=lambda chart: chart.place)
