"""Chains of torch's own layers: recorded at two batch sizes, they give the graph that ``torch.export`` gives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm

from networks import Lambda, captured_of, points, seeded
from normscope.core.errors import CaptureError
from normscope.graph.export import export_graph
from normscope.graph.interpreter import run
from normscope.graph.ir import Graph, Node, Ref, map_refs
from normscope.graph.layer_chain import SMALL, is_layer_chain, layer_chain_graph

Chain = Callable[[], nn.Module]

CHAINS: dict[str, tuple[Chain, tuple[int, ...]]] = {
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Sequential(nn.Linear(5, 2))), (6,),
    ),
    "in place": (
        lambda: nn.Sequential(nn.Conv1d(3, 3, 1), nn.ReLU(True), nn.Flatten(), nn.Linear(6, 2), nn.ELU(inplace=True)),
        (3, 2),
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU(), nn.MaxPool2d(2), nn.AvgPool2d(2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.LayerNorm(4), nn.Softmax(-1),
        ),
        (3, 8, 8),
    ),
    "signals": (
        lambda: nn.Sequential(
            nn.Conv1d(3, 4, 3, padding="same"), nn.InstanceNorm1d(4, affine=True), nn.GELU(), nn.RMSNorm(8),
            nn.Upsample(scale_factor=2), nn.ConvTranspose1d(4, 4, 3), nn.PReLU(),
        ),
        (3, 8),
    ),
    "paddings": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 2, padding="same"), nn.ZeroPad2d(1), nn.ReflectionPad2d(1), nn.ConstantPad1d(1, 2.0),
            nn.Conv2d(4, 4, 3, padding_mode="circular", padding=1), nn.LPPool2d(2, 2), nn.Upsample(size=9),
        ),
        (3, 8, 8),
    ),
    "batch statistics": (lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=False)), (6,)),
    "functions": (
        lambda: nn.Sequential(
            nn.ELU(), nn.SELU(), nn.CELU(), nn.GELU("tanh"), nn.Softplus(), nn.Softsign(), nn.Tanhshrink(), nn.Mish(),
            nn.Hardswish(), nn.LeakyReLU(), nn.Sigmoid(), nn.LogSigmoid(), nn.Threshold(0.1, 0.0), nn.ReLU6(),
            nn.Hardsigmoid(), nn.Softshrink(), nn.Hardshrink(), nn.Softmin(-1), nn.LogSoftmax(-1), nn.GLU(),
            nn.RReLU(), nn.Tanh(),
        ),
        (6,),
    ),
    "shapes": (
        lambda: nn.Sequential(
            nn.Linear(6, 6), nn.Unflatten(1, (2, 3)), nn.Flatten(1), nn.Identity(), nn.Unflatten(1, (2, 3)),
            nn.Flatten(0, 1),
        ),
        (6,),
    ),
    "channels": (
        lambda: nn.Sequential(
            nn.PixelShuffle(2), nn.PixelUnshuffle(2), nn.ChannelShuffle(2), nn.Unfold(2), nn.Fold((4, 4), 2)
        ),
        (8, 4, 4),
    ),
    "one layer": (lambda: nn.BatchNorm2d(3), (3, 4, 4)),
    "nothing": (nn.Sequential, (4,)),
}  # fmt: skip


class _Flat(nn.Module):
    """Calls a model on several tensors, as front ends do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> tuple[Tensor]:
        """Call the model."""
        return (self.model(*inputs),)


def _as_called_x(graph: Graph) -> tuple[Node, ...]:
    """Return the nodes with the input called x: each front end names it."""
    (given,) = (node.name for node in graph if node.op == "input")
    called = {given: "x"}
    return tuple(
        replace(
            node,
            name=called.get(node.name, node.name),
            args=map_refs(node.args, lambda ref: Ref(called.get(ref.name, ref.name)), into=tuple),
        )
        for node in graph
    )


@pytest.mark.parametrize("name", CHAINS)
def test_the_graph_is_that_of_export(name: str) -> None:
    """Node for node: names, operations, arguments, owners, free sizes and types; and the same tensors."""
    build, shape = CHAINS[name]
    chain = build().eval()
    assert is_layer_chain(chain)
    model, x = _Flat(chain), points(2, *shape).float()
    exported, theirs = export_graph(model, (x,), dynamic=True)
    recorded, ours = layer_chain_graph(model, (x,))
    assert _as_called_x(recorded) == _as_called_x(exported)
    assert recorded.batch == exported.batch == "dynamic"
    assert ours.keys() == theirs.keys()
    assert all(ours[key] is theirs[key] for key in ours)


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Conv1d(3, 3, 1), nn.Flatten(), nn.ReLU(True), nn.Unflatten(1, (3, 2)), nn.SELU(True)),
        lambda: nn.Sequential(nn.ReLU(True), nn.Conv1d(3, 3, 1), nn.ReLU(True), nn.Hardtanh(inplace=True)),
    ],
)
def test_writes_to_views_and_to_the_input(build: Chain) -> None:
    """Nothing is written in the graph, and it gives the same; the input stays as it is."""
    model, x = seeded(build()), points(4, 3, 2)
    before = x.clone()
    graph, tensors = layer_chain_graph(_Flat(model), (x,))
    assert torch.equal(x, before)
    assert not any("_." in node.op for node in graph)
    assert torch.equal(run(graph, tensors, [x.clone()])[0], model(x.clone()))
    assert torch.equal(x, before)


