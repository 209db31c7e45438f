"""Options shared by several verbs."""

from __future__ import annotations

from normscope.cli.options import split_commas


def test_lists_with_commas() -> None:
    """Blanks and empty parts do not count."""
    assert split_commas(" NS101 ,,NS102,") == ["NS101", "NS102"]
    assert split_commas(None) == split_commas("") == []
