"""Tables: plain text, and long ones folded or cut."""

from __future__ import annotations

from typing import Any

from normscope.report.table import ROWS, Section, Table, plain_text, shortened


def _block(name: str, repeat: int, *children: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "type": "", "repeat": repeat, "ops": [], "parameters": 0, "children": list(children)}


def test_rows_stay_on_one_line_however_wide() -> None:
    """Rows stay on one line however wide."""
    wide = "x" * 500
    text = plain_text([Section("t", table=Table(("a", "b"), ((wide, "1"), ("y", "22"))))])
    assert text.splitlines()[2].endswith("   1")
    assert max(map(len, text.splitlines())) > 500


def test_plain_text_is_ascii_without_boxes() -> None:
    """Plain text is ascii without boxes."""
    text = plain_text([Section("t", ("line",), Table(("a",), (("1",),)), ("after",)), Section("u")])
    assert text == "t\n  line\n  a\n  1\n  after\n\nu"
    assert text.isascii()


def test_words_flush_left_numbers_right() -> None:
    """Words flush left numbers right."""
    text = plain_text([Section("t", table=Table(("name", "n"), (("a", "1"), ("bbbbb", "22")), ("name",)))])
    assert text.splitlines()[1:] == ["  name    n", "  a       1", "  bbbbb  22"]


def test_short_tables_are_left_alone() -> None:
    """Short tables are left alone."""
    table = Table(("name",), (("a",),) * ROWS)
    assert shortened(table, (), everything=False) == (table, ())


def test_everything_means_everything() -> None:
    """Everything means everything."""
    table = Table(("name",), (("a",),) * (5 * ROWS))
    assert shortened(table, (), everything=True) == (table, ())


def test_equal_blocks_are_folded() -> None:
    """Equal blocks are folded."""
    rows = tuple((f"layers.{i}.{part}", str(i)) for i in range(24) for part in ("fc", "norm"))
    blocks = [_block("layers", 1, _block("layers.0..23", 24)), _block("head", 1)]
    short, said = shortened(Table(("name", "n"), (*rows, ("head", "7"))), blocks, everything=False)
    assert short.rows == (
        ("layers.0..23.fc (x24)", "0 .. 23"),
        ("layers.0..23.norm (x24)", "0 .. 23"),
        ("head", "7"),
    )
    assert "49 rows into 3" in said[0]


def test_runs_inside_runs_are_folded() -> None:
    """Runs inside runs are folded."""
    rows = tuple((f"layers.{i}.experts.{j}.w", "1") for i in range(8) for j in range(8))
    blocks = [_block("layers.0..7", 8, _block("layers.0.experts", 1, _block("layers.0.experts.0..7", 8)))]
    short, _ = shortened(Table(("name", "n"), rows), blocks, everything=False)
    assert short.rows == (("layers.0..7.experts.0..7.w (x64)", "1"),)


def test_modules_outside_a_run_are_not_folded_into_it() -> None:
    """Modules outside a run are not folded into it."""
    rows = tuple((f"layers.{i}.fc", str(i)) for i in range(40))
    short, said = shortened(Table(("name", "n"), rows), [_block("layers.0..37", 38)], everything=False)
    assert [row[0] for row in short.rows] == ["layers.0..37.fc (x38)", "layers.38.fc", "layers.39.fc"]
    assert len(said) == 1


def test_what_cannot_be_folded_is_cut_and_counted() -> None:
    """What cannot be folded is cut and counted."""
    rows = tuple((f"m{i}", "1") for i in range(ROWS + 12))
    short, said = shortened(Table(("name", "n"), rows), (), everything=False)
    assert len(short.rows) == ROWS
    assert said == ("... 12 more rows, all in result.json (or with --all)",)
