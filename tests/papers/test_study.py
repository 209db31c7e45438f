"""Lines, panels and studies as data."""

from __future__ import annotations

import json
import math

import pytest

from normscope.core.errors import InputError
from normscope.papers.study import Study, StudyChart, StudyLine, run_study


def test_a_line_over_seeds_has_median_and_range() -> None:
    line = StudyLine.over_seeds("loss", [1, 2], [[1.0, 9.0], [2.0, 8.0], [6.0, 7.0]])
    assert (line.y, line.low, line.high) == ((2.0, 8.0), (1.0, 7.0), (6.0, 9.0))


def test_a_study_is_strict_json_even_where_numbers_are_not_finite() -> None:
    panel = StudyChart("t", "x", "y", (StudyLine("a", (1.0,), (math.inf,)),), log_y=True)
    study = Study("s", "title", "smoke", {"seed": 0}, (panel,))
    text = json.dumps(study.to_dict(), allow_nan=False)
    assert json.loads(text)["panels"][0]["lines"][0]["y"] == [None]


def test_unknown_names_and_scales_are_refused() -> None:
    with pytest.raises(InputError, match="Unknown study 'x'"):
        run_study("x")
    with pytest.raises(InputError, match="Unknown scale 'x'"):
        run_study("wn-depth", "x")
