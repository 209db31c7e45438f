"""Results on weights: the JSON form is strict, holds everything, and gives back what was written."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from normscope.core.json_form import SCHEMA_VERSION
from normscope.core.value import Kind, Value
from normscope.lipschitz.weights.result import WeightResult, WeightRow

TWO = Value.of(2.0, Kind.CERTIFIED, domain="these data points", mode="running", statement="normscope F13")
FULL = WeightRow(
    name="fc.weight",
    shape=(3, 2),
    uses=2,
    operation="matrix",
    effective=True,
    outputs={"global": TWO, "global_small": Value.of(1.5, Kind.CERTIFIED)},
    input_norm=Value.of(4.0, Kind.CERTIFIED, assumptions=("measured",)),
    constants={"global": Value(math.inf, Kind.CERTIFIED), "variance_floor": TWO},
    attained=Value.of(1.0, Kind.LOWER),
    attained_output=Value.of(0.5, Kind.LOWER),
    stacked={"certified": TWO, "attained": Value.of(1.25, Kind.LOWER)},
    printed=Value.of(3.0, Kind.PRINTED),
    printed_is_bound=True,
    unnormalized=Value.of(7.0, Kind.CERTIFIED),
    scale_free="norm",
    notes=("scale-invariant", "shared"),
)
BARE = WeightRow("fc.bias", (), 1, "diagonal", False, {"global": TWO})
RESULT = WeightResult(
    {"name": "net", "parameters": 9},
    {"blocks": []},
    (FULL, BARE),
    {"certified": TWO},
    {"data": 3, "jacobians": 1},
    1e-13,
    ("a message",),
)


@pytest.mark.parametrize("residual", [None, 1e-13, math.inf])
def test_what_is_written_is_read_back(residual: float | None) -> None:
    """Every field, also a residual that is not known or infinite."""
    first = replace(RESULT, residual=residual)
    again = WeightResult.from_dict(json.loads(first.to_json()))
    for field in fields(WeightResult):
        assert getattr(again, field.name) == getattr(first, field.name), field.name
    assert again.to_json() == first.to_json()


def test_the_best_is_the_least_proved() -> None:
    """Of all domains; there is none without data."""
    assert FULL.best == TWO
    assert BARE.best is None
    assert replace(FULL, constants={"global": Value(math.inf, Kind.CERTIFIED)}).best == Value(math.inf, Kind.CERTIFIED)


@pytest.mark.parametrize(
    "change", [{"kind": "capacity"}, {"kind": None}, {"schema_version": SCHEMA_VERSION + 1}, {"schema_version": None}]
)
def test_other_documents_are_refused(change: dict[str, object]) -> None:
    """Those of other kinds, and of other versions."""
    with pytest.raises(ValueError, match=r"Expected (a result of kind 'weight-lipschitz'|schema version)"):
        WeightResult.from_dict(RESULT.to_dict() | change)


def test_it_is_saved_whole(tmp_path: Path) -> None:
    """Over what was there, ending in a new line."""
    path = tmp_path / "weights.json"
    path.write_text("old")
    assert RESULT.save(path) == path
    assert path.read_text() == RESULT.to_json() + "\n"
    assert json.loads(path.read_text())["kind"] == "weight-lipschitz"
    assert [p.name for p in tmp_path.iterdir()] == ["weights.json"]
