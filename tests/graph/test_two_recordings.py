"""Two recordings: they give the graph that ``torch.export`` gives, and stop where sizes or numbers reach Python."""

from __future__ import annotations

import contextlib
import copy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, captured_of, points, seeded
from normscope.core.errors import CaptureError
from normscope.graph.export import export_graph
from normscope.graph.interpreter import run
from normscope.graph.ir import UNKNOWN, Graph, Node, Ref, map_refs
from normscope.graph.two_recordings import SMALL, graph_of_two_recordings, may_be_recorded

Build = Callable[[], nn.Module]

MODELS: dict[str, tuple[Build, tuple[int, ...]]] = {
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


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_is_that_of_export(name: str) -> None:
    """Node for node: names, operations, arguments, owners, free sizes and types; and the same tensors."""
    build, shape = MODELS[name]
    network, x = build().eval(), points(2, *shape).float()
    assert may_be_recorded(network, [x])
    model = _Flat(network)
    exported, theirs = export_graph(model, (x,), dynamic=True)
    recorded, ours = graph_of_two_recordings(model, (x,))
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
def test_writes_to_views_and_to_the_input(build: Build) -> None:
    """Nothing is written in the graph, and it gives the same; the input stays as it is."""
    model, x = seeded(build()), points(4, 3, 2)
    before = x.clone()
    graph, tensors = graph_of_two_recordings(_Flat(model), (x,))
    assert torch.equal(x, before)
    assert not any("_." in node.op for node in graph)
    assert torch.equal(run(graph, tensors, [x.clone()])[0], model(x.clone()))
    assert torch.equal(x, before)


def test_token_ids() -> None:
    """Integers go in, and are looked up in a table."""
    model = _Flat(nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 3)).eval())
    ids = torch.tensor([[0, 3, 6], [5, 5, 1]])
    exported, _ = export_graph(model, (ids,), dynamic=True)
    assert _as_called_x(graph_of_two_recordings(model, (ids,))[0]) == _as_called_x(exported)


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
        graph_of_two_recordings(nn.Sequential(layer).eval(), (points(3, *shape).float(),))


class _Own(nn.Module):
    """Three layers with a forward of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.n, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        """Look at what is the same for every number of samples: axes, types, sizes of weights."""
        if x.ndim != 2 or x.dtype.is_complex or self.scale.shape[0] != self.scale.numel():
            raise ValueError
        return self.b(x + self.scale * torch.relu_(self.n(self.a(x))))


class _WithSizes(nn.Module):
    """Looks at a size, in one of the ways there are."""

    def __init__(self, look: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.look = look

    def forward(self, x: Tensor) -> Tensor:
        """Give twice the input for a batch above 50."""
        return 2 * x if self.look(x) > 50 else x + 0


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Give twice the input for a batch above 50."""
        return 2 * x if x.shape[0] > 50 else x + 0


LOOKS: dict[str, Callable[[Tensor], Any]] = {
    "shape": lambda x: x.shape[0],
    "size": lambda x: x.size(0),
    "len": len,
    "numel": lambda x: x.numel() // 4,
    "nelement": lambda x: torch.numel(x) // 4,
    "stride": lambda x: x.T.contiguous().stride(0),
    "nbytes": lambda x: x.nbytes // 16,
    "of something computed": lambda x: x.relu().shape[0],
    "of nothing but zeros": lambda x: torch.zeros_like(x).isnan().shape[0],
    "list": lambda x: len(list(x)),
    "unbind": lambda x: len(x.unbind()),
    "tolist": lambda x: len(x.tolist()),
    "numpy": lambda x: len(x.numpy()),
    "deep copy": lambda x: len(copy.deepcopy(x)),
    "mapped": lambda x: torch.func.vmap(lambda r: r.sum() * 0 + 1)(x).sum(),
    "swallowed": lambda x: _swallowed(x),
    "another memory": lambda x: x.untyped_storage().nbytes() // 16,
}


def _swallowed(x: Tensor) -> int:
    """Look at the size, and go on whatever happens."""
    size = 0
    with contextlib.suppress(Exception):
        size = x.shape[0]
    return size


