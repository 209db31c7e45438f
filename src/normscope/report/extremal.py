"""Extremal networks as sections of a report and as a chart."""

import math
from collections.abc import Sequence

from normscope.core.number_text import digits, number_text
from normscope.papers.than2025.extremal.constructions import ConstructionReport
from normscope.report.charts import Chart, ChartLine
from normscope.report.numbers import kind_text, value_text
from normscope.report.svg import static_svg
from normscope.report.table import Section, Table

BLOCKS = "▁▂▃▄▅▆▇█"
#: For terminals that have no others.
PLAIN_BLOCKS = "_.-:=+*#"


def extremal_sections(shown: ConstructionReport, encoding: str | None = "utf-8") -> list[Section]:
    """Return the report of a construction: its numbers, then each curve as a sparkline.

    ``encoding`` is that of the output stream; it decides which block characters are used.
    """
    rows = tuple((k, value_text(v), kind_text(v), v.statement) for k, v in shown.values.items())
    columns = ("number", "value", "kind", "statement")
    numbers = Section(shown.title, table=Table(columns, rows, ("number", "kind", "statement")))
    lines = []
    for name, points in shown.series.items():
        first, last = points[0], points[-1]
        ends = f"{number_text(first[1])} at {digits(first[0])} .. {number_text(last[1])} at {digits(last[0])}"
        lines += [f"{name}: {ends}", f"  {sparkline([y for _, y in points], blocks=blocks_for(encoding))}"]
    # The numbers are written out; only the blocks are in log scale.
    title = f"{shown.y_label.removeprefix('log10 of ')}, by {shown.x_label}"
    return [numbers, Section(title, tuple(lines), after=shown.notes)]


def extremal_chart(shown: ConstructionReport) -> str:
    """Return the lines of a construction as an SVG document."""
    places = sorted({x for points in shown.series.values() for x, _ in points})
    lines = tuple(
        ChartLine(f"run{i}", name, "computed", name, tuple(dict(points).get(x) for x in places), gaps=True)
        for i, (name, points) in enumerate(shown.series.items())
    )
    names, kinds = tuple(map(digits, places)), (shown.x_label,) * len(places)
    chart = Chart("extremal", shown.title, names, lines, kinds, x_title=shown.x_label,
                  y_title=shown.y_label.removeprefix("log10 of "))  # fmt: skip
    return static_svg(chart, alone=True)


def sparkline(values: Sequence[float], width: int = 60, blocks: str = BLOCKS) -> str:
    """Return numbers as one line of at most ``width`` blocks, the least low and the largest high, gaps for infinities.

    >>> sparkline([0.0, 1.0, 2.0, 3.0])
    '▁▃▆█'
    """
    step = max(1, math.ceil(len(values) / width))
    shown = list(values)[::step]
    finite = [v for v in shown if math.isfinite(v)]
    if not finite:
        return " " * len(shown)
    low, high = min(finite), max(finite)
    top = len(blocks) - 1

    def block(v: float) -> str:
        if not math.isfinite(v):
            return " "
        return blocks[round(top * (v - low) / (high - low)) if high > low else top // 2]

    return "".join(map(block, shown))


def blocks_for(encoding: str | None) -> str:
    """Return the block characters that an encoding supports.

    >>> blocks_for("ascii") == PLAIN_BLOCKS, blocks_for("utf-8") == BLOCKS
    (True, True)
    """
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN_BLOCKS
    return BLOCKS
