"""What an extremal network shows: as sections of a report, as a chart and as JSON."""

from __future__ import annotations

from typing import Any

from normscope.core.number_text import digits, number_text
from normscope.core.value import json_number
from normscope.papers.than2025.extremal.constructions import Settings, Shown
from normscope.report.line_chart import blocks_for, sparkline, svg_chart
from normscope.report.numbers import kind_text, value_text
from normscope.report.table import Section, Table


def extremal_sections(shown: Shown, encoding: str | None = "utf-8") -> list[Section]:
    """Return the report of a construction: its numbers, then each line as its ends and a row of blocks.

    Args:
        shown: what it shows.
        encoding: of where the report is written, which says what blocks there are.
    """
    rows = tuple((k, value_text(v), kind_text(v), v.statement) for k, v in shown.values.items())
    columns = ("number", "value", "kind", "statement")
    numbers = Section(shown.title, table=Table(columns, rows, frozenset(("number", "kind", "statement"))))
    lines = []
    for name, points in shown.series.items():
        first, last = points[0], points[-1]
        ends = f"{number_text(first[1])} at {digits(first[0])} .. {number_text(last[1])} at {digits(last[0])}"
        lines += [f"{name}: {ends}", f"  {sparkline([y for _, y in points], blocks=blocks_for(encoding))}"]
    return [numbers, Section(f"{shown.y_label}, by {shown.x_label}", tuple(lines), after=shown.notes)]


def extremal_chart(shown: Shown) -> str:
    """Return the lines of a construction as an SVG document."""
    return svg_chart(shown.title, shown.x_label, shown.y_label, shown.series)


def extremal_document(construction: str, settings: Settings, shown: Shown) -> dict[str, Any]:
    """Return the JSON form.

    Args:
        construction: its name.
        settings: what it was built of.
        shown: what it shows.
    """
    widths = settings.widths
    return {
        "schema_version": 1,
        "kind": "extremal",
        "construction": construction,
        "settings": {
            "widths": list(widths) if len(set(widths)) > 1 else widths[0],
            "depth": settings.depth,
            "scale": settings.scale,
            "layer": settings.layer,
            "eps": settings.eps,
            "activation": settings.activation,
        },
        "values": {name: value.to_dict() for name, value in shown.values.items()},
        "series": {
            name: {"x": [x for x, _ in points], "log10": [json_number(y) for _, y in points]}
            for name, points in shown.series.items()
        },
        "notes": list(shown.notes),
    }
