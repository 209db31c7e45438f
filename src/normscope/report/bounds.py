"""The table of generalization bounds as text, and as a chart of the report page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from normscope.analysis.bounds.result import BoundRow, BoundsResult, shown
from normscope.report.charts import Chart, Line
from normscope.report.table import Section, Table

_COLUMNS = ("bound", "error at most", "", "status", "of", "statement")
#: How the page draws each status.
_STYLES = {"certificate": "global", "estimate": "lower", "scale only": "printed"}
_LEFT = frozenset({"bound", "", "status", "of", "statement"})


def bounds_sections(result: BoundsResult) -> list[Section]:
    """Return the truth, the bounds and the margins as sections."""
    truth = result.truth
    lines = (
        f"training error {truth['train_error']:.4g} ({truth['train_samples']} samples), test error "
        f"{truth['test_error']:.4g} ({truth['test_samples']} samples), gap {truth['gap']:.4g}",
        f"each certificate fails with probability at most {truth['delta']:g}",
    )
    table = Table(_COLUMNS, tuple(map(_cells, result.rows)), _LEFT)
    notes = [f"{r.name}: {r.reason}" for r in result.rows if r.reason]
    best = result.best
    if best is not None:
        notes.insert(0, f"best certificate for this network: {best.name}, error at most {shown(best.bound)}")
    said = (*notes, *result.messages)
    sections = [Section(f"generalization bounds of {result.model}", lines, table, said, _chart(result))]
    if result.margins:
        sections.append(_margins(result.margins))
    return sections


def _cells(row: BoundRow) -> tuple[str, ...]:
    """Return the cells of a row."""
    vacuous = "" if row.bound is None else "vacuous" if row.vacuous else "informative"
    return (row.name, shown(row.bound), vacuous, row.status, row.of if row.bound is not None else "", row.statement)


def _margins(margins: Mapping[str, Any]) -> Section:
    """Return the quantiles of the margins."""
    names = [str(key) for key in margins["raw"]]
    rows = tuple(
        (name, *(f"{values[q]:.3g}" for q in names)) if "refused" not in values else (name, *[""] * len(names))
        for name, values in margins.items()
    )
    columns = ("margin", *(f"{100 * float(q):g} %" for q in names))
    return Section("margins on the training data, quantiles", table=Table(columns, rows, frozenset({"margin"})))


def _chart(result: BoundsResult) -> Chart | None:
    """Return every bound beside the test error, one line per status."""
    rows = [row for row in result.rows if row.bound is not None]
    if not rows:
        return None
    lines = tuple(
        Line(style, status, status, status, tuple(_log10(row) if row.status == status else None for row in rows))
        for status, style in _STYLES.items()
        if any(row.status == status for row in rows)
    )
    error = float(result.truth["test_error"])
    across = math.log10(error) if error > 0 else None
    names, kinds = tuple(row.name for row in rows), ("layer",) * len(rows)
    return Chart("bounds", "Every bound on the error", names, kinds, lines, across, f"test error {error:.4g}")


def _log10(row: BoundRow) -> float | None:
    return None if row.bound is None else row.bound.log10
