"""The whole registry of statements."""

from __future__ import annotations

from pathlib import Path

import normscope
from normscope.audits.statements import FOLDERS, every_statement

SOURCES = Path(normscope.__file__).parent


def test_every_folder_with_statements_is_walked() -> None:
    """A decorator in a folder nobody walks would not be found."""
    using = {
        file.relative_to(SOURCES).parts[0]
        for file in SOURCES.rglob("*.py")
        if "\n@statement(" in file.read_text() and file.parent.name != "core"
    }
    assert using <= set(FOLDERS)


def test_statements_are_ours_and_sorted() -> None:
    found = every_statement()
    assert all(s.function.startswith("normscope.") for s in found)
    assert list(found) == sorted(found, key=lambda s: (s.paper, s.number, s.function))
    assert len(set(found)) == len(found)
