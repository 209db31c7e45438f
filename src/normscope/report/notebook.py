"""Sections of a report as an HTML fragment for notebooks, in the colours of the notebook."""

import html
import re
from collections.abc import Iterable

from normscope.report.table import Section, Table

_STYLE = (
    "<style>.normscope table{border-collapse:collapse;margin:.3em 0 1em}"
    ".normscope td,.normscope th{padding:.15em .7em;text-align:right;background:none;white-space:nowrap}"
    ".normscope td{vertical-align:baseline}.normscope td.w:last-child{white-space:normal;min-width:11em}"
    ".normscope .w{text-align:left}.normscope div{overflow-x:auto}"
    ".normscope p{margin:.2em 0}.normscope .quiet{opacity:.7}</style>"
)


def notebook_html(sections: Iterable[Section]) -> str:
    """Return sections as HTML; long tables after the first section are collapsed.

    >>> "<b>fc &lt;1&gt;</b>" in notebook_html([Section("fc <1>", lines=("one line",))])
    True
    """
    blocks = []
    for index, section in enumerate(sections):
        title = html.escape(section.title)
        body = "".join(f"<p>{_prose(line)}</p>" for line in (*section.sentences, *section.lines))
        body += "" if section.table is None else _table(section.table)
        body += "".join(f'<p class="quiet">{_prose(line)}</p>' for line in section.after)
        if index and section.table is not None and len(section.table.rows) > FOLD:
            blocks.append(f"<details><summary><b>{title}</b></summary>{body}</details>")
        else:
            blocks.append(f"<p><b>{title}</b></p>{body}")
    return f'{_STYLE}<div class="normscope">{"".join(blocks)}</div>'


def _prose(line: str) -> str:
    """Return a line as HTML: text between backticks as code, indentation kept.

    >>> _prose("  run `normscope fix` if a < b")
    '&emsp;run <code>normscope fix</code> if a &lt; b'
    """
    said = line.lstrip(" ")
    return "&emsp;" * ((len(line) - len(said)) // 2) + re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(said))


#: Rows beyond which a table is folded.
FOLD = 20


def _table(table: Table) -> str:
    """Return a table that scrolls on its own if it is too wide."""
    sides = [' class="w"' if column in table.left else "" for column in table.columns]
    head = "".join(f"<th{side}>{html.escape(c)}</th>" for side, c in zip(sides, table.columns, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{side}>{html.escape(c)}</td>" for side, c in zip(sides, row, strict=True)) + "</tr>"
        for row in table.rows
    )
    return f"<div><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
