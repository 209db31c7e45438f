"""Which metrics share a chart, in which order the charts stand, and what is said about each line."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

#: What is said of a number that the run does not describe.
OWN = {"kind": "own", "words": "a number logged by the training loop", "statement": "", "domain": "", "log10": False}


@dataclass(frozen=True)
class Chart:
    """One chart by its key: a title, the scale it starts with and patterns of the names of its metrics."""

    key: str
    title: str
    scale: str
    patterns: tuple[str, ...]


#: The charts the monitor's metrics belong to, in the order of the page; the first that fits takes a metric.
CHARTS = (
    Chart("loss", "Loss", "linear", ("train/*loss*", "probe/loss")),
    Chart("accuracy", "Accuracy", "linear", ("train/*acc*", "probe/accuracy")),
    Chart("own", "", "linear", ("train/?*",)),
    Chart("product", "Products of norms, and of 1/sigma as printed and as proved", "log", ("product/*", "bound/*")),
    Chart("certified", "Bounds of the whole network, certified", "log", ("certified/*_log10",)),
    Chart("norm", "Spectral norm of each layer", "log", ("norm/*",)),
    Chart("folded", "Norm of each layer folded with its normalizer", "log", ("folded/*",)),
    Chart("certified-norm", "Norm of each layer, certified", "log", ("certified/norm_log10/*",)),
    Chart("not-finite", "NaN and infinite entries", "linear", ("not_finite/*",)),
    Chart("drift", "Distance of running statistics from those of the probe", "log", ("drift/*",)),
    Chart("training", "Whether each BatchNorm is in train mode", "linear", ("training/*",)),
    Chart("tracked", "Batches each BatchNorm has seen per step", "linear", ("tracked/*",)),
    Chart("logit", "Largest attention logit", "log", ("logit/*",)),
    Chart("scale-moved", "Distance of each scale from its initial value", "log", ("scale_moved/*",)),
    Chart("variance", "Variance before each normalizer and activation", "log", ("variance/*",)),
    Chart("variance-min", "Smallest variance of a channel before each normalizer", "log", ("variance_min/*",)),
    Chart("printed", "1/sigma of each normalizer, as printed", "log", ("printed/*",)),
    Chart("constant", "Lipschitz constant of each normalizer, proved", "log", ("constant/*",)),
    Chart("gradient-norm", "Gradient of each layer", "log", ("gradient/norm/*",)),
    Chart("gradient-ratio", "Gradient of each layer over its weight", "log", ("gradient/ratio/*",)),
    Chart("gradient", "Gradient of all parameters", "log", ("gradient/*",)),
    Chart("effective-rate", "Effective learning rate of each layer", "log", ("effective_rate/*",)),
    Chart("angle", "Angle of the last update of each layer", "log", ("angle/*",)),
    Chart("minimum-norm", "Smallest norm of a weight vector", "log", ("weight/minimum_norm", "weight/minimum_norm/*")),
    Chart("radial", "Part of the gradient along the weights of a scale-invariant layer", "log", ("radial/*",)),
    Chart("curvature", "Largest curvature of the loss", "log", ("curvature/*",)),
    Chart("weight-norm", "Proved statements about the next step with weight normalization", "log", ("weight_norm/*",)),
    Chart("landscape-loss", "Loss along the gradient", "linear", ("landscape/loss_*",)),
    Chart("landscape", "Change of the gradient along itself", "log", ("landscape/*",)),
    Chart("margin", "Margins on the probe", "linear", ("margin/*",)),
    Chart("share", "Share of time spent in the monitor", "linear", ("clock/share",)),
    Chart("clock", "Seconds spent in the monitor", "log", ("clock/*",)),
)  # fmt: skip
#: Charts of numbers of the whole network, whose lines are called by what they are.
_WHOLE = ("product", "certified", "gradient", "landscape-loss", "landscape", "margin", "share", "clock")


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


def grouped(names: Iterable[str], descriptions: Sequence[Mapping[str, Any]]) -> list[Group]:
    """Return the charts that have one of these metrics, in the order of the page; unknown metrics come last.

    >>> [(g.key, list(g.lines)) for g in grouped(["norm/a", "train/loss", "norm/b"], ())]
    [('loss', ['train/loss']), ('norm', ['norm/a', 'norm/b'])]
    """
    found: dict[str, tuple[int, Group]] = {}
    for name in names:
        what = described(name, descriptions)
        place, chart = next(
            ((i, c) for i, c in enumerate(CHARTS) if any(fnmatchcase(name, p) for p in c.patterns)),
            (len(CHARTS), Chart(name.partition("/")[0], name.partition("/")[0], "linear", ())),
        )
        key, title = (name, name) if chart.key == "own" else (chart.key, chart.title)
        log10 = bool(what.get("log10"))
        if log10 and not _all_log10(chart, descriptions):
            key, title = f"{key}:log10", f"{title}, log10"
        _, group = found.setdefault(key, (place, Group(key, title, "log" if log10 else chart.scale, log10)))
        group.lines[name] = {
            "label": _label(name, chart),
            "kind": "attained" if what.get("kind") == "lower" else str(what.get("kind") or ""),
            **{key: str(what.get(key) or "") for key in ("words", "statement", "domain")},
        }
    return [group for _, group in sorted(found.values(), key=lambda pair: pair[0])]


def _all_log10(chart: Chart, descriptions: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether every described metric of a chart is a logarithm, so that it needs no chart beside another."""
    of_chart = [d for d in descriptions if any(fnmatchcase(str(d.get("pattern", "")), p) for p in chart.patterns)]
    return bool(of_chart) and all(d.get("log10") for d in of_chart)


def _label(name: str, chart: Chart) -> str:
    """Return the short name of a line: the layer's own where the title says the rest.

    >>> charts = {chart.key: chart for chart in CHARTS}
    >>> _label("norm/conv_1", charts["norm"]), _label("product/folded_log10", charts["product"])
    ('conv_1', 'folded')
    >>> _label("probe/loss", charts["loss"]), _label("weight/minimum_norm", charts["minimum-norm"])
    ('probe/loss', 'weight/minimum_norm')
    """
    by_layer = next((p[:-1] for p in chart.patterns if p.endswith("/*") and chart.key not in _WHOLE), None)
    if by_layer is not None and name.startswith(by_layer):
        return name.removeprefix(by_layer) or name
    short = name.removesuffix("_log10")
    return short.partition("/")[2].replace("_", " ") if chart.key in _WHOLE else short
