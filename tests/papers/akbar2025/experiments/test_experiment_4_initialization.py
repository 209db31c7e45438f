"""The experiment runs, is the same for a seed, and judges each claim by what it measured."""

from __future__ import annotations

import json
import math

import pytest

from normscope.papers.study import run_study


@pytest.mark.turns(2)
def test_ten_seeds_give_a_verdict_for_each_claim() -> None:
    study = run_study("geometry4", "smoke")
    assert study.name == "geometry4"
    assert study.settings["seeds"] >= 10
    assert {found.agrees for found in study.evidence} >= {True, None}
    json.dumps(study.to_dict(), allow_nan=False)
    numbers = [x for panel in study.charts for line in panel.lines for x in line.y]
    assert all(math.isfinite(x) for x in numbers)
    claims = {found.claim: found for found in study.evidence}
    small = claims["with BatchNorm training proceeds from very small weights"]
    assert small.agrees is False  # eps sets a floor
