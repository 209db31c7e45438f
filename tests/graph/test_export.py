"""The front end ``torch.export``: exact graphs, at other batch sizes too, that know their modules and names."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from fingerprints import fingerprint
from normscope.graph.export import export_graph
from normscope.graph.guard import same_bits, untouched
from normscope.graph.interpreter import run
from normscope.graph.recorder import record_graph


class Tupled(nn.Module):
    """A model with any inputs and a tuple of outputs, as the front end wants it."""

    def __init__(self, function: Callable[..., Any] | None = None, **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the function, or the one module."""
        out = self.function(self, *inputs) if self.function else next(self.children())(*inputs)
        return out if isinstance(out, tuple) else (out,)


def _assign(m: Any, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = 1.0
    return y


def _inner(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = m.a(x)
    return y + x


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv and batch norm": (
        lambda: Tupled(net=nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))),
        (2, 3, 8, 8),
    ),
    "encoder": (lambda: Tupled(net=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)), (2, 5, 8)),
    "lstm": (lambda: Tupled(lambda m, x: m.a(x)[0], a=nn.LSTM(3, 4, batch_first=True)), (2, 5, 3)),
    "spectral norm": (lambda: Tupled(net=parametrizations.spectral_norm(nn.Linear(6, 6))), (2, 6)),
    "weight norm": (lambda: Tupled(net=parametrizations.weight_norm(nn.Linear(6, 6))), (2, 6)),
    "constant": (lambda: Tupled(lambda m, x: x * torch.tensor([1.0, 2.0, 3.0])), (2, 3)),
    "slice assignment": (lambda: Tupled(_assign), (2, 3)),
    "size of the batch": (lambda: Tupled(lambda m, x: x.reshape(x.shape[0] * 2, -1) / x.shape[0]), (2, 6)),
    "no_grad inside": (lambda: Tupled(_inner, a=nn.Linear(3, 3)), (2, 3)),
    "minus infinity": (lambda: Tupled(lambda m, x: x.masked_fill(x > 0, float("-inf"))), (2, 3)),
    "several outputs": (lambda: Tupled(lambda m, x: (x, *x.chunk(2, 1))), (2, 6)),
    "output twice": (lambda: Tupled(lambda m, x: (x + 1,) * 2), (2, 3)),
}


def _eager(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    with untouched(model), torch.no_grad():
        torch.backends.mha.set_fastpath_enabled(False)
        return model(x)


@pytest.mark.turns(3)
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(("factory", "shape"), MODELS.values(), ids=MODELS.keys())
def test_the_graph_is_the_model(factory: Callable[[], nn.Module], shape: tuple[int, ...], dynamic: bool) -> None:
    """Bit for bit, on another input and another batch size; the model is left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = factory().eval()
        x, other = torch.randn(shape), torch.randn(3 if dynamic else shape[0], *shape[1:])
    before = fingerprint(model, x)
    graph, tensors = export_graph(model, (x,), dynamic=dynamic)
    assert fingerprint(model, x) == before
    assert graph.batch == ("dynamic" if dynamic else "2")
    for value in (x, other):
        with torch.no_grad():
            ours = run(graph, tensors, [value])
        theirs = _eager(model, value)
        assert len(ours) == len(theirs)
        assert all(map(same_bits, ours, theirs))
    assert fingerprint(model, x) == before


@pytest.mark.parametrize("name", ["encoder", "weight norm", "several outputs", "no_grad inside"])
def test_both_front_ends_agree(name: str) -> None:
    """The recorder sees the same operations, by the same modules."""
    factory, shape = MODELS[name]
    model = factory().eval()
    x = torch.ones(shape)
    exported, _ = export_graph(model, (x,), dynamic=False)
    recorded, _ = record_graph(model, (x,))
    moves = ("contiguous", "clone", "dropout", "reshape", "unflatten", "view", "split", "chunk")  # change no value
    ours, theirs = (
        [(n.op, n.owner) for n in graph.calls() if n.op.split(".")[1] not in moves] for graph in (recorded, exported)
    )
    assert ours == theirs


def test_names_owners_and_dead_code() -> None:
    """State by its name in the state dict, owners by path, and only what an output depends on."""

    def forward(m: Any, x: Tensor, unused: Tensor) -> Tensor:
        m.a(x).exp()
        return m.b(m.b(x))

    model = Tupled(forward, a=nn.Linear(3, 3), b=nn.LayerNorm(3)).eval()
    graph, tensors = export_graph(model, (torch.ones(2, 3), torch.ones(2, 1)), dynamic=True)
    assert [(n.op, n.owner, n.owner_type) for n in graph.calls()] == [("aten.layer_norm.default", "b", "LayerNorm")] * 2
    assert [n.target for n in graph if n.op == "parameter"] == ["b.weight", "b.bias"]
    assert tensors["b.weight"] is model.b.weight
    assert len([n for n in graph if n.op == "input"]) == 2
    layer_norm = graph.calls()[0]
    assert layer_norm.shape == (-1, 3)
    assert layer_norm.dtype == "float32"


def test_a_failure_is_raised_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """What torch would print about data-dependent control flow is not the user's concern."""
    model = Tupled(lambda m, x: x if x.sum() > 0 else -x)
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = logger.level
    before = fingerprint(model)
    with pytest.raises(Exception, match="data-dependent"):
        export_graph(model, (torch.ones(2, 3),), dynamic=True)
    assert fingerprint(model) == before
    assert capfd.readouterr() == ("", "")
    assert logger.level == level


def test_operations_in_place_need_no_second_trace() -> None:
    """Where nothing sees what is written, the graph has the operation that gives it; else torch makes it functional."""

    def plain(_: Any, x: Tensor) -> tuple[Tensor, ...]:
        y = x @ x.T
        y += x.sum()
        return (y.relu_(),)

    def seen(_: Any, x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        z = y.view(-1)
        y.add_(1)
        return (z + 1, y)

    def read_later(_: Any, x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        z = y.relu_()
        return (y + z,)

    x = torch.randn(3, 3)
    for function in (plain, seen, read_later):
        graph, tensors = export_graph(Tupled(function), (x,), dynamic=False)
        assert not any(n.op.partition(".")[2].partition(".")[0].endswith("_") for n in graph)
        for ours, theirs in zip(run(graph, tensors, [x]), function(None, x.clone()), strict=True):
            assert torch.equal(ours, theirs)
