"""Results in Python: one line, a summary, a notebook, a table."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

import normscope
from normscope.core.display import cells, frame
from normscope.core.errors import MissingDependencyError
from normscope.core.value import Kind, Value
from report.samples import result


def test_values_become_a_number_and_its_kind() -> None:
    """Also what is attained, in the word used everywhere; nested data has no cell."""
    row = cells(result().layers[0])
    assert row["name"] == "fc"
    assert (row["upper_kind"], row["lower_kind"]) == ("certified", "attained")
    assert row["upper"] == pytest.approx(2.0)
    assert row["shape"] == (4, 4)
    assert "details" not in cells(result().normalizers[0])


def test_frames() -> None:
    """Layers and normalizers of a result; a mapping has a name and a value in each row."""
    pandas = pytest.importorskip("pandas")
    table = result().to_frame()
    assert isinstance(table, pandas.DataFrame)
    assert list(table["role"]) == ["layer", "layer", "normalizer"]
    assert list(table["name"]) == ["fc", "out", "norm"]
    assert frame({"a": Value.of(1.0, Kind.LOWER)}).to_dict("records") == [
        {"name": "a", "value": 1.0, "value_kind": "attained"}
    ]


def test_without_pandas_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is optional."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="pip install pandas"):
        result().to_frame()


def test_every_verb_returns_something_to_read() -> None:
    """Also where the rows of a table are inside other objects: no cell is lost, none is an object."""
    pytest.importorskip("pandas")
    nets = [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval() for _ in range(2)]
    looks = {name: normscope.analyze(net, fast=True) for name, net in zip("ab", nets, strict=True)}
    results: list[tuple[Any, set[str]]] = [
        (normscope.explain("certified"), {"kind", "name", "says"}),
        (normscope.audit(only=["001-L1"]), {"id", "paper", "place", "verdict", "found"}),
        (normscope.extremal("theorem-6"), {"name", "value", "value_kind"}),
        (normscope.decompose(), {"name", "value"}),
        (normscope.statements(), {"paper", "number", "holds", "function"}),
        (normscope.compare(looks), {"part", "name", "number", "a", "a_kind", "b", "b_kind"}),
    ]
    for one, named in results:
        assert "\n" not in repr(one)
        assert len(repr(one)) < 200
        assert str(one) == one.summary()
        assert "object at" not in str(one)
        assert one._repr_html_().startswith("<style>")
        table = one.to_frame()
        assert named <= set(table.columns), table.columns
        assert len(table)


def test_results_of_other_verbs_show_themselves() -> None:
    """A check, a fix and the symmetries of a small network: one line as repr, text, and HTML without the object."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()
    data = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    found = [normscope.check(model, data), normscope.fix(model, data), normscope.symmetry(model, data)]
    for one in found:
        assert "\n" not in repr(one)
        assert type(one).__name__ in repr(one)
        assert str(one) == one.summary()
        assert one._repr_html_().startswith("<style>")
    assert "NS101 warning" in found[0].summary()
