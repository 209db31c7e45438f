"""Where samples meet: operation by operation, whatever the values of the network are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, LambdaOfTwo, captured_of, points, seeded
from normscope.analysis.context import uses_batch_statistics
from normscope.graph.sample_coupling import Layout, _close, meeting, where_samples_meet
from normscope.operators.program import build_program


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


COUPLED: dict[str, Callable[[Tensor], object]] = {
    "softmax over the batch": lambda x: x.softmax(0),
    "centred over the batch": lambda x: x - x.mean(0),
    "sum over the batch": lambda x: x.sum(0),
    "mean of everything": lambda x: x.mean(),
    "products of samples": lambda x: x @ x.T,
    "neighbour": lambda x: x + x.roll(1, 0),
    "one coupled output of two": lambda x: (x.relu(), x.sum()),
    "batch statistics": lambda x: (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt(),
    "cumulative": lambda x: x.flip(0).cumsum(0),
    "cumulative from the first": lambda x: x.cumsum(0),
    "from the first": lambda x: x - x[:1],
    "from the last": lambda x: x - x[-1:],
    "the one before": lambda x: x + torch.cat([torch.zeros_like(x[:1]), x[:-1]]),
    "how many there are": lambda x: x * x.shape[0],
    "how many there are beyond four": lambda x: x * max(x.shape[0], 4),
    "the sixth and later": lambda x: x + x[5:].sum(0),
    "every fifth": lambda x: x + x[::5].sum(0),
    "only between two values": lambda x: x + torch.relu(1e-3 - (x.mean(0, keepdim=True) - 7.3).abs()),
    "a largest number": lambda x: x / x.abs().max().clamp_min(1e6),
    "whether any is not a number": lambda x: torch.where(x.isnan().any(), 0.0, x),
    "place in the batch": lambda x: x + torch.arange(x.shape[0]).to(x)[:, None],
    "a gate that is closed": lambda x: x + 0.0 * x.sum(0),
    "counted over the batch": lambda x: x * (x > 50).long().cumsum(0),
    "a row read at a place": lambda x: x[(x > 50).any(-1).long()],
    "only where the mean is large": lambda x: x + 10 * torch.relu(x.mean(0, keepdim=True) - 15.0),
    "only where the mean is far below zero": lambda x: x + 10 * torch.relu(-x.mean(0, keepdim=True) - 15.0),
    "where the sample itself is large": lambda x: x + torch.relu(x - 9.0) * x.mean(0, keepdim=True),
    "steps of a recurrence": lambda x: torch.rnn_relu(
        x[:, None],
        torch.zeros(1, 1, 6).to(x),
        [torch.ones(6, 6).to(x), torch.ones(6, 6).to(x)],
        False,
        1,
        0.0,
        False,
        False,
        False,
    )[0],
    "causal attention, steps first": lambda x: torch.nn.functional.scaled_dot_product_attention(
        x[None], x[None], x[None], is_causal=True
    )[0],
}
INDEPENDENT: dict[str, Callable[[Tensor], object]] = {
    "entrywise": lambda x: x.tanh(),
    "softmax over features": lambda x: x.softmax(-1),
    "samples and features in one axis": lambda x: x.reshape(-1),
    "pairs of features": lambda x: x.reshape(-1, 2),
    "samples last": lambda x: x.T.relu(),
    "sum of each": lambda x: x.sum(-1),
    "nothing of the input": lambda x: torch.ones(3) * x.shape[1],
    "features first in one axis": lambda x: x.T.reshape(-1),
    "places in one axis, sample in the middle": lambda x: x.reshape(-1, 2, 3).transpose(0, 1).reshape(-1, 3),
    "own row by its number": lambda x: x[torch.arange(x.shape[0]), x.argmax(-1)],
    "computed and not used": lambda x: (x.sum(0), x.tanh())[1],
    "as large as the batch": lambda x: torch.cat([x, x.new_zeros(x.shape[0], 2)], -1),
    "samples as groups": lambda x: torch.nn.functional.conv1d(
        x.reshape(1, -1, 1), x.reshape(-1, 6, 1), groups=x.shape[0]
    ),
    "square root of what may be negative": lambda x: x.sqrt(),
    "by name": lambda x: {"a": x.relu(), "b": x.sum(-1, keepdim=True)},
}
BATCHES = {"normal": points(4, 6), "equal": torch.ones(4, 6), "zero": torch.zeros(4, 6), "one": points(1, 6)}


def _model(function: Callable[[Tensor], object]) -> nn.Module:
    return Lambda(lambda s, x: function(x), p=nn.Parameter(torch.zeros(1).double()))


@pytest.mark.turns(3)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", COUPLED)
def test_coupled_samples_are_found(name: str, batch: str) -> None:
    """On any batch, even one of equal samples or of a single one."""
    captured = captured_of(_model(COUPLED[name]), BATCHES[batch].double())
    assert captured.graph.batch != "dynamic" or where_samples_meet(captured)


@pytest.mark.turns(3)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_samples_are_not_accused(name: str, batch: str) -> None:
    """Wherever the axis of samples ends up."""
    assert not where_samples_meet(captured_of(_model(INDEPENDENT[name]), BATCHES[batch].double()))


def test_tokens_are_changed_within_their_range() -> None:
    """An embedding is asked for known tokens only."""
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 2)).double()
    tokens = torch.tensor([[0, 1, 2, 4], [4, 4, 1, 0], [0, 0, 0, 3]])
    assert not where_samples_meet(captured_of(model, tokens))
    mixed = Lambda(lambda s, x: s.e(x) - s.e(x).mean(0), e=nn.Embedding(5, 3)).double()
    assert where_samples_meet(captured_of(mixed, tokens))
    counted = Lambda(lambda s, x: s.e(x.cumsum(0)), e=nn.Embedding(50, 3)).double()
    assert where_samples_meet(captured_of(counted, torch.zeros_like(tokens)))
    only_one = nn.Sequential(nn.Embedding(1, 3), nn.LayerNorm(3)).double()
    assert not where_samples_meet(captured_of(only_one, torch.zeros_like(tokens)))


def test_batch_statistics_of_a_layer_are_seen_in_the_program() -> None:
    """A BatchNorm without running statistics reduces the batch axis; a LayerNorm does not."""
    for norm, expected in ((nn.BatchNorm1d(6, track_running_stats=False), True), (nn.LayerNorm(6), False)):
        captured = captured_of(norm.double(), points(4, 6))
        assert uses_batch_statistics(build_program(captured.graph, captured.tensors, captured.example)) is expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_not_taken_for_coupling(dtype: torch.dtype) -> None:
    """Alone and in a batch a sample is summed in another order; a deep network in a short dtype shows that most."""
    layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
    model = seeded(nn.Sequential(*layers)).to(dtype)
    assert not where_samples_meet(captured_of(model, points(5, 64).to(dtype)))


def test_masks_and_places_are_changed_too() -> None:
    """A coupling through what is no number is one."""
    x, mask = points(4, 6), torch.tensor([[True, False, True, True, False, True]] * 4)
    for coupled, function in (
        (True, lambda s, x, m: x * m.sum()),
        (True, lambda s, x, m: x * m.long().cumsum(0)),
        (False, lambda s, x, m: x.masked_fill(m > 0, 0.0)),
        (False, lambda s, x, m: x * m.sum(-1, keepdim=True)),
    ):
        model = LambdaOfTwo(function, p=nn.Parameter(torch.zeros(1).double()))
        assert bool(where_samples_meet(captured_of(model, x, mask))) is coupled
        assert bool(where_samples_meet(captured_of(model, x, mask.long()))) is coupled


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_told_from_a_difference_in_every_precision(dtype: torch.dtype) -> None:
    """Units in the last place are rounding, half of the value is not."""
    value = torch.tensor([1.0, -3.0], dtype=dtype)
    assert _close(value * (1 + 2 * torch.finfo(dtype).eps), value)
    assert not _close(value * 1.5, value)
    assert not _close(value + torch.tensor([0.0, 1.5], dtype=dtype), value)
