"""Capture: the graph gives what the model gives, by whichever front end, and says what it holds for."""

from __future__ import annotations

import sys
import weakref
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, LambdaOfTwo, captured_of, points, seeded
from normscope.core.errors import CaptureError, InputError, NonFiniteError
from normscope.graph import capture as module
from normscope.graph.capture import Captured, capture
from normscope.graph.inputs import ModelInputs
from normscope.graph.interpreter import run

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Output:
    """What transformers models return, in short."""

    logits: Tensor
    cache: Any = None


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2)), (4,)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()), (2, 5, 5)),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (3, 4)),
    "recurrent": (lambda: Lambda(lambda s, x: s.r(x)[0], r=nn.GRU(4, 3, batch_first=True)), (5, 4)),
    "in place": (lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)), (4,)),
    "decides by its data": (lambda: Lambda(lambda s, x: s.a(x) if x.sum() > 0 else -s.a(x), a=nn.Linear(4, 2)), (4,)),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_reproduces_the_model(name: str) -> None:
    """On the example, and on other data and batch sizes where the graph claims any."""
    build, shape = MODELS[name]
    model = seeded(build())
    captured = captured_of(model, points(3, *shape).abs())
    sizes = (1, 2, 5) if captured.graph.batch == "dynamic" else (3,)
    for size in sizes:
        x = points(size, *shape, seed=size).abs()
        with torch.no_grad():
            (ours,), theirs = captured.run([x.clone()]), model(x.clone())
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda s, x: s.a(x), ("output",)),
        (lambda s, x: (s.a(x), x), ("0", "1")),
        (lambda s, x: {"u": s.a(x), "v": {"w": x}}, ("u", "v.w")),
        (lambda s, x: Pair(x, s.a(x)), ("first", "second")),
        (lambda s, x: Output(s.a(x)), ("logits",)),
        (lambda s, x: [x, x.argmax(-1), "text", None, (s.a(x),)], ("0", "4.0")),
    ],
)
def test_outputs_have_names(function: Callable[..., Any], names: tuple[str, ...]) -> None:
    """Every floating tensor in what the model returns, by its path."""
    captured = captured_of(seeded(Lambda(function, a=nn.Linear(4, 2))), points(3, 4))
    assert captured.graph.output_names == names


def test_inputs_have_names() -> None:
    """Those of forward, positional and by keyword."""
    model = seeded(LambdaOfTwo(lambda s, x, y: s.a(x) + y, a=nn.Linear(4, 2)))
    assert capture(model, ModelInputs((points(3, 4), points(3, 2)))).input_names == ["x", "y"]
    assert capture(model, ModelInputs((points(3, 4),), {"y": points(3, 2)})).input_names == ["x", "y"]


def test_a_batch_of_one_leaves_the_size_free() -> None:
    """Export would fix it; the example is doubled for that."""
    captured = captured_of(seeded(nn.Linear(4, 2)), points(1, 4))
    assert captured.graph.batch == "dynamic"
    assert captured.example[0].shape == (2, 4)
    assert captured.at_batch(1)[0].shape == (1, 4)


def test_a_fixed_batch_stays() -> None:
    """A recorded graph holds for its own size."""
    model = seeded(Lambda(lambda s, x: s.a(x) if x.sum() > 0 else -s.a(x), a=nn.Linear(4, 2)))
    captured = captured_of(model, points(3, 4).abs())
    assert (captured.graph.front_end, captured.graph.batch) == ("dispatch", "3")
    assert captured.at_batch(1)[0].shape == (3, 4)
    assert any("export failed" in note for note in captured.graph.notes)


def test_names_are_the_models_own() -> None:
    """No trace of a wrapper in owners and weights."""
    captured = captured_of(seeded(nn.Sequential(nn.Linear(4, 6), nn.ReLU())), points(2, 4))
    assert set(captured.tensors) == {"0.weight", "0.bias"}
    assert {n.owner for n in captured.graph.calls()} == {"0", "1"}


