"""Bounds as a table and as charts: every row, every reason, a point for every bound, a line for every margin."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from normscope.analysis.bounds.result import BoundRow, BoundsResult
from normscope.core.result import Rows
from normscope.core.value import Kind, Value
from normscope.generalization.bench.run import try_bound
from normscope.report.bounds import bench_sections, bounds_sections, plot_bounds
from normscope.report.table import plain_text

TRUTH = {"train_error": 0.01, "test_error": 0.08, "gap": 0.07, "train_samples": 50, "test_samples": 10, "delta": 0.05}


def bounds_result() -> BoundsResult:
    """Return a table with a certificate, a printed bound and a refused one."""
    rows = (
        BoundRow.of_value("held-out", Value.of(0.09, Kind.PROBABILISTIC, statement="clopper1934"), 10),
        BoundRow.of_value("norms", Value(90.0, Kind.PRINTED, statement="x"), 10),
        BoundRow.refused("chain", "a <skip>"),
    )
    quantiles = {"0.1": 0.5, "0.5": 2.0}
    margins = {"raw": quantiles, "over spectral complexity": {"refused": "no chain"}}
    return BoundsResult("<net>", TRUTH, Rows(rows), margins)


def test_a_reason_is_given_once_for_all_bounds_it_refuses() -> None:
    """Their names have commas."""
    found = bounds_result()
    rows = Rows((*found.rows, BoundRow.refused("Theorem 20, printed", "a <skip>")))
    assert "chain; Theorem 20, printed: a <skip>" in plain_text(bounds_sections(replace(found, rows=rows)))


def test_text() -> None:
    """Errors, values, what is vacuous, what is refused and why."""
    text = plain_text(bounds_sections(bounds_result()))
    for words in (
        "training error 0.01",
        "test error 0.08",
        "0.09",
        "e+39",
        "vacuous",
        "informative",
        "chain: a <skip>",
        "over spectral complexity: no chain",
    ):
        assert words in text
    assert "best certificate for this network: held-out" in text
    assert "10 %" in text


def test_chart() -> None:
    """One line per status, refused rows left out, the test error across."""
    chart = bounds_sections(bounds_result())[0].chart
    assert chart is not None
    assert chart.places == ("held-out", "norms")
    assert (chart.x_title, chart.y_title) == ("bound", "error at most")
    assert {line.label: line.log10 for line in chart.lines} == {
        "certificate": (pytest.approx(math.log10(0.09)), None),
        "scale only": (None, pytest.approx(90 / math.log(10))),
    }
    assert chart.baseline == pytest.approx(math.log10(0.08))


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
    assert left.lines[0].get_label() == "test error"
    assert left.lines[0].get_xdata()[0] == pytest.approx(math.log10(0.05))
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


def test_verdicts_of_the_bench() -> None:
    """Broken ones say so first; problems a bound says nothing about are named."""
    text = plain_text(bench_sections(try_bound("than-phan", draws=15)))
    assert "broken: it fails more often than 5 %" in text
    assert "memorizer" in text
    text = plain_text(bench_sections(try_bound("pac-bayes-kl", draws=3)))
    assert "not broken" in text
    assert "no bound" in text
