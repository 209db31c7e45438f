"""The table of a gap: the most expensive steps first, and what would lower it."""

from __future__ import annotations

from normscope.core.gap import CAUSES, Gap, Share
from normscope.report.gap import ADVICE, LARGEST_SHARES, gap_section


def test_the_most_expensive_steps_come_first_and_the_rest_is_counted() -> None:
    shares = tuple(Share(f"layer {i}", "activation patterns", 0.1 * i) for i in range(LARGEST_SHARES + 3))
    section = gap_section(Gap("variance_floor", shares))
    assert section.table is not None
    assert section.table.rows[0] == (f"layer {LARGEST_SHARES + 2}", "activation patterns", "+1.00")
    assert len(section.table.rows) == LARGEST_SHARES
    assert section.after[0] == "3 more steps add less"
    assert "variance-floor" in section.lines[0]


def test_what_costs_most_gets_advice() -> None:
    section = gap_section(Gap("global", (Share("a", "attention", 2.0), Share("b", "chains", -0.5))))
    assert section.after == (f"to reduce it first: {ADVICE['attention']}",)
    assert set(ADVICE) == set(CAUSES) - {"chains", "search"}
