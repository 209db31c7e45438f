"""Who stands before whom."""

from __future__ import annotations

from torch import nn

from checking import noise
from networks import Lambda
from normscope.doctor.neighbours import between, chain_before, producers, reach, reads
from normscope.doctor.subject import examine


def test_in_a_residual_network() -> None:
    """The way back ends where two meet; layers on every way are found."""
    model = Lambda(lambda s, x: s.c((x + s.b(s.a(x))).relu()), a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 2))
    graph = examine(model, noise(4, 4)).captured.graph
    last = next(n for n in graph if n.owner == "c" and "linear" in n.op)
    assert [n.op.split(".")[1] for n in chain_before(graph, last.name)] == ["relu", "add"]
    assert producers(graph, last.name) == {"b"}
    first = next(n for n in graph if n.owner == "a" and "linear" in n.op)
    assert {first.name, last.name} <= between(graph, [first.name], last.name)
    assert last.name not in reach([first.name], graph.users(), without=[n.name for n in graph if "relu" in n.op])
    assert reads(graph)[last.name][0] in graph.moving
