"""Where samples meet: operation by operation, whatever the values of the network are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, captured_of, points
from normscope.graph.samples import Layout, meeting


@pytest.mark.parametrize("shape", [(3, 4), (12,), (2, 3, 2)])
def test_parts_are_those_of_each_sample(shape: tuple[int, ...]) -> None:
    """Put together along the axis again they are the value."""
    value = torch.arange(24.0).reshape(-1, *shape[1:]) if len(shape) > 1 else torch.arange(12.0)
    count, length = 3, value.shape[0]
    for outer in (o for o in range(1, length + 1) if length % (o * count) == 0):
        layout = Layout(0, outer, length // (outer * count))
        parts = layout.parts(value, count)
        pieces = [part.unflatten(0, (outer, layout.inner)) for part in parts]
        assert torch.equal(torch.stack(pieces, 1).flatten(0, 2), value)


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (lambda x: x.relu() - x.relu().mean(0), "aten.mean.dim"),
        (lambda x: x + torch.relu(x.sum(0) - 1e9), "aten.sum.dim_IntList"),
        (lambda x: x + x[40:].sum(0), "aten.slice.Tensor"),
        (lambda x: x @ x.flip(0).T, "aten.flip.default"),
        (lambda x: x / x.shape[0], "aten.div.Tensor"),
    ],
)
def test_the_operation_is_named(function: Callable[[Tensor], Tensor], op: str) -> None:
    """The first one that an output depends on."""
    captured = captured_of(Lambda(lambda s, x: function(x), p=nn.Parameter(torch.zeros(1).double())), points(4, 6))
    found = meeting(captured.graph, captured.tensors, captured.example)
    assert found is not None
    assert found.op == op


def test_what_is_not_used_is_no_meeting() -> None:
    """A sum over the batch that nothing reads is nobody's."""
    model = Lambda(lambda s, x: (x.max(), x.tanh())[1], p=nn.Parameter(torch.zeros(1).double()))
    captured = captured_of(model, points(4, 6))
    assert meeting(captured.graph, captured.tensors, captured.example) is None


def test_some_of_several_values_may_belong_to_samples() -> None:
    """Half of a split along features does, and both values of a maximum along them."""
    model = Lambda(lambda s, x: x.split(3, -1)[0] + x.max(-1, keepdim=True)[0], p=nn.Parameter(torch.zeros(1).double()))
    captured = captured_of(model, points(4, 6))
    assert meeting(captured.graph, captured.tensors, captured.example) is None


def test_nothing_is_touched() -> None:
    """Weights, example and random numbers are as they were."""
    captured = captured_of(
        nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.ReLU(inplace=True)).double(), points(4, 6)
    )
    before = [t.clone() for t in (*captured.tensors.values(), *captured.example)]
    state = torch.get_rng_state()
    meeting(captured.graph, captured.tensors, captured.example)
    assert torch.equal(state, torch.get_rng_state())
    after = (*captured.tensors.values(), *captured.example)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
