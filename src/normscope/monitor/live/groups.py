"""Which metrics share a chart, in which order the charts stand, and what is said about each line."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from normscope.monitor.chart import COMMON, Chart

#: Where the charts of metrics stand that no chart is declared for.
LAST = 1_000
#: What is said of a number that the run does not describe.
OWN = {"kind": "own", "words": "a number logged by the training loop", "statement": "", "domain": "", "log10": False}


@dataclass
class Group:
    """The metrics of one chart."""

    key: str  #: its name in requests
    title: str  #: its heading
    scale: str  #: ``log`` or ``linear``, as it is first drawn
    log10: bool  #: whether its numbers are decimal logarithms
    #: by the metric's name what is said about it: label, kind, words, statement, domain
    lines: dict[str, dict[str, str]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        lines = [{"name": name, **said} for name, said in self.lines.items()]
        return {"key": self.key, "title": self.title, "scale": self.scale, "log10": self.log10, "lines": lines}


def described(name: str, descriptions: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return what a run's configuration says about a metric.

    >>> described("train/loss", ())["kind"]
    'own'
    """
    return next((d for d in descriptions if fnmatchcase(name, str(d.get("pattern", "")))), OWN)


def grouped(
    names: Iterable[str], descriptions: Sequence[Mapping[str, Any]], charts: Sequence[Chart] = COMMON
) -> list[Group]:
    """Return the charts that have one of these metrics, in the order of the page; unknown metrics come last.

    >>> [(g.key, list(g.lines)) for g in grouped(["norm/a", "train/loss", "norm/b"], ())]
    [('loss', ['train/loss']), ('norm', ['norm/a', 'norm/b'])]
    """
    found: dict[str, tuple[int, Group]] = {}
    for name in names:
        what = described(name, descriptions)
        kind = name.partition("/")[0]
        chart = next((c for c in charts if c.fits(name)), Chart(kind, kind, "linear", (), LAST))
        key, title = (name, name) if chart.key == "own" else (chart.key, chart.title)
        log10 = bool(what.get("log10"))
        if log10 and not _all_log10(chart, descriptions):
            key, title = f"{key}:log10", f"{title}, log10"
        _, group = found.setdefault(key, (chart.place, Group(key, title, "log" if log10 else chart.scale, log10)))
        group.lines[name] = {
            "label": _label(name, chart),
            "kind": "attained" if what.get("kind") == "lower" else str(what.get("kind") or ""),
            **{key: str(what.get(key) or "") for key in ("words", "statement", "domain")},
        }
    return [group for _, group in sorted(found.values(), key=lambda pair: pair[0])]


def _all_log10(chart: Chart, descriptions: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether every described metric of a chart is a logarithm, so that it needs no chart beside another."""
    of_chart = [d for d in descriptions if chart.fits(str(d.get("pattern", "")))]
    return bool(of_chart) and all(d.get("log10") for d in of_chart)


def _label(name: str, chart: Chart) -> str:
    """Return the short name of a line: the layer's own where the title says the rest.

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
