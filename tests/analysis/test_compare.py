"""Comparison: what changed is what was changed, and nothing else."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from networks import points
from normscope import analyze
from normscope.analysis.checkpoint import analyze_checkpoint
from normscope.analysis.compare import Comparison, PartSignature, Quantity, align, compare
from normscope.core.errors import InputError
from normscope.core.finding import Finding, Severity
from normscope.core.value import Kind, Value

X = points(6, 4).float()


def _net(norm: type[nn.Module] = nn.BatchNorm1d) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), norm(5), nn.ReLU(), nn.Linear(5, 3)).eval()


def test_one_scaled_layer_is_the_only_one_that_changed() -> None:
    """By its factor, and so does the whole."""
    one, two = _net(), _net()
    with torch.no_grad():
        two[3].weight.mul_(10)
    found = compare({"one": analyze(one, X), "two": analyze(two, X)})
    changes = {row.name: row.largest_change for row in found.layers}
    assert changes == {"0": 0.0, "3": pytest.approx(1.0, abs=1e-6)}
    assert all(row.largest_change == 0.0 for row in found.normalizers)
    whole = {q.name: q.changes for q in found.end_to_end}
    assert whole["global"] == (0.0, pytest.approx(1.0, abs=1e-6))
    assert found.messages == ()


def test_another_normalizer_stands_at_the_same_place() -> None:
    """Its kind differs, its row is one."""
    found = compare({"bn": analyze(_net(), X), "ln": analyze(_net(nn.LayerNorm), X)})
    (row,) = found.normalizers
    assert row.kinds == ("batch_norm", "layer_norm")
    assert row.names == ("1", "1")


def test_a_missing_part_is_infinitely_changed_and_said() -> None:
    """The second network has one layer more."""
    longer = nn.Sequential(*_net(), nn.Linear(3, 3)).eval()
    found = compare({"a": analyze(_net(), X), "b": analyze(longer, X)})
    extra = found.layers[-1]
    assert extra.names == (None, "4")
    assert extra.largest_change == math.inf
    assert "1 of 4 parts are not in every model" in found.messages


def test_wrapped_models_are_matched_by_kind_shape_and_order() -> None:
    """And it is said."""
    model = _net()
    found = compare({"a": analyze(model, X), "b": analyze(nn.Sequential(copy.deepcopy(model)).eval(), X)})
    assert [row.names for row in found.layers] == [("0", "0.0"), ("3", "0.3")]
    assert any("different names" in message for message in found.messages)
    assert all(row.largest_change == 0.0 for row in found.layers)


def test_different_inputs_are_pointed_out() -> None:
    """Other statistics of BatchNorm, too."""
    found = compare({"a": analyze(_net(), X), "b": analyze(_net(), X, mode="batch")})
    assert any("modes differ" in message for message in found.messages)


def test_findings_are_new_or_gone_only_where_both_were_checked() -> None:
    """A stored result was not."""
    old, new = (Finding(code, Severity.WARNING, "0", "text") for code in ("NS101", "NS102"))
    result = analyze(_net(), X)
    found = compare({"a": result, "b": result, "c": result}, {"a": [old], "b": [new]})
    assert found.new_findings(1) == (new,)
    assert found.gone_findings(1) == (old,)
    assert found.new_findings(2) == found.gone_findings(2) == ()
    assert found.checked == (True, True, False)


def test_checkpoints_are_compared_by_tensor(tmp_path: Path) -> None:
    """Bare weights, without their model."""
    results = {}
    for name, factor in (("a", 1.0), ("b", 0.1)):
        state = _net().state_dict()
        state["3.weight"] = state["3.weight"] * factor
        torch.save(state, tmp_path / f"{name}.pt")
        results[name] = analyze_checkpoint(tmp_path / f"{name}.pt")
    found = compare(results)
    changed = {row.name: row.quantities[0].changes[1] for row in found.layers if row.largest_change > 1e-9}
    assert changed == {"3.weight": pytest.approx(-1.0, abs=1e-5)}


def test_models_and_bare_weights_are_not_mixed(tmp_path: Path) -> None:
    """Nor is one thing compared with nothing."""
    torch.save(_net().state_dict(), tmp_path / "a.pt")
    with pytest.raises(InputError, match="--model"):
        compare({"a": analyze(_net(), X), "b": analyze_checkpoint(tmp_path / "a.pt")})
    with pytest.raises(InputError, match="at least two"):
        compare({"a": analyze(_net(), X)})
    for wrong in ([analyze(_net(), X)], {"a": _net(), "b": _net()}):
        with pytest.raises(InputError, match="by name"):
            compare(wrong)  # type: ignore[arg-type]


def test_changes_of_what_is_infinite_or_zero() -> None:
    """Equal infinities did not change; from a number to none is infinite."""
    infinite, zero, one = (Value(x, Kind.CERTIFIED) for x in (math.inf, -math.inf, 0.0))
    assert Quantity("q", (infinite, infinite, one)).changes == (0.0, 0.0, -math.inf)
    assert Quantity("q", (zero, zero, one)).changes == (0.0, 0.0, math.inf)


def test_json_is_strict_and_complete(tmp_path: Path) -> None:
    """Every row with its values."""
    found = compare({"a": analyze(_net(), X), "b": analyze(_net(nn.LayerNorm), X)})
    body = json.loads(found.save(tmp_path / "c.json").read_text())
    assert body["kind"] == "comparison"
    assert body["models"] == ["a", "b"]
    assert len(body["layers"]) == 2
    assert isinstance(found, Comparison)
    value = Value.from_dict(body["layers"][0]["quantities"][0]["values"][0])
    assert value == found.layers[0].quantities[0].values[0]


def _parts(text: str) -> list[PartSignature]:
    """Return parts written as ``name:signature``, apart by blanks."""
    return [PartSignature(*word.split(":")) for word in text.split()]


def test_equal_names_meet_whatever_they_are() -> None:
    """A layer that was made wider is still that layer."""
    assert align([_parts("a:1 b:2"), _parts("a:9 b:2")]) == [(0, 0), (1, 1)]


def test_renamed_parts_meet_by_what_they_are_between_their_neighbours() -> None:
    """A wrapper in front of every name changes nothing."""
    assert align([_parts("x:1 y:2 z:1"), _parts("net.x:1 net.y:2 net.z:1")]) == [(0, 0), (1, 1), (2, 2)]
    assert align([_parts("x:1 y:2"), _parts("x:1 q:3")]) == [(0, 0), (None, 1), (1, None)]


def test_what_only_one_has_gets_a_row_where_it_stands() -> None:
    """Before the first common part, between, and after the last."""
    rows = align([_parts("a:1 b:2"), _parts("p:7 a:1 q:8 b:2 r:9")])
    assert rows == [(None, 0), (0, 1), (None, 2), (1, 3), (None, 4)]


def test_three_networks() -> None:
    """What the second has and the first has not can meet the third."""
    rows = align([_parts("a:1"), _parts("a:1 b:2"), _parts("b:2")])
    assert rows == [(0, 0, None), (None, 1, 0)]


def test_nothing_to_align() -> None:
    """No networks, or networks without parts."""
    assert align([]) == []
    assert align([[], []]) == []
    assert align([[], _parts("a:1")]) == [(None, 0)]


_COLUMNS = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from("xyz")), max_size=8, unique_by=lambda p: p[0]),
    min_size=1,
    max_size=4,
)


@given(_COLUMNS)
@settings(max_examples=200, deadline=None)
def test_every_part_is_in_exactly_one_row(
    columns: list[list[tuple[str, str]]],
) -> None:
    """Each part once; rows are as wide as there are networks; no row is empty."""
    parts = [[PartSignature(*pair) for pair in column] for column in columns]
    rows = align(parts)
    for i, column in enumerate(parts):
        assert sorted(row[i] for row in rows if row[i] is not None) == list(range(len(column)))
    assert all(len(row) == len(parts) and any(place is not None for place in row) for row in rows)
    assert [row[0] for row in rows if row[0] is not None] == list(range(len(parts[0])))