def test_evaluation_mode_is_captured_whatever_the_mode() -> None:
    """Dropout is gone, BatchNorm reads its running statistics, and training mode is put back."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.9)).double().train()
    captured = captured_of(model, points(3, 4))
    assert model.training
    x = points(3, 4, seed=2)
    assert torch.allclose(captured.run([x])[0], model.eval()(x), rtol=1e-9)


@pytest.mark.parametrize(
    ("dtype", "eps"), [(torch.float64, 2.0**-52), (torch.float32, 2.0**-23), (torch.bfloat16, 2.0**-23)]
)
def test_the_stabilizer_of_rms_norm_is_written_out(dtype: torch.dtype, eps: float) -> None:
    """The same graph in another precision stays the same function."""
    for norm in (nn.RMSNorm(4), nn.RMSNorm(4, elementwise_affine=False)):
        captured = captured_of(nn.Sequential(nn.Identity(), norm).to(dtype), torch.ones(2, 4, dtype=dtype))
        (node,) = [n for n in captured.graph if n.op.startswith("aten.rms_norm")]
        assert node.args[3] == eps
    given = captured_of(nn.RMSNorm(4, eps=0.25).to(dtype), torch.ones(2, 4, dtype=dtype))
    (node,) = [n for n in given.graph if n.op.startswith("aten.rms_norm")]
    assert node.args[3] == 0.25


def test_a_model_that_does_not_run_is_told_with_its_shapes() -> None:
    """What the model raised, on what it was given, and what to pass."""
    with pytest.raises(InputError, match=r"\(2, 5\) float64.*RuntimeError.*right shape"):
        capture(seeded(nn.Linear(4, 2)), ModelInputs((points(2, 5),)))


def test_nothing_floating_comes_out() -> None:
    """There is nothing to differentiate."""
    with pytest.raises(CaptureError, match="no floating-point tensor"):
        captured_of(Lambda(lambda s, x: x.argmax(-1)), points(2, 4))


def test_a_sparse_output_is_refused() -> None:
    """With what to do instead."""
    with pytest.raises(CaptureError, match="to_dense"):
        capture(Lambda(lambda s, x: x.to_sparse()), ModelInputs((torch.ones(2, 3),)))


def test_a_random_model_is_no_function_of_its_input() -> None:
    """It is said so, not that some graph differs."""
    noisy = Lambda(lambda s, x: s.a(x) + torch.randn(2), a=nn.Linear(4, 2))
    with pytest.raises(CaptureError, match="depend on the input only"):
        captured_of(noisy, points(3, 4))


@pytest.mark.parametrize("wrap", [torch.jit.script, lambda m: torch.jit.trace(m, points(3, 4).float())])
def test_scripted_models_are_captured(wrap: Callable[[nn.Module], nn.Module]) -> None:
    """What TorchScript runs is recorded like anything else."""
    plain = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    x = points(3, 4).float()
    captured = captured_of(wrap(plain), x)
    (value,) = run(captured.graph, captured.tensors, [x])
    assert torch.allclose(value, plain(x), atol=1e-6)


def test_a_graph_that_does_not_reproduce_the_model_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a front end gave another function, the next one is tried, and at last an error lists all attempts."""
    wrong = captured_of(seeded(nn.Linear(4, 2)), points(3, 4))
    model = seeded(Lambda(lambda s, x: s.a(x.view(x.shape)), a=nn.Linear(4, 2)))

    def export(*args: Any, **settings: Any) -> tuple[Any, dict[str, Tensor]]:
        return wrong.graph, {f"model.{k}": v * 2 for k, v in wrong.tensors.items()}

    monkeypatch.setattr(module, "export_graph", export)
    assert captured_of(model, points(3, 4)).graph.front_end == "dispatch"
    monkeypatch.setattr(module, "record_graph", export)
    with pytest.raises(CaptureError, match=r"(?s)could not be captured.*dynamic.*export.*dispatch"):
        captured_of(model, points(3, 4))
    small = seeded(nn.Linear(4, 2))
    assert captured_of(small, points(3, 4)).graph.front_end == "recording"
    monkeypatch.setattr(module, "graph_of_two_recordings", export)
    with pytest.raises(CaptureError, match=r"(?s)could not be captured.*recording.*dynamic"):
        captured_of(small, points(3, 4))


def test_the_example_is_kept_unless_a_batch_of_one_was_doubled() -> None:
    """What the graph was captured on."""
    x = points(3, 4)
    captured = captured_of(seeded(nn.Linear(4, 2)), x)
    assert isinstance(captured, Captured)
    assert torch.equal(captured.example[0], x)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_only_buffers_that_are_used_must_be_finite(value: float) -> None:
    """Minus infinity hides in a mask; anything may stand where nothing reads it."""
    unused = seeded(Lambda(lambda s, x: s.a(x), a=nn.Linear(4, 2), b=torch.tensor([value])))
    assert captured_of(unused, points(3, 4)).graph.batch == "dynamic"
    with pytest.raises(NonFiniteError, match=r"the buffer b has 1 NaN or infinite entries of 2"):
        captured_of(
            seeded(Lambda(lambda s, x: s.a(x) + s.b, a=nn.Linear(4, 2), b=torch.tensor([0, value]))), points(3, 4)
        )
    mask = torch.tensor([0.0, float("-inf")])
    masked = seeded(Lambda(lambda s, x: (s.a(x) + s.b).softmax(-1), a=nn.Linear(4, 2), b=mask))
    assert "b" in captured_of(masked, points(3, 4)).tensors


def test_inputs_of_the_graph_are_called_what_forward_calls_them() -> None:
    """So that messages speak of what the user wrote; a name that an operation has gets an addition."""
    model = seeded(LambdaOfTwo(lambda s, x, y: s.a(x) + y, a=nn.Linear(4, 2)))
    captured = capture(model, ModelInputs((points(3, 4), points(3, 2))))
    assert [n.name for n in captured.graph if n.op == "input"] == ["x", "y"]

    class Named(nn.Linear):
        def forward(self, linear: Tensor) -> Tensor:
            return super().forward(linear)

    named = captured_of(seeded(Named(4, 2)), points(3, 4))
    assert [n.name for n in named.graph if n.op == "input"] == ["linear_input"]
    x = points(5, 4)
    assert torch.equal(named.run([x])[0], Named.forward(seeded(Named(4, 2)), x))


def test_a_forward_that_exits_is_a_forward_that_fails() -> None:
    """The process is the user's."""
    with pytest.raises(InputError, match="with SystemExit: 3"):
        captured_of(Lambda(lambda s, x: sys.exit(3)), points(2, 4))


def test_weights_made_in_inference_mode_are_captured_as_plain_ones() -> None:
    """Otherwise nothing could be differentiated."""
    with torch.inference_mode():
        model = seeded(nn.Linear(4, 2))
    captured = captured_of(model, points(3, 4))
    assert not any(t.is_inference() for t in captured.tensors.values())


def test_weights_in_another_precision_are_shared_while_held_and_freed_after() -> None:
    captured = captured_of(nn.Linear(3, 2), torch.ones(1, 3))
    held = captured.tensors_as(torch.float64)
    assert captured.tensors_as(torch.float64) is held
    assert {tensor.dtype for tensor in held.values()} == {torch.float64}
    last = weakref.ref(held)
    del held
    assert last() is None
