"""Parts of a graph replayed on other values, and normalizers checked on numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, captured_of, points
from normscope.graph.recognise import name_of
from normscope.operators.normalization import Spread
from normscope.operators.replay import divides_by_spread, replay


def _last(model: nn.Module, x: Tensor, name: str) -> tuple[object, object, object]:
    captured = captured_of(model, x)
    node = [n for n in captured.graph if name_of(n) == name][-1]

    def constant(name: str) -> Tensor | None:
        found = captured.graph[name]
        return captured.tensors[found.target] if found.op in ("parameter", "buffer") else None

    return captured.graph, node, constant


def test_a_part_is_replayed_in_float64() -> None:
    """A float32 graph on a float64 probe gives the float64 function of it, parameters included."""
    model = Lambda(lambda s, x: (x.relu() * s.w).exp(), w=nn.Parameter(torch.tensor([0.5, 2.0])))
    graph, node, constant = _last(model, torch.ones(3, 2), "exp")
    probe = points(3, 2)
    source = next(n.name for n in graph if n.op == "input")
    found = replay(graph, node, source, probe, constant)
    assert found is not None
    assert found.dtype == torch.float64
    assert torch.equal(found, (probe.relu() * torch.tensor([0.5, 2.0]).double()).exp())


def test_what_depends_on_more_than_the_source_is_not_replayed() -> None:
    """The product also reads the input itself, of which nothing is known."""
    model = Lambda(lambda s, x: x * x.relu().exp(), w=nn.Parameter(torch.ones(1)))
    graph, node, constant = _last(model, torch.ones(3, 2), "mul")
    source = next(n.name for n in graph if name_of(n) == "relu")
    assert replay(graph, node, source, points(3, 2), constant) is None


SPREADS = [
    Spread((2, 6), (1,), 1e-5, True),
    Spread((2, 6), (1,), 1e-5, False),
    Spread((2, 6), (1,), 1e-3, False, 6.0, "max"),
    Spread((2, 6), (1,), 1e-2, True, 1.2, "outside"),
    Spread((2, 6), (1,), 0.0, True),
]
WRONG: dict[str, Callable[[Spread], Spread]] = {
    "eps": lambda s: replace(s, eps=s.eps * 1.5 + 1e-6),
    "factor": lambda s: replace(s, factor=s.factor * 1.01),
    "axes": lambda s: replace(s, axes=(0,)),
    "centring": lambda s: replace(s, centered=not s.centered),
}


@pytest.mark.parametrize("spread", SPREADS)
def test_a_normalizer_agrees_with_itself_alone(spread: Spread) -> None:
    """Any change of stabilizer, factor, axes or centring shows."""
    assert divides_by_spread(spread, spread.normalize) is True
    for name, change in WRONG.items():
        assert divides_by_spread(change(spread), spread.normalize) is False, name


def test_a_stabilizer_elsewhere_shows() -> None:
    """Inside the root, outside it, or as a floor: three different functions."""
    inside = Spread((2, 6), (1,), 1e-4, False)
    for where, eps in (("outside", 1e-2), ("max", 1e-2), ("outside", 1e-4)):
        assert divides_by_spread(replace(inside, where=where, eps=eps), inside.normalize) is False


def test_nothing_is_said_without_values() -> None:
    """A function that cannot be evaluated is neither."""
    assert divides_by_spread(SPREADS[0], lambda x: None) is None
    assert divides_by_spread(SPREADS[0], lambda x: x.sum(1)) is False
