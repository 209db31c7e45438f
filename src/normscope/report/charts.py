"""The charts of the page as data: bounds along depth, variances before normalizers, several results overlaid."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from normscope.core.depth_curve import Curve
from normscope.core.result import NormalizerResult, Result
from normscope.core.value import ALL_INPUTS, Kind
from normscope.report.numbers import KINDS

#: Curves of the depth chart: key in a result, name on the page. The keys are also the styles of the lines.
DEPTH = {
    "global": "certified, all inputs",
    "variance_floor": "certified, variance floor",
    "without_normalizers": "certified, normalizers removed",
    "lower": "attained",
}
#: Styles of results that are overlaid, in order.
RUNS = 8


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart."""

    style: str  #: name of its colour and dashes
    label: str  #: what it is
    kind: str  #: what its numbers guarantee, one word
    note: str  #: the same in a sentence
    log10: tuple[float | None, ...]  #: decimal logarithms; ``None`` where there is none
    gaps: bool = False  #: whether missing numbers are bridged

    @property
    def endless(self) -> int | None:
        """Return the first place without a bound, if there is one."""
        return next((i for i, x in enumerate(self.log10) if x == math.inf), None)


@dataclass(frozen=True)
class Chart:
    """A chart over the places of a network, in log scale."""

    id: str  #: of its element
    title: str  #: what it shows
    places: tuple[str, ...]  #: name of each place
    lines: tuple[ChartLine, ...]  #: what is drawn
    kinds: tuple[str, ...] = ()  #: what each place is; by default a layer
    baseline: float | None = None  #: number at which a line is drawn across, as decimal logarithm, if any
    baseline_label: str = ""  #: what that is
    x_title: str = "from the input to the output"  #: of the axis along the places
    y_title: str = "moves by at most"  #: of the axis of the numbers

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a note for each line that ends because there is no bound."""
        found = ((line, line.endless) for line in self.lines)
        return tuple(f"{line.label}: no bound from {self.places[at]} onwards" for line, at in found if at is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form for the script of the page."""
        lines = [
            {"style": x.style, "label": x.label, "kind": x.kind, "log10": [_drawn(v) for v in x.log10], "gaps": x.gaps}
            for x in self.lines
        ]
        kinds = self.kinds or ("layer",) * len(self.places)
        out: dict[str, Any] = {"title": self.title, "places": self.places, "kinds": kinds, "lines": lines}
        out |= {"xTitle": self.x_title, "yTitle": self.y_title}
        if self.baseline is not None:
            out |= {"baseline": self.baseline, "baselineLabel": self.baseline_label}
        return out


def _drawn(x: float | None) -> float | str | None:
    """Return a number for the script: rounded, infinities as strings."""
    if x is None or math.isnan(x):
        return None
    return round(x, 6) if math.isfinite(x) else ("inf" if x > 0 else "-inf")


def depth_chart(result: Result, name: str) -> Chart | None:
    """Return the bounds along depth; a curve that lies on another one is left out."""
    depth, curves = result.depth, result.depth.curves
    lines = tuple(
        _line(key, label, curves[key])
        for key, label in DEPTH.items()
        if key in curves and (key == "global" or curves[key].log10 != curves["global"].log10)
    )
    return Chart(name, "How the bound builds up along depth", depth.names, lines, depth.kinds) if lines else None


def _line(style: str, label: str, curve: Curve) -> ChartLine:
    """Return a curve as a line with its guarantee in words."""
    where = f"on {curve.domain}" if curve.domain == ALL_INPUTS else curve.domain
    note = "; ".join(x for x in (KINDS[curve.kind], where, curve.statement) if x)
    kind = "attained" if curve.kind is Kind.LOWER else curve.kind.value
    return ChartLine(style, label, kind, note, curve.log10, gaps=style == "lower")


def overlay_chart(results: Mapping[str, Result], name: str) -> Chart | None:
    """Return the certified and attained curves of several results in one chart.

    Networks whose places have the same names share them; the places of others are counted from the input.
    """
    longest = max((r.depth for r in results.values()), key=lambda d: len(d.names))
    alike = all(set(r.depth.names) <= set(longest.names) for r in results.values())
    lines = []
    for index, (title, result) in enumerate(results.items()):
        curves = result.depth.curves
        upper = "variance_floor" if "variance_floor" in curves else "global"
        for key, words in ((upper, "certified"), ("lower", "attained")):
            if key in curves:
                line = _line(key, f"{title}, {words}", curves[key])
                numbers = dict(zip(result.depth.names if alike else range(len(line.log10)), line.log10, strict=True))
                places = longest.names if alike else range(len(longest.names))
                style = f"run{index % RUNS}{'-lower' if key == 'lower' else ''}"
                moved = tuple(numbers.get(place) for place in places)
                lines.append(ChartLine(style, line.label, line.kind, line.note, moved, gaps=True))
    if not lines:
        return None
    places = longest.names if alike else tuple(f"place {i}" for i in range(len(longest.names)))
    kinds = longest.kinds if alike else ()
    return Chart(name, "Bounds along depth, side by side", places, tuple(lines), kinds)


def layer_chart(result: Result, name: str) -> Chart | None:
    """Return the norm of each layer, alone and folded with the normalization after it."""
    upper = tuple(layer.upper.log10 for layer in result.layers)
    folded = tuple(None if layer.folded is None else layer.folded.log10 for layer in result.layers)
    lines = [ChartLine("global", "||W||", "certified", "norm of the layer", upper)]
    if any(x is not None for x in folded):
        lines.append(ChartLine("variance_floor", "folded", "certified", "||diag(gamma/sigma) W||", folded))
    return (
        Chart(name, "Norm of each layer", tuple(layer.name for layer in result.layers), tuple(lines)) if upper else None
    )


def variance_chart(result: Result, name: str) -> Chart | None:
    """Return the variances before each normalizer of activations, over channels, against the line at one."""
    rows = [(n, _variances(n)) for n in result.normalizers]
    rows = [(n, v) for n, v in rows if v is not None]
    if not rows:
        return None
    places = tuple(n.name for n, _ in rows)
    seen = any("seen_variance_max" in n.details for n, _ in rows)
    source = "in the data" if seen else "of the running statistics"
    columns = list(zip(*(v for _, v in rows if v is not None), strict=True))
    names = (("variance-max", "largest"), ("variance-mean", "mean"), ("variance-min", "least"))
    lines = tuple(
        ChartLine(
            style, f"{words} over channels", "measured", f"variance {source}, {words} over channels", tuple(values)
        )
        for (style, words), values in zip(names, columns, strict=True)
        if any(v is not None for v in values)
    )
    title = f"Variance before each normalizer, {source}"
    kinds = ("normalizer",) * len(places)
    return Chart(name, title, places, lines, kinds, 0.0, "variance 1", "normalizers, in order", "variance")


def _variances(n: NormalizerResult) -> tuple[float | None, float | None, float | None] | None:
    """Return largest, mean and least variance before a normalizer as decimal logarithms, or ``None``."""
    details = n.details
    if "seen_variance_max" in details:
        keys = ("seen_variance_max", "seen_variance_mean", "seen_variance_min")
        high, mean, low = (log10_of(details[key]) for key in keys)
        return high, mean, low
    if "std_max" in details:
        return log10_of(details["std_max"] ** 2), None, log10_of(details["std_min"] ** 2)
    return None


def log10_of(x: float | None) -> float | None:
    """Return a decimal logarithm, or ``None`` for zero, infinity and what is not known."""
    return math.log10(x) if x is not None and 0 < x < math.inf else None