def test_a_forward_of_its_own() -> None:
    """Node for node the export, where Python sees no size of what is computed."""
    model, x = _Flat(seeded(_Own())), points(2, 4)
    exported, _ = export_graph(model, (x,), dynamic=True)
    assert _as_called_x(graph_of_two_recordings(model, (x,))[0]) == _as_called_x(exported)


@pytest.mark.parametrize("name", LOOKS)
def test_a_model_that_looks_at_sizes_is_left_to_export(name: str) -> None:
    """It might do something else for more samples than were seen."""
    with pytest.raises(CaptureError):
        graph_of_two_recordings(_WithSizes(LOOKS[name]), (points(2, 4),))


def test_sizes_seen_in_a_function_of_autograd() -> None:
    """User code that torch calls is watched too."""
    with pytest.raises(CaptureError, match="size"):
        graph_of_two_recordings(Lambda(lambda s, x: _Scaled.apply(x)), (points(2, 4),))


@pytest.mark.parametrize(
    "function",
    [
        lambda s, x: x if x.sum() > 0 else -x,
        lambda s, x: x * float(x.max()),
        lambda s, x: x * torch.tensor(x.shape[:1]),
        lambda s, x: x[torch.nonzero(x[:, 0] > 0)[:, 0]],
        lambda s, x: (x.flatten(1), x.relu_())[0] + 1,
        lambda s, x: x.unsqueeze_(1),
        lambda s, x: torch.cat([x, x[:1]]) if torch.stack(x.unbind()).sum() else x,
    ],
)
def test_numbers_that_reach_python_and_memory_that_is_written_to(function: Any) -> None:
    """Two recordings would show one branch of several, or another function."""
    with pytest.raises(CaptureError):
        graph_of_two_recordings(Lambda(function), (points(3, 4, 2),))


def _shared() -> nn.Module:
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, nn.ReLU(), layer)


def _tied() -> nn.Module:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    return nn.Sequential(first, second)


class _CallsScript(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        """Call a function that Python does not see into."""
        return scripted(x)


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    """Give twice the input for a batch above 50."""
    if x.size(0) > 50:
        return 2 * x
    return x + 0


@pytest.mark.parametrize(
    "build",
    [
        lambda: torch.jit.script(nn.Linear(2, 2)),
        lambda: nn.Sequential(nn.Linear(2, 2), _CallsScript()),
        _shared,
        _tied,
        lambda: nn.Sequential(nn.Linear(SMALL // 64, 64), nn.Linear(64, 1)),
    ],
)
def test_what_is_not_tried(build: Build) -> None:
    """TorchScript, layers or weights with several names, and models that are exported sooner than they run twice."""
    assert not may_be_recorded(build(), [torch.zeros(2, 2)])


def test_layers_that_a_recording_cannot_show_are_exported() -> None:
    """The next front end is asked, and nothing else is different."""
    model = seeded(nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2, 1)), nn.LocalResponseNorm(2)))
    captured = captured_of(model, points(3, 4))
    assert captured.graph.front_end == "export"
    x = points(5, 4)
    assert torch.allclose(captured.run([x])[0], model(x))


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_what_is_said_of_a_branch_on_the_number_of_samples(look: Callable[[Tensor], Any]) -> None:
    """The graph is valid for batches up to 50 at most, or for one size, or its outputs are unknown."""
    try:
        captured = captured_of(_WithSizes(look), points(3, 4))
    except CaptureError:
        return
    unknown = any(node.op == UNKNOWN for node in captured.graph)
    assert captured.graph.front_end != "recording"
    assert unknown or captured.graph.notes or captured.graph.batch != "dynamic"


CHECK = """
import sys
import torch
from torch import nn
import normscope
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)
    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))
model = Net()
found = normscope.check(model, torch.zeros(2, 4))
assert [f.code for f in found.findings] == ["NS101"], found
print("torch._dynamo" in sys.modules)
"""


def test_checking_a_small_model_does_not_load_the_compiler(tmp_path: Path) -> None:
    """It is what takes longest where a network is small."""
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("False\n", "")
