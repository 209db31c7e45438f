"""The charts on the page of a run: every quantity declares its own, and each metric belongs to one of them."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True)
class Chart:
    """What a chart shows, and where on the page."""

    key: str  #: its name in requests
    title: str  #: its heading
    scale: str  #: ``log`` or ``linear``, as it is first drawn
    patterns: tuple[str, ...]  #: of the names of its metrics
    place: int  #: position on the page; a metric goes to the first chart whose patterns match its name
    whole: bool = False  #: whether its numbers are of the whole network, so that lines are not labelled by layer

    def fits(self, name: str) -> bool:
        """Return whether a metric belongs to this chart.

        >>> Chart("norm", "Norms", "log", ("norm/*",), 60).fits("norm/conv1")
        True
        """
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def to_dict(self) -> dict[str, Any]:
        """Return the form kept in a run's configuration."""
        return asdict(self) | {"patterns": list(self.patterns)}


#: Charts of every run: metrics of the training loop, and what the monitor costs.
COMMON = (
    Chart("loss", "Loss", "linear", ("train/*loss*", "probe/loss"), 10),
    Chart("accuracy", "Accuracy", "linear", ("train/*acc*", "probe/accuracy"), 20),
    Chart("own", "", "linear", ("train/?*",), 30),
    Chart("share", "Share of time spent in the monitor", "linear", ("clock/share",), 310, whole=True),
    Chart("clock", "Seconds spent in the monitor", "log", ("clock/*",), 320, whole=True),
)
#: The place of a chart that no quantity declares.
LAST = 1_000
#: The description of a metric that the run does not describe.
UNDESCRIBED = {
    "kind": "own", "words": "a number logged by the training loop", "statement": "", "domain": "", "log10": False,
}  # fmt: skip


def all_charts(declared: Iterable[Any] = ()) -> list[Chart]:
    """Return the charts that runs declare and those of every run, in the order of the page.

    Args:
        declared: charts in their JSON form; invalid entries are ignored.

    >>> mine = {"key": "a", "title": "A", "scale": "log", "patterns": ["a/*"], "place": 15}
    >>> [chart.title for chart in all_charts([mine])][:3]
    ['Loss', 'A', 'Accuracy']
    """
    found = set(COMMON)
    for entry in declared:
        with suppress(TypeError, KeyError):
            found.add(Chart(**{**entry, "patterns": tuple(entry["patterns"]), "place": int(entry["place"])}))
    return sorted(found, key=lambda chart: chart.place)


@dataclass
class ChartLines:
    """A chart with the lines of its metrics."""

    key: str  #: its name in requests
    title: str  #: its heading
    scale: str  #: ``log`` or ``linear``, as it is first drawn
    log10: bool  #: whether its numbers are decimal logarithms
    #: the description of each line, by the metric's name: label, kind, words, statement, domain
    lines: dict[str, dict[str, str]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        lines = [{"name": name, **said} for name, said in self.lines.items()]
        return {"key": self.key, "title": self.title, "scale": self.scale, "log10": self.log10, "lines": lines}


def described_in_run(name: str, descriptions: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return what a run's configuration says about a metric.

    >>> described_in_run("train/loss", ())["kind"]
    'own'
    """
    return next((d for d in descriptions if fnmatchcase(name, str(d.get("pattern", "")))), UNDESCRIBED)


def charts_of(
    names: Iterable[str], descriptions: Sequence[Mapping[str, Any]], charts: Sequence[Chart] = COMMON
) -> list[ChartLines]:
    """Return the charts of some metrics, in the order of the page; metrics without a declared chart come last.

    >>> [(c.key, list(c.lines)) for c in charts_of(["norm/a", "train/loss", "norm/b"], ())]
    [('loss', ['train/loss']), ('norm', ['norm/a', 'norm/b'])]
    """
    found: dict[str, tuple[int, ChartLines]] = {}
    for name in names:
        what = described_in_run(name, descriptions)
        kind = name.partition("/")[0]
        chart = next((c for c in charts if c.fits(name)), Chart(kind, kind, "linear", (), LAST))
        key, title = (name, name) if chart.key == "own" else (chart.key, chart.title)
        log10 = bool(what.get("log10"))
        if log10 and not _all_log10(chart, descriptions):
            key, title = f"{key}:log10", f"{title}, log10"
        _, group = found.setdefault(key, (chart.place, ChartLines(key, title, "log" if log10 else chart.scale, log10)))
        group.lines[name] = {
            "label": _label(name, chart),
            "kind": "attained" if what.get("kind") == "lower" else str(what.get("kind") or ""),
            **{key: str(what.get(key) or "") for key in ("words", "statement", "domain")},
        }
    return [group for _, group in sorted(found.values(), key=lambda pair: pair[0])]


def _all_log10(chart: Chart, descriptions: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether every described metric of a chart is a logarithm, so that it need not be split in two."""
    of_chart = [d for d in descriptions if chart.fits(str(d.get("pattern", "")))]
    return bool(of_chart) and all(d.get("log10") for d in of_chart)


def _label(name: str, chart: Chart) -> str:
    """Return the label of a line: the name of the layer where the title of the chart says the rest.

    >>> _label("norm/conv_1", Chart("norm", "Norms", "log", ("norm/*",), 60))
    'conv_1'
    >>> _label("product/folded_log10", Chart("product", "Products", "log", ("product/*",), 40, whole=True))
    'folded'
    """
    by_layer = next((p[:-1] for p in chart.patterns if p.endswith("/*") and not chart.whole), None)
    if by_layer is not None and name.startswith(by_layer):
        return name.removeprefix(by_layer) or name
    short = name.removesuffix("_log10")
    return short.partition("/")[2].replace("_", " ") if chart.whole else short
