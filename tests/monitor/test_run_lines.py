"""Points as lines."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from normscope.monitor.run_lines import Point, from_line, to_line, whole_lines

NUMBERS = some.floats(allow_nan=False) | some.just(-0.0)


@pytest.mark.turns(2)
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


@pytest.mark.parametrize("step", [-1, '"x"', "null", "1e999", "NaN"], ids=lambda step: str(step)[:20])
def test_steps_that_cannot_be_are_damage(step: object) -> None:
    """A step is a number that is not negative."""
    line = '{"step": %s, "time": 1, "metrics": {"a": 1}}'
    assert from_line((line % step).encode()) is None
    assert from_line((line % 0).encode()) == Point(0, 1.0, {"a": 1.0})


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 1, "time": NaN, "metrics": {}}\n',
        b'{"step": 1, "time": 1e999, "metrics": {}}\n',
        b'{"step": 1, "time": 1, "metrics": null}\n',
        b'{"step": 1, "time": 1, "metrics": {"a": null}}\n',
    ],
)
def test_damaged_lines_are_no_points(line: bytes) -> None:
    """However they are damaged."""
    assert from_line(line) is None


def test_a_note_that_is_null_is_none() -> None:
    assert from_line(b'{"step": 1, "time": 1, "metrics": {}, "note": null}') == Point(1, 1.0)


def test_lines_end_at_newlines_alone() -> None:
    """So that the lengths of the lines add up to what was read."""
    content = b"a\rb\nc\x0bd\r\n"
    assert list(whole_lines(content + b"e\r")) == [b"a\rb\n", b"c\x0bd\r\n"]
