"""Sections of a report (a title, lines of text, a table), and their plain-text form."""

import functools
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normscope.report.charts import Chart
from normscope.report.numbers import NOTHING, span_text

#: Characters of a line of prose.
WIDTH = 110
#: Rows beyond which a table is folded by repeated blocks, and cut if that does not help.
ROWS = 30
_LABEL = re.compile(r"[^\s:]+ {2,}(?=\S)")
#: A run of equal blocks, as ``layers.0..11``.
RUN = re.compile(r"^(?P<base>(?:.*\.)?)(?P<first>\d+)\.\.(?P<last>\d+)$")


@dataclass(frozen=True)
class Table:
    """Rows of text under column titles."""

    columns: tuple[str, ...]  #: titles
    rows: tuple[tuple[str, ...], ...]  #: cells, one tuple per row
    left: tuple[str, ...] = ()  #: columns of words, aligned left; all others hold numbers, aligned right


@dataclass(frozen=True)
class Section:
    """One part of a report."""

    title: str  #: what it is about
    lines: tuple[str, ...] = ()  #: text before the table
    table: Table | None = None  #: the table, if there is one
    after: tuple[str, ...] = ()  #: text after it
    chart: Chart | None = None  #: the same as a picture, on pages
    #: prose before everything else; plain text wraps it. After a word and two or more spaces, all
    #: lines of the text stay beside the word.
    sentences: tuple[str, ...] = ()


def plain_text(sections: Iterable[Section]) -> str:
    """Return sections as plain text, without boxes or colours, one line per table row.

    >>> print(plain_text([Section("layers", table=Table(("name", "norm"), (("fc", "2.5"),), ("name",)))]))
    layers
      name  norm
      fc     2.5
    """
    blocks = []
    for section in sections:
        prose = (line for text in section.sentences for line in wrapped(text, WIDTH))
        lines = [section.title, *(f"  {line}" for line in (*prose, *section.lines))]
        if section.table is not None:
            lines += _table_lines(section.table)
        blocks.append("\n".join([*lines, *(f"  {line}" for line in section.after)]))
    return "\n\n".join(blocks)


def wrapped(text: str, width: int) -> list[str]:
    """Wrap a line of prose, with a hanging indent.

    Names, paths and numbers are never broken.

    >>> wrapped("  fix: build the layer without", 18)
    ['  fix: build the', '    layer without']
    >>> wrapped("says      what it does and why", 22)
    ['says      what it does', '          and why']
    """
    label = _LABEL.match(text)
    rest = " " * (label.end() if label else len(text) - len(text.lstrip()) + (2 if text[:1] == " " else 0))
    return textwrap.wrap(text, width, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)


def _table_lines(table: Table) -> list[str]:
    """Return the lines of a table, columns padded to their widest cell."""
    grid = [table.columns, *table.rows]
    widths = [max(len(row[i]) for row in grid) for i in range(len(table.columns))]
    left = [title in table.left for title in table.columns]
    lines = []
    for row in grid:
        cells = [c.ljust(w) if flush else c.rjust(w) for c, w, flush in zip(row, widths, left, strict=True)]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def shortened(table: Table, blocks: Sequence[Mapping[str, Any]], *, everything: bool) -> tuple[Table, tuple[str, ...]]:
    """Return a table of readable length, and lines about the omitted rows.

    A long table is folded first: rows at the same place of equal blocks become one, its numbers as ``least .. most``.
    What is still too long is cut.

    Args:
        table: the first column holds module paths.
        blocks: the module tree with runs of equal blocks, as in a result.
        everything: leave it as it is.

    >>> rows = tuple((str(i), "1") for i in range(40))
    >>> short, said = shortened(Table(("name", "norm"), rows), (), everything=False)
    >>> len(short.rows), said
    (30, ('... 10 more rows, all in result.json (or with --all)',))
    """
    if everything or len(table.rows) <= ROWS:
        return table, ()
    runs = runs_of(blocks)
    groups: dict[str, list[tuple[str, ...]]] = {}
    for row in table.rows:
        groups.setdefault(folded(row[0], runs)[1], []).append(row)
    rows = tuple(_merged(name, group) for name, group in groups.items())
    said: tuple[str, ...] = ()
    if len(rows) < len(table.rows):
        said = (f"equal blocks are folded, {len(table.rows)} rows into {len(rows)}: min .. max (--all shows all)",)
    if len(rows) > ROWS:
        said = (f"... {len(rows) - ROWS} more rows, all in result.json (or with --all)", *said)
        rows = rows[:ROWS]
    return Table(table.columns, rows, table.left), said


def without_empty(table: Table) -> Table:
    """Return a table without its empty columns.

    >>> without_empty(Table(("name", "norm", "width"), (("fc", "2", "-"),))).columns
    ('name', 'norm')
    """
    empty = [c for i, c in enumerate(table.columns) if table.rows and all(row[i] == NOTHING for row in table.rows)]
    return functools.reduce(without_column, empty, table)


def without_column(table: Table, title: str) -> Table:
    """Return a table without one of its columns."""
    at = table.columns.index(title)
    rows = tuple((*row[:at], *row[at + 1 :]) for row in table.rows)
    return Table((*table.columns[:at], *table.columns[at + 1 :]), rows, table.left)


#: A run of equal blocks: path before its number, first and last number.
Run = tuple[tuple[str, ...], int, int]


def runs_of(blocks: Sequence[Mapping[str, Any]]) -> list[Run]:
    """Return every run of equal blocks in a module tree, outer ones first."""
    found: list[Run] = []
    for block in blocks:
        match = RUN.match(str(block["name"]))
        if match and int(block["repeat"]) > 1:
            base = tuple(part for part in match["base"].split(".") if part)
            found.append((base, int(match["first"]), int(match["last"])))
        found += runs_of(block["children"])
    return found


def folded(name: str, runs: Sequence[Run]) -> tuple[str, str]:
    """Return a module path as it is in the first of equal blocks, and with the range of their numbers.

    >>> folded("layers.3.norm", [(("layers",), 0, 11)])
    ('layers.0.norm', 'layers.0..11.norm')
    """
    path = name.split(".")
    shown = list(path)
    for base, first, last in runs:
        at = len(base)
        if len(path) <= at or tuple(path[:at]) != base:
            continue
        number, mark, call = path[at].partition("#")
        if number.isdigit() and first <= int(number) <= last:
            path[at] = f"{first}{mark}{call}"
            shown[at] = f"{first}..{last}{mark}{call}"
    return ".".join(path), ".".join(shown)


def _merged(name: str, rows: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    if len(rows) == 1:
        return rows[0]
    return (f"{name} (x{len(rows)})", *(span_text([row[i] for row in rows]) for i in range(1, len(rows[0]))))
