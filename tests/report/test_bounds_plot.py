"""The charts: a point for every bound, a line for every margin."""

from __future__ import annotations

import pytest

from normscope.analysis.bounds.result import BoundRow, BoundsResult
from normscope.core.result import Rows
from normscope.core.value import Kind, Value
from normscope.report.bounds_plot import plot_bounds


def test_points_and_lines() -> None:
    """Refused rows are left out; margins are drawn over their medians."""
    pytest.importorskip("matplotlib")
    rows = Rows(
        (
            BoundRow.of_value("a", Value.of(0.1, Kind.PROBABILISTIC), 10),
            BoundRow.of_value("b", Value(20.0, Kind.PRINTED), 10),
            BoundRow.refused("c", "no"),
        )
    )
    margins = {"raw": {"0.1": 1.0, "0.5": 2.0, "0.9": 3.0}, "other": {"refused": "no"}}
    result = BoundsResult("net", {"test_error": 0.05}, rows, margins)
    left, right = plot_bounds(result).axes
    assert [t.get_text() for t in left.get_yticklabels()] == ["b", "a"]
    assert list(right.lines[0].get_ydata()) == [0.5, 1.0, 1.5]
    assert result.plot().axes


def test_few_of_many_layers() -> None:
    """Four of them, the first and the last among these; multiples of the raw margins are no lines of their own."""
    pytest.importorskip("matplotlib")
    values = {"0.1": 1.0, "0.5": 2.0, "0.9": 3.0}
    names = ["raw", "certified distance", *(f"distance in {i}" for i in range(20))]
    result = BoundsResult("net", {"test_error": 0.05}, Rows(()), dict.fromkeys(names, values))
    drawn = [line.get_label() for line in plot_bounds(result).axes[1].lines if not line.get_label().startswith("_")]
    assert drawn == ["raw", "distance in 0", "distance in 6", "distance in 13", "distance in 19"]
