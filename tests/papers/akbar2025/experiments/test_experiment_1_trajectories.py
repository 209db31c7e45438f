"""The experiment runs, is the same for a seed, and judges each claim by what it measured."""

from __future__ import annotations

import json
import math

from normscope.papers.study import run_study


def test_ten_seeds_give_a_verdict_for_each_claim() -> None:
    study = run_study("geometry1", "smoke")
    assert study.name == "geometry1"
    assert study.settings["seeds"] >= 10
    assert {found.agrees for found in study.evidence} >= {True, None}
    json.dumps(study.to_dict(), allow_nan=False)
    numbers = [x for panel in study.charts for line in panel.lines for x in line.y]
    assert all(math.isfinite(x) for x in numbers)
    free = next(found for found in study.evidence if found.claim.startswith("free of scale"))
    assert free.measured["largest difference, degrees"] < 1e-3  # the paper's invariance, exact at eps = 0
