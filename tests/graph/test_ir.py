"""The frozen graph: every argument survives the JSON round trip, and references are found where they are."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.graph import ir
from normscope.graph.ir import Graph, Named, Node, Ref, map_refs, references

X = Node("x", "input", shape=(2, 3), dtype="float32")
LITERALS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.builds(Ref, st.sampled_from(["x", "y", "ref"])),
    st.builds(Named, st.sampled_from(["dtype", "device", "layout", "memory_format"]), st.text(max_size=6)),
)
ARGUMENTS = st.recursive(LITERALS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=8)
NODES = st.builds(
    Node,
    name=st.text(min_size=1, max_size=4),
    op=st.sampled_from(["aten.add.Tensor", "getitem", "python.mul", "parameter"]),
    args=st.lists(ARGUMENTS, max_size=3).map(tuple),
    kwargs=st.dictionaries(st.text(max_size=3), ARGUMENTS, max_size=2).map(lambda d: tuple(sorted(d.items()))),
    owner=st.text(max_size=3),
    owner_type=st.text(max_size=3),
    target=st.text(max_size=3),
    shape=st.one_of(st.none(), st.lists(st.integers(-1, 9), max_size=3).map(tuple)),
    dtype=st.sampled_from(["", "float32", "int64"]),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(nodes=st.lists(NODES, max_size=4, unique_by=lambda n: n.name), notes=st.lists(st.text(max_size=5), max_size=2))
def test_any_graph_survives_the_round_trip(nodes: list[Node], notes: list[str]) -> None:
    """Types of numbers, empty shapes and nested references included."""
    graph = Graph(tuple(nodes), "dispatch", "7", ("out",), tuple(notes))
    text = graph.to_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    again = Graph.from_json(text)
    assert again == graph
    for ours, theirs in zip(again, graph, strict=True):
        assert repr(ours) == repr(theirs)  # 1 is not 1.0 is not True


def test_a_scalar_has_a_shape_and_a_tuple_has_none() -> None:
    """The empty shape is not a missing one."""
    graph = Graph((Node("a", "aten.sum.default", shape=()), Node("b", "aten.lstm.input", shape=None)))
    again = Graph.from_json(graph.to_json())
    assert again["a"].shape == ()
    assert again["b"].shape is None


def test_numbers_that_are_not_json() -> None:
    """Infinities and NaN are stored by name."""
    graph = Graph((Node("m", "aten.full.default", ((2,), -math.inf, math.inf, math.nan)),))
    args = Graph.from_json(graph.to_json())["m"].args
    assert args[1:3] == (-math.inf, math.inf)
    assert math.isnan(args[3])


def test_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old files say so instead of being misread."""
    text = Graph((X,)).to_json()
    monkeypatch.setattr(ir, "FORMAT", 2)
    with pytest.raises(ValueError, match="Expected graph format 2, got 1"):
        Graph.from_json(text)


def test_references_are_found_in_order_and_once() -> None:
    """In nested arguments and in keyword arguments."""
    node = Node("n", "aten.cat.default", ((Ref("b"), Ref("a"), (None, Ref("b"))), 1), (("other", Ref("c")),))
    assert [r.name for r in references(node.args)] == ["b", "a", "b"]
    assert node.inputs() == ("b", "a", "c")
    assert map_refs(node.args, lambda r: r.name.upper()) == [["B", "A", [None, "B"]], 1]


def test_the_graph_knows_places_and_users() -> None:
    """Who reads what, and when."""
    y = Node("y", "aten.relu.default", (Ref("x"),))
    z = Node("z", "aten.add.Tensor", (Ref("x"), Ref("y")))
    i = Node("i", "python.mul", (2, 3))
    g = Node("g", "getitem", (Ref("z"), 0))
    graph = Graph((X, y, z, i, g, Node("output", "output", (Ref("g"),))))
    assert graph.users() == {"x": ["y", "z"], "y": ["z"], "z": ["g"], "i": [], "g": ["output"], "output": []}
    assert [n.name for n in graph.calls()] == ["y", "z"]
    assert graph.position("z") == 2
    assert graph["z"] is z
    assert list(graph) == list(graph.nodes)
    with pytest.raises(KeyError):
        graph["nothing"]


@pytest.mark.parametrize("thing", [X, Graph((X,)), Ref("x"), Named("dtype", "float32")])
def test_nothing_can_be_changed(thing: Any) -> None:
    """Graphs are shared between analyses."""
    field = dataclasses.fields(thing)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(thing, field, None)
