"""Measures against gaps: the study runs, and its table is that of the coefficients."""

from __future__ import annotations

import pytest

from normscope.papers.study import run_study
from normscope.papers.than2025.ranking_study import _table


def test_the_table_orders_by_tau() -> None:
    """A measure that follows the gap, one that follows it backwards, and one that some run does not have."""
    gaps = [0.1, 0.2, 0.3, 0.4]
    found = [{"back": -g, "right": g} | ({"rare": 1.0} if g > 0.1 else {}) for g in gaps]
    settings = [{"width": w, "rate": r, "seed": 0} for w in (8, 16) for r in (0.1, 0.2)]
    table = _table(found, gaps, settings)
    assert list(table) == ["right", "back"]
    assert table["right"]["tau"] == pytest.approx(1.0)
    assert table["back"]["granulated"] == pytest.approx(-1.0)
    assert table["right"]["information"] == pytest.approx(100.0)


@pytest.mark.turns(10)
def test_the_study_runs() -> None:
    """At the smallest scale: every measure of every run, and the claims."""
    study = run_study("ranking", "smoke")
    table = study.settings["measures"]
    assert len(study.settings["gaps"]) == 4
    for name in ("parameters", "log flatness, relative (1/sigma^2)", "log PAC-Bayes from the start, by magnitude"):
        assert set(table[name]) == {"tau", "granulated", "information"}
    assert len(study.evidence) == 3
