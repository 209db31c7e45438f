"""The frozen graph: references are found where they are."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from normscope.graph.ir import Graph, Named, Node, Ref, map_refs, references

X = Node("x", "input", shape=(2, 3), dtype="float32")


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
