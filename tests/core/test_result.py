"""Results: the JSON form is strict, holds everything, and gives back what was written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from normscope.core.json_form import SCHEMA_VERSION
from normscope.core.result import Result, Rows
from normscope.core.value import Kind, Value
from report.samples import deep, opaque, result

RESULTS: dict[str, Callable[[], Result]] = {
    "small": result,
    "with holes": lambda: result(coverage=opaque()),
    "deep": lambda: deep(40),
    "empty": lambda: result(normalizers=(), layers=(), end_to_end={}, statistics={}, effect={}, messages=(), blocks=()),
    "infinite": lambda: result(
        end_to_end={
            "global": Value(math.inf, Kind.CERTIFIED, statement="normscope F10", assumptions=("exact",)),
            "lower": Value(-math.inf, Kind.LOWER),
            "global_probabilistic": Value(2.5, Kind.PROBABILISTIC, mode="running", delta=1e-9),
            "variance_floor": None,
        }
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_what_is_written_is_read_back(name: str) -> None:
    """Every field, to the last bit of every logarithm."""
    first = RESULTS[name]()
    again = Result.from_dict(json.loads(first.to_json()))
    for field in fields(Result):
        assert getattr(again, field.name) == getattr(first, field.name), field.name
    assert again.to_json() == first.to_json()


def test_the_text_is_strict_json() -> None:
    """Infinities are words: no parser must know more than the standard."""

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    read = json.loads(RESULTS["infinite"]().to_json(), parse_constant=refuse)
    assert read["end_to_end"]["global"]["log"] == "inf"
    assert read["end_to_end"]["lower"]["log"] == "-inf"
    assert (read["schema_version"], read["kind"]) == (SCHEMA_VERSION, "capacity")


def test_every_field_is_in_the_json_form() -> None:
    """A field that is added is written, too."""
    assert set(result().to_dict()) == {"schema_version", "kind", "verdict", *(f.name for f in fields(Result))}


def test_what_is_not_a_number_is_not_known() -> None:
    """One fact that is not a number does not keep the rest from being written."""
    text = replace(result(), statistics={"samples": [1, {"x": math.nan}]}).to_json()
    assert "NaN" not in text
    assert Result.from_dict(json.loads(text)).statistics == {"samples": [1, {"x": None}]}


def test_infinities_are_numbers_again_wherever_they_stand() -> None:
    """And names that read like one stay names."""
    slides = Value(-math.inf, Kind.PRINTED)
    n = replace(result().normalizers[0], name="inf", floor=math.inf, details={"module": "-inf", "slides": slides})
    first = result(
        normalizers=(n,),
        statistics={"inputs": [{"low": -math.inf, "high": math.inf}], "before_activations": [{"name": "inf"}]},
        effect={"printed_product": {"log10": -math.inf, "kind": "printed", "note": "inf", "weights_log10": math.inf}},
    )
    again = Result.from_dict(json.loads(first.to_json()))
    assert (again.normalizers, again.statistics, again.effect) == (first.normalizers, first.statistics, first.effect)


@pytest.mark.parametrize("version", [None, 0, SCHEMA_VERSION + 1, str(SCHEMA_VERSION)])
def test_another_version_is_refused(version: object) -> None:
    """With both versions in the message."""
    data = result().to_dict() | {"schema_version": version}
    with pytest.raises(ValueError, match=f"Expected schema version {SCHEMA_VERSION}, got {version!r}"):
        Result.from_dict(data)


def test_results_of_before_curves_are_read() -> None:
    """A result without curves over the depth has none."""
    data = result().to_dict()
    del data["depth"]
    assert Result.from_dict(data).depth.names == ()


def test_it_is_saved_whole(tmp_path: Path) -> None:
    """Over what was there, ending in a new line; nothing else is left in the folder."""
    path = tmp_path / "result.json"
    path.write_text("old")
    assert result().save(path) == path
    assert path.read_text() == result().to_json() + "\n"
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


@dataclass(frozen=True)
class _Row:
    name: str
    value: int


ROWS = Rows((_Row("stem.conv1", 1), _Row("fc", 2)))


def test_a_row_has_a_position_and_a_name() -> None:
    assert ROWS["fc"] is ROWS[1] is ROWS[-1]
    assert ROWS[:1] == (ROWS["stem.conv1"],)
    assert [row.value for row in ROWS] == [1, 2]


def test_a_wrong_name_suggests_the_right_one() -> None:
    with pytest.raises(KeyError, match=r"No row named 'stem.conv2'. Did you mean stem.conv1?"):
        ROWS["stem.conv2"]
    with pytest.raises(KeyError, match=r"No row named 'zzz'\. Known names: stem\.conv1, fc\."):
        ROWS["zzz"]
    with pytest.raises(KeyError, match=r"Known names: none\."):
        Rows(())["zzz"]
