"""A chart as static SVG, for printing and for pages without scripts."""

import math
from collections.abc import Sequence
from html import escape

from normscope.report.charts import Chart, ChartLine
from normscope.report.numbers import power_text

WIDTH, HEIGHT = 960, 400
LEFT, RIGHT, TOP, BOTTOM = 84, 12, 12, 112
#: Most places whose names are written, and most letters of a name.
NAMES, LETTERS = 32, 16
#: Most points of a line; a longer one is thinned.
POINTS = 400
#: Most grid lines, and the range in decades below which each decade has several.
TICKS, DECADES = 8, 3.0
#: Height above a chart that stands alone, and the colours and dashes of its lines, by style.
HEAD = 48
LOOKS = {"run0": "#0072b2", "run1": "#d55e00;stroke-dasharray:7 4", "run2": "#009e73;stroke-dasharray:2 3",
         "run3": "#cc79a7;stroke-dasharray:9 3 2 3"}  # fmt: skip
STYLE = "text{font:13px sans-serif;fill:#222}.grid{stroke:#ddd}.line{fill:none;stroke-width:2}" + "".join(
    f".{style}{{stroke:{look}}}" for style, look in LOOKS.items()
)


def static_svg(chart: Chart, *, alone: bool = False) -> str:
    """Return a chart as an SVG element styled by CSS classes.

    A standalone chart is a complete document, with styles, and with its title and the names of its lines above it.

    >>> one = ChartLine("global", "certified", "certified", "", (0.0, 2.0))
    >>> text = static_svg(Chart("c", "a title", ("input", "output"), (one,)))
    >>> text.startswith("<svg") and "a title" in text and "10" in text
    True
    """
    low, high = span(chart)
    count = max(len(chart.places), 2)
    kind, head = ('xmlns="http://www.w3.org/2000/svg"', HEAD) if alone else ('class="still"', 0)
    box = f'viewBox="0 {-head} {WIDTH} {HEIGHT + head}"'
    parts = [
        f'<svg {kind} {box} role="img" aria-label="{escape(_summary(chart))}">',
        f"<title>{escape(chart.title)}</title>",
        *(_heading(chart) if alone else ()),
    ]
    for tick in ticks(low, high):
        y = _y(tick, low, high)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        label = escape(tick_text(tick))
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y}" dy="4" text-anchor="end">{label}</text>')
    if chart.baseline is not None:
        y = _y(chart.baseline, low, high)
        parts.append(f'<line class="baseline" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
    for index in _places(chart):
        x, y, name = _x(index, count), HEIGHT - BOTTOM + 16, chart.places[index]
        label = escape(name if len(name) <= LETTERS else f"…{name[1 - LETTERS :]}")
        turned = f'transform="rotate(-50 {x} {y})" text-anchor="end"'
        parts.append(f'<text class="tick" x="{x}" y="{y}" {turned}>{label}</text>')
    across, up = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text class="tick" x="{across}" y="{HEIGHT - 6}" text-anchor="middle">{escape(chart.x_title)}</text>'
    )
    parts.append(
        f'<text class="tick" x="14" y="{up}" transform="rotate(-90 14 {up})" text-anchor="middle">'
        f"{escape(chart.y_title)}</text>"
    )
    for line in chart.lines:
        parts += [f'<path class="line {line.style}" d="{path}"/>' for path in _paths(line, low, high, count)]
    return "".join([*parts, "</svg>"])


def _heading(chart: Chart) -> list[str]:
    """Return the styles, the title and the legend of a standalone chart."""
    parts = [
        f"<style>{STYLE}</style>",
        f'<text x="{LEFT}" y="-28" style="font-weight:bold">{escape(chart.title)}</text>',
    ]
    for i, line in enumerate(chart.lines):
        left = LEFT + i * (WIDTH - LEFT - RIGHT) // len(chart.lines)
        parts.append(f'<path class="line {line.style}" d="M{left} -12h22"/>')
        parts.append(f'<text x="{left + 28}" y="-8">{escape(line.label)}</text>')
    return parts


def _summary(chart: Chart) -> str:
    """Return a text alternative: each line with its first and last number."""
    said = []
    for line in chart.lines:
        known = [x for x in line.log10 if x is not None and not math.isnan(x)]
        if known:
            said.append(f"{line.label} ({line.kind}) from {power_text(known[0])} to {power_text(known[-1])}")
    return f"{chart.title}: {'; '.join(said)}"


def span(chart: Chart) -> tuple[float, float]:
    """Return the range of decimal logarithms of a chart, at least one decade wide.

    >>> span(Chart("c", "", ("a",), (ChartLine("global", "", "", "", (2.0, math.inf)),)))
    (1.5, 2.5)
    """
    known = [x for line in chart.lines for x in line.log10 if x is not None and math.isfinite(x)]
    known += [] if chart.baseline is None else [chart.baseline]
    low, high = min(known, default=0.0), max(known, default=1.0)
    missing = max(0.0, 1.0 - (high - low)) / 2
    missing = max(missing, 1e-9 * abs(high)) if missing else 0.0
    return low - missing, high + missing


def ticks(low: float, high: float) -> list[float]:
    """Return decimal logarithms of round numbers: whole powers of ten some steps apart, or 1, 2 and 5 of each.

    >>> ticks(0.0, 14.0), [round(10**t, 3) for t in ticks(-0.4, 0.8)]
    ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0], [0.5, 1.0, 2.0, 5.0])
    """
    if high - low < DECADES:
        powers = range(math.floor(low), math.ceil(high) + 1)
        found = [k + math.log10(digit) for k in powers for digit in (1, 2, 5)]
        return [t for t in found if low <= t <= high]
    raw = (high - low) / TICKS
    scale = 10.0 ** math.floor(math.log10(raw))
    step = max(1.0, next(s * scale for s in (1, 2, 5, 10) if s * scale >= raw))
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def tick_text(log10: float) -> str:
    """Return the label of a tick.

    >>> tick_text(14.0), tick_text(0.0), tick_text(math.log10(2))
    ('10¹⁴', '1', '2')
    """
    near = round(log10)
    if abs(log10 - near) > 1e-6 or -2 <= near <= 3:
        return power_text(log10)
    return power_text(float(near)).removeprefix("1.000×")


def _places(chart: Chart) -> Sequence[int]:
    """Return the places to label: all, or evenly spaced ones if there are many, and always the last."""
    count = len(chart.places)
    step = max(1, -(-count // NAMES))
    return sorted({*range(0, max(0, count - step), step), *((count - 1,) if count else ())})


def _x(index: int, count: int) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * index / (count - 1), 1)


def _y(value: float, low: float, high: float) -> float:
    return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low), 1)


def _paths(line: ChartLine, low: float, high: float, count: int) -> list[str]:
    """Return the paths of a line, one for each part without gaps."""
    step = max(1, math.ceil(len(line.log10) / POINTS))
    last = len(line.log10) - 1
    stretches: list[list[str]] = [[]]
    for index, x in enumerate(line.log10):
        if x is None or not math.isfinite(x):
            if not line.gaps:
                stretches.append([])
        elif index % step == 0 or index == last:
            stretches[-1].append(f"{_x(index, count)} {_y(x, low, high)}")
    return [f"M{'L'.join(points)}" + ("h.1" if len(points) == 1 else "") for points in stretches if points]