def test_token_ids() -> None:
    """Integers go in, and are looked up in a table."""
    model = _Flat(nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 3)).eval())
    ids = torch.tensor([[0, 3, 6], [5, 5, 1]])
    exported, _ = export_graph(model, (ids,), dynamic=True)
    assert _as_called_x(layer_chain_graph(model, (ids,))[0]) == _as_called_x(exported)


@pytest.mark.parametrize(
    ("layer", "shape", "why"),
    [
        (nn.LocalResponseNorm(2), (3, 4, 4), "number of samples"),  # a view by it
        (nn.GRU(3, 4, batch_first=True), (5, 3), "number of samples"),  # a state for each
        (nn.AdaptiveMaxPool2d(2), (3, 4, 4), "not a plain operation"),  # gives two tensors
    ],
)
def test_what_it_leaves_to_export(layer: nn.Module, shape: tuple[int, ...], why: str) -> None:
    """A layer that does something else for another number of samples, or more than plain operations."""
    with pytest.raises(CaptureError, match=why):
        layer_chain_graph(nn.Sequential(layer).eval(), (points(3, *shape).float(),))


def test_a_view_read_after_its_memory_was_written_to() -> None:
    """Nothing in a chain does so; if something did, the graph would be another function."""
    model = Lambda(lambda s, x: x[:, :1] + x.relu_()).eval()
    with pytest.raises(CaptureError, match="overwritten"):
        layer_chain_graph(Lambda(lambda s, x: (x.flatten(1), x.relu_())[0] + 1), (points(3, 4, 2),))
    assert not is_layer_chain(model)


def _hooked(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda m, args, out: 2 * out)
    return module


def _with_own_forward(module: nn.Module) -> nn.Module:
    module.forward = torch.relu  # type: ignore[assignment, method-assign]
    return module


class _Doubled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers twice."""
        return super().forward(super().forward(x))


class _Reversed(nn.Sequential):
    def __iter__(self):  # type: ignore[no-untyped-def]
        """Yield the layers from the last to the first."""
        return reversed(list(super().__iter__()))


class _Own(nn.Linear):
    pass


class _Head(nn.Sequential):
    pass


def _shared() -> nn.Module:
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, nn.ReLU(), layer)


def _tied() -> nn.Module:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    return nn.Sequential(first, second)


@pytest.mark.parametrize(
    "build",
    [
        lambda: _hooked(nn.Linear(2, 2)),
        lambda: nn.Sequential(_hooked(nn.ReLU())),
        lambda: nn.Sequential(_with_own_forward(nn.Linear(2, 2))),
        lambda: _Doubled(nn.Linear(2, 2)),
        lambda: _Reversed(nn.Linear(2, 2), nn.ReLU()),
        lambda: nn.Sequential(_Own(2, 2)),
        lambda: nn.Sequential(Lambda(lambda s, x: x)),
        lambda: nn.Sequential(nn.TransformerEncoderLayer(4, 2)),
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(2, 2))),
        lambda: nn.Sequential(weight_norm(nn.Linear(2, 2))),
        lambda: torch.compile(nn.Linear(2, 2)),
        _shared,
        _tied,
        lambda: nn.Sequential(nn.Linear(SMALL // 64, 64), nn.Linear(64, 1)),
    ],
)
def test_what_is_no_small_chain(build: Chain) -> None:
    """Code of somebody else runs, layers or weights are shared, or running it would take longer than an export."""
    assert not is_layer_chain(build())


def test_a_subclass_that_changes_nothing_is_a_chain() -> None:
    """As networks are often written."""
    assert is_layer_chain(nn.Sequential(nn.Flatten(), _Head(nn.Linear(4, 2), nn.ReLU())))


def test_global_hooks_run_too() -> None:
    """They may replace what a layer returns."""
    with torch.nn.modules.module.register_module_forward_hook(lambda *args: None):
        assert not is_layer_chain(nn.ReLU())
    assert is_layer_chain(nn.ReLU())


def test_layers_that_a_recording_cannot_show_are_exported() -> None:
    """The next front end is asked, and nothing else is different."""
    model = seeded(nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2, 1)), nn.LocalResponseNorm(2)))
    captured = captured_of(model, points(3, 4))
    assert captured.graph.front_end == "export"
    x = points(5, 4)
    assert torch.allclose(captured.run([x])[0], model(x))


CHECK = """
import sys
import torch
from torch import nn
import normscope
model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
found = normscope.check(model, torch.zeros(2, 4))
assert [f.code for f in found.findings] == ["NS101"], found
print("torch._dynamo" in sys.modules)
"""


def test_checking_a_chain_does_not_load_the_compiler(tmp_path: Path) -> None:
    """It is what takes longest where a network is small."""
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("False\n", "")
