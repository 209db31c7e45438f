"""Points as lines."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from normscope.monitor.lines import Point, from_line, to_line, whole_lines

NUMBERS = some.floats(allow_nan=False) | some.just(-0.0)


@given(some.integers(0, 10**12), some.dictionaries(some.text(max_size=8), NUMBERS, max_size=4), some.text(max_size=9))
def test_a_point_survives(step: int, metrics: dict[str, float], note: str) -> None:
    line = to_line(Point(step, 1.25, metrics, note))
    assert line.count(b"\n") == 1
    assert from_line(line) == Point(step, 1.25, metrics, note)
    assert list(whole_lines(line + line[:-1])) == [line]


def test_lines_are_strict_json() -> None:
    line = to_line(Point(1, 0.0, {"a": math.nan, "b": -math.inf}))
    assert json.loads(line, parse_constant=pytest.fail)["metrics"] == {"a": "nan", "b": "-inf"}
    assert math.isnan(from_line(line).metrics["a"])


@pytest.mark.parametrize("line", [b"", b"{}", b"[1]", b"no", b'{"step": 1}', b'{"step": 1, "time": "x"}', b"\xff"])
def test_what_is_no_point_is_none(line: bytes) -> None:
    assert from_line(line) is None
