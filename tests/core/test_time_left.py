"""Estimates of the time left."""

from __future__ import annotations

from normscope.core.time_left import TimeLeft


def test_the_share_of_the_costs_counts_not_that_of_the_steps() -> None:
    """Nine of ten parts of the work are left after one of two steps."""
    left = TimeLeft([1.0, 9.0], clock=iter([100.0, 102.0]).__next__)
    assert left.seconds(1) == 18.0


def test_nothing_is_said_where_nothing_is_known_or_little_is_left() -> None:
    """Before the first step is done, and below two seconds."""
    assert TimeLeft([1.0]).text(0) == ""
    assert TimeLeft([1.0, 1.0], clock=iter([0.0, 1.0]).__next__).text(1) == ""
    assert TimeLeft([], clock=iter([0.0, 1.0]).__next__).text(0) == ""
