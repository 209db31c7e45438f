"""Claims beside measurements: each in its row, with the word for what the run shows."""

from __future__ import annotations

import math

import pytest

from normscope.papers.than2025.figures.evidence import Evidence
from normscope.report.evidence import evidence_section
from normscope.report.table import plain_text


@pytest.mark.parametrize(("agrees", "word"), [(True, "agrees"), (False, "does not"), (None, "not claimed")])
def test_each_verdict_has_its_word(agrees: bool | None, word: str) -> None:
    """What the paper does not say is told as such."""
    section = evidence_section("fig1", "smoke", [Evidence("norms grow", "net", {"share": 1 / 3, "least": 2.0}, agrees)])
    assert section.table is not None
    assert section.table.rows == (("norms grow", "net", "share 0.3333, least 2", word),)


def test_the_section_names_the_figure_and_keeps_the_order() -> None:
    """One row for each claim and network, in the order they came; an empty table has none."""
    claims = [Evidence(claim, net, {}, True) for net in ("a", "b") for claim in ("one", "two")]
    section = evidence_section("fig2", "laptop", claims)
    assert section.title == "fig2, laptop scale"
    assert section.table is not None
    assert [row[:2] for row in section.table.rows] == [("one", "a"), ("two", "a"), ("one", "b"), ("two", "b")]
    empty = evidence_section("fig1", "smoke", []).table
    assert empty is not None
    assert empty.rows == ()


def test_numbers_past_all_bounds_are_shown() -> None:
    """An infinite bound is no reason to fail."""
    text = plain_text([evidence_section("fig1", "smoke", [Evidence("c", "net", {"x": math.inf}, None)])])
    assert "x inf" in text
