"""The table of generalization bounds as text and as a page."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from normscope.analysis.bounds.result import BoundRow, BoundsResult, shown
from normscope.report.table import Section, Table

_COLUMNS = ("bound", "error at most", "", "status", "of", "statement")
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
    sections = [Section(f"generalization bounds of {result.model}", lines, table, (*notes, *result.messages))]
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


def bounds_page(result: BoundsResult) -> str:
    """Return the table as an HTML page that needs nothing else."""
    parts = []
    for section in bounds_sections(result):
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        parts += [f"<p>{html.escape(line)}</p>" for line in section.lines]
        if section.table is not None:
            parts.append(_table(section.table))
        parts += [f"<p class=note>{html.escape(line)}</p>" for line in section.after]
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
        "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #8884}"
        "tr.informative td{font-weight:600}.note{opacity:.8;margin:.2em 0}:root{color-scheme:light dark}"
    )
    title = html.escape(f"Generalization bounds of {result.model}")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title}</title><style>{style}</style><h1>{title}</h1>{''.join(parts)}</html>\n"
    )


def _table(table: Table) -> str:
    """Return a table as HTML."""
    head = "".join(f"<th>{html.escape(c)}</th>" for c in table.columns)
    rows = []
    for row in table.rows:
        mark = " class=informative" if "informative" in row else ""
        rows.append(f"<tr{mark}>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
