"""Results in a notebook: escaped, tables with one cell per column, long ones folded."""

from __future__ import annotations

from normscope.report.notebook import FOLD, notebook_html
from normscope.report.table import Section, Table


def test_text_is_escaped_and_tables_are_whole() -> None:
    """Names cannot become markup, and every cell is there."""
    table = Table(("name", "norm"), (("<script>", "2.5"),), ("name",))
    page = notebook_html([Section("<b>", lines=("a & b",), table=table, after=("end",))])
    assert "<script>" not in page
    assert "<b>&lt;b&gt;</b>" in page
    assert "a &amp; b" in page
    assert '<td class="w">&lt;script&gt;</td><td>2.5</td>' in page


def test_long_tables_are_folded_but_for_the_first() -> None:
    """A section of many rows opens on a click."""
    long = Table(("name",), (("x",),) * (FOLD + 1))
    assert "<details>" not in notebook_html([Section("first", table=long)])
    assert notebook_html([Section("first"), Section("second", table=long)]).count("<details>") == 1
