"""Every run of a model starts from the state its user left it in; what depends on earlier calls is refused."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope
from fingerprints import fingerprint
from networks import Lambda, captured_of, points, seeded
from normscope.core.errors import CaptureError, WeightsError
from normscope.graph.capture import Captured
from normscope.graph.inputs import guess_inputs
from normscope.graph.statefulness import RepeatedRuns, evaluating, refuse_quantized


def _keeps(make: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Return a forward that makes a tensor on its first call, keeps it, and adds it."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if getattr(self, "kept", None) is None:
            self.kept = make(x)
        return self.a(x) + self.kept

    return forward


def _counts(self: Any, x: Tensor) -> Tensor:
    self.calls = getattr(self, "calls", 0) + 1
    return self.a(x) * self.calls


def _averages(self: Any, x: Tensor) -> Tensor:
    self.mean += x.mean(0)
    return self.a(x) + self.mean


def _rotates(self: Any, x: Tensor) -> Tensor:
    """Turn by tables that are made on the first call for the length then seen, as rotary embeddings are."""
    if "cosine" not in self._buffers:
        angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * torch.ones(4, dtype=x.dtype)
        self.register_buffer("cosine", angle.cos(), persistent=False)
        self.register_buffer("sine", angle.sin(), persistent=False)
    return self.a(x) * self.cosine + x * self.sine


def _by_length(self: Any, x: Tensor) -> Tensor:
    tables = self.__dict__.setdefault("tables", {})
    if x.shape[1] not in tables:
        tables[x.shape[1]] = torch.linspace(0, 1, x.shape[1], dtype=x.dtype)[:, None]
    return self.a(x) + tables[x.shape[1]]


def _linear(forward: Callable[..., Any], **buffers: Tensor) -> nn.Module:
    return seeded(Lambda(forward, a=nn.Linear(4, 4), **buffers))


def _reproduces(captured: Captured, model: nn.Module, *shape: int) -> None:
    """Compare with the model in the state it came in, at several batch sizes."""
    for size in (1, 3, 4):
        x = points(size, *shape, seed=size)
        fresh = seeded(Lambda(model.function, a=nn.Linear(4, 4)))  # type: ignore[arg-type]
        assert torch.allclose(captured.run([x])[0], fresh(x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("size", [1, 3, 6])
def test_a_table_made_for_the_batch_does_not_become_part_of_the_network(size: int) -> None:
    """One sample is one sample: the table of a first call with six would make six outputs of it."""
    model = _linear(_keeps(torch.zeros_like))
    before = fingerprint(model)
    captured = captured_of(model, points(size, 4))
    assert captured.graph.batch == "dynamic"
    assert captured.run(captured.at_batch(1))[0].shape == (1, 4)
    assert fingerprint(model) == before
    _reproduces(captured, model, 4)


@pytest.mark.parametrize("forward", [_rotates, _by_length])
def test_tables_made_on_the_first_call_keep_working(forward: Callable[..., Any]) -> None:
    """Even where the length is that of the batch; by export, with a free batch size."""
    model = _linear(forward)
    captured = captured_of(model, points(5, 5, 4))
    assert (captured.graph.front_end, captured.graph.batch) == ("export", "dynamic")
    _reproduces(captured, model, 5, 4)


def test_a_count_that_nothing_uses_is_no_harm() -> None:
    """State may change as long as it does not show."""

    def counts(self: Any, x: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return self.a(x)  # type: ignore[no-any-return]

    model = _linear(counts)
    _reproduces(captured_of(model, points(3, 4)), model, 4)


def _after_seven_calls(self: Any, x: Tensor) -> Tensor:
    """Behave differently from the eighth call on."""
    self.calls = getattr(self, "calls", 0) + 1
    return self.a(x) * (1 if self.calls < 8 else 50)  # type: ignore[no-any-return]


def _from_a_full_window(self: Any, x: Tensor) -> Tensor:
    """Keep what was seen last, and use it once there are three."""
    self.window = [*getattr(self, "window", []), x.detach().abs().mean()][-3:]
    return self.a(x) * (1 if len(self.window) < 3 else 11)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("forward", "name"), [(_after_seven_calls, "calls"), (_from_a_full_window, "window")])
def test_what_shows_after_some_calls_is_refused(forward: Callable[..., Any], name: str) -> None:
    """The first two calls return the same."""
    with pytest.raises(CaptureError, match=f"when it is called again.*changes {name},"):
        captured_of(_linear(forward), points(2, 4))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(("forward", "name"), [(_counts, "calls"), (_keeps(torch.clone), "kept"), (_averages, "mean")])
def test_what_depends_on_earlier_calls_is_refused(forward: Callable[..., Any], name: str, size: int) -> None:
    """With the name of what changed; the model is as it was."""
    buffers = {"mean": torch.zeros(4)} if name == "mean" else {}
    model = _linear(forward, **buffers)
    before = fingerprint(model)
    with pytest.raises(CaptureError, match=f"depend on the input only.*when it is called again.*changes {name},"):
        captured_of(model, points(size, 4))
    assert fingerprint(model) == before


@pytest.mark.parametrize("size", [2, 6])
def test_a_tensor_that_has_a_row_for_each_sample_fixes_the_batch(size: int) -> None:
    """One sample would be added to every row, and come out several times; a table of the length does not."""
    captured = captured_of(_linear(lambda s, x: s.a(x) + s.rows, rows=points(size, 4)), points(size, 4))
    assert captured.graph.batch == str(size)
    model = _linear(_keeps(torch.zeros_like))
    model(points(size, 4))  # the user's own first call
    assert captured_of(model, points(size, 4)).graph.batch == str(size)
    table = captured_of(_linear(lambda s, x: s.a(x) + s.rows, rows=points(size, 4)), points(size, size, 4))
    assert table.graph.batch == "dynamic"


class _Helper:
    """An object beside the modules that keeps something."""

    def __init__(self) -> None:
        self.kept: Tensor | None = None
        self.calls = 0


def test_objects_beside_the_modules_are_put_back_too() -> None:
    """A table they make is no harm, a count that shows is refused by name."""

    def keeps(self: Any, x: Tensor) -> Tensor:
        if self.helper.kept is None:
            self.helper.kept = torch.zeros_like(x)
        return self.a(x) + self.helper.kept  # type: ignore[no-any-return]

    def counts(self: Any, x: Tensor) -> Tensor:
        self.helper.calls += 1
        return self.a(x) * self.helper.calls  # type: ignore[no-any-return]

    model = _linear(keeps)
    model.helper = _Helper()
    captured = captured_of(model, points(6, 4))
    assert captured.run(captured.at_batch(1))[0].shape == (1, 4)
    assert model.helper.kept is None
    model = _linear(counts)
    model.helper = _Helper()
    with pytest.raises(CaptureError, match=r"forward\(\) changes helper\.calls, and"):
        captured_of(model, points(6, 4))
    assert model.helper.calls == 0


def test_hidden_tables_fix_the_batch() -> None:
    """A table outside of the model cannot be put back: what it was made for is all that is claimed."""
    tables: list[Tensor] = []

    def hides(self: Any, x: Tensor) -> Tensor:
        if not tables:
            tables.append(torch.ones_like(x))
        return self.a(x) + tables[0]  # type: ignore[no-any-return]

    assert captured_of(_linear(hides), points(6, 4)).graph.batch == "6"


def test_a_model_that_fails_when_called_again_is_refused() -> None:
    """It ran once: that it does not run now is what its state did."""

    def once(self: Any, x: Tensor) -> Tensor:
        if getattr(self, "used", False):
            raise ValueError("used up")
        self.used = True
        return self.a(x)  # type: ignore[no-any-return]

    with pytest.raises(CaptureError, match="changes used,"):
        captured_of(_linear(once), points(3, 4))


def test_runs_do_not_see_each_other() -> None:
    """Unless they are asked to."""
    model = _linear(_counts)
    fresh = RepeatedRuns(model, lambda x: (model(x),))
    x = points(2, 4)
    (first,), (again,), (second,) = fresh.run([x]), fresh.run([x]), fresh.run([x], [x])
    assert torch.equal(first, again)
    assert torch.allclose(second, 2 * first)
    assert fresh.moved == ("calls",)


def test_exported_programs_have_their_mode_written_in() -> None:
    """Their eval() raises; inside another module, too."""
    x = points(3, 4)
    plain = seeded(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 2)))
    program = torch.export.export(plain, (x,)).module()
    assert evaluating(nn.Sequential(program, nn.Dropout()))[1].training is False
    captured = captured_of(program, x)
    assert torch.allclose(captured.run([x])[0], plain(x), rtol=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_quantized_modules_are_refused_by_name() -> None:
    """Not with what is missing inside of them."""
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), {nn.Linear})
    with pytest.raises(WeightsError, match=r"Quantized modules are not supported: 0 is quantized.*the float model"):
        refuse_quantized(model)
    with pytest.raises(WeightsError, match="Quantized modules are not supported"):
        guess_inputs(model)
    refuse_quantized(torch.ao.nn.quantized.FloatFunctional())  # adds floats; a model ready to be quantized has some


class LaterRaises(nn.Module):
    """A model that raises on one of its later runs; how often it ran stands outside it."""

    def __init__(self, run: int, error: type[BaseException]) -> None:
        super().__init__()
        self.layer, self.run, self.error, self.calls = nn.Linear(3, 2), run, error, itertools.count(1)

    def forward(self, x: Tensor) -> Tensor:
        """Count, and raise when it is time."""
        if next(self.calls) == self.run:
            raise self.error("enough\nof it")
        return self.layer(x) + 0.0 * torch.rand(())  # a draw makes it run again


@pytest.mark.parametrize("error", [RuntimeError, KeyError, SystemExit])
@pytest.mark.parametrize("run", [2, 3, 4])
def test_a_model_that_raises_on_a_later_run(run: int, error: type[BaseException]) -> None:
    """Its own exception does not leak: one of ours names it, or the analysis did without that run."""
    with contextlib.suppress(normscope.NormscopeError):
        captured_of(LaterRaises(run, error), torch.ones(2, 3))
