"""The JSON form: plain data, read back by types; what was changed is refused with its place."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from normscope.core.json_form import from_plain, read, to_plain
from normscope.core.result import Result
from normscope.core.value import Kind, Value
from report.samples import result

TWO = Value.of(2.0, Kind.CERTIFIED)


def test_plain_data() -> None:
    """Tuples become lists, keys become text, values and results their JSON forms; what is plain already stays."""
    assert to_plain({1: (True, None, "a", 3)}) == {"1": [True, None, "a", 3]}
    assert to_plain([-math.inf, TWO, Kind.LOWER]) == ["-inf", TWO.to_dict(), "lower"]
    assert to_plain(result().coverage) == {
        "ops": 5,
        "understood": 5,
        "parameters": 1.0,
        "parameters_total": 40,
        "opaque": [],
    }
    assert from_plain({"a": TWO.to_dict(), "b": 3, "c": {"d": 1}}) == {"a": TWO, "b": 3, "c": {"d": 1}}


def test_types_are_read_back() -> None:
    """Containers, choices, kinds, and numbers that JSON does not know."""
    assert read(tuple[tuple[int, ...], ...], [[1], [2, 3]]) == ((1,), (2, 3))
    assert read(dict[str, Value | None], {"a": TWO.to_dict(), "b": None}) == {"a": TWO, "b": None}
    assert read(int | str, "inf") == "inf"
    assert read(float | str, "inf") == math.inf
    assert read(float | None, None) is None
    assert math.isnan(read(float, None))
    assert read(Kind, "lower") is Kind.LOWER


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"end_to_end": {"global": 3.0}}, ".end_to_end['global'] is float, not Value"),
        ({"messages": ["a", 3]}, ".messages[1] is int, not str"),
        ({"effect": []}, ".effect is list, not dict"),
        ({"layers": [to_plain(result().layers[0]) | {"shape": ["a"]}]}, ".layers[0].shape[0] is str, not int"),
        ({"coverage": to_plain(result().coverage) | {"ops": True}}, ".coverage.ops is bool, not int"),
        ({"coverage": to_plain(result().coverage) | {"more": 1}}, ".coverage has an unknown field more"),
    ],
)
def test_the_first_fault_is_named(changes: dict[str, Any], said: str) -> None:
    """With its place, what it is and what it should be."""
    data = json.loads(result().to_json()) | changes
    with pytest.raises(ValueError) as refused:
        Result.from_dict(data)
    assert str(refused.value).endswith(said)
