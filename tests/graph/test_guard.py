"""The guard: after the block, whatever happened in it, everything of the user's is as before."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from fingerprints import fingerprint
from normscope.core.errors import NormscopeError, StateChangedError
from normscope.graph import guard
from normscope.graph.guard import StateGuard, checksum, same_bits, untouched
from normscope.graph.model_state import ModelState


class Stateful(nn.Module):
    """A model whose forward moves all it can."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = parametrizations.spectral_norm(nn.Linear(4, 4))
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("seen", torch.tensor(0))
        self.calls = 0
        self.history: list[Tensor] = []
        self.cache = {"last": torch.zeros(2)}
        self.plain = torch.ones(3)

    def forward(self, x: Tensor) -> Tensor:
        """Run the model."""
        self.calls += 1
        self.seen = self.seen + 1
        self.history.append(x)
        self.cache["last"].add_(1)
        self.cache["new"] = x
        self.plain.mul_(2)
        x.add_(1)
        return self.drop(self.norm(self.linear(x)))


def _vandalize(model: Stateful) -> None:
    """Do to a model and to the process what no forward should."""
    model.eval()
    model.drop.p = 0.1
    model.extra = 3  # type: ignore[assignment]
    model.register_forward_hook(lambda *_: None)
    nn.modules.module.register_module_forward_hook(lambda *_: None)
    model.norm.weight.requires_grad_(False)

    model.norm.bias.register_hook(lambda g: g)
    model.norm.running_mean = torch.full((4,), 9.0)
    model.norm.running_var.data.zero_()
    model.norm = nn.Identity()  # type: ignore[assignment]
    random.random()
    np.random.rand()
    torch.rand(1)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.set_float32_matmul_precision("medium")


@pytest.fixture
def model() -> Stateful:
    """Return a model with gradients and a hook."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built = Stateful()
    for parameter in built.parameters():
        parameter.grad = torch.ones_like(parameter)
    built.norm.bias.register_hook(lambda g: 2 * g)
    return built


def test_a_forward_leaves_no_trace(model: Stateful) -> None:
    """A forward leaves no trace."""
    x = torch.zeros(5, 4)
    before = fingerprint(model, x)
    model(x.clone())
    assert fingerprint(model, x) != before  # without the guard it would have left one
    before = fingerprint(model, x)
    with untouched(model, x):
        model(x)
        assert model.calls == 2
    assert fingerprint(model, x) == before


def test_a_backward_does_not_reach_the_users_gradients(model: Stateful) -> None:
    """A backward does not reach the users gradients."""
    before = fingerprint(model)
    users = {name: p.grad for name, p in model.named_parameters()}
    with untouched(model):
        model(torch.ones(5, 4)).sum().backward()
        assert model.norm.bias.grad is not users["norm.bias"]
    assert fingerprint(model) == before
    assert all(p.grad is users[name] for name, p in model.named_parameters())


@pytest.mark.parametrize("ending", [None, ValueError("own"), KeyboardInterrupt()])
def test_vandalism_is_undone_however_the_block_ends(model: Stateful, ending: BaseException | None) -> None:
    """Vandalism is undone however the block ends."""
    before = fingerprint(model)

    def block() -> None:
        with untouched(model):
            _vandalize(model)
            assert fingerprint(model) != before
            if ending is not None:
                raise ending

    if ending is None:
        block()
    else:
        with pytest.raises(type(ending)) as caught:
            block()
        assert caught.value is ending
    assert fingerprint(model) == before


def test_replaced_memory_comes_back_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaced memory comes back without a copy."""
    monkeypatch.setattr(guard, "COPY_LIMIT", 0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = fingerprint(model)
    with untouched(model):
        model.to(torch.float64)
        model[0].weight.data = torch.zeros(7, 7, dtype=torch.float64)
    assert fingerprint(model) == before


def test_a_buffer_that_took_up_a_gradient_is_a_leaf_again() -> None:
    """An average of activations is written in place, and its gradient leads to the weights."""
    norm = nn.BatchNorm1d(3)
    with untouched(norm):
        norm.running_mean.add_(norm.weight)  # type: ignore[operator]
        assert norm.running_mean.requires_grad  # type: ignore[union-attr]
    assert norm.running_mean.is_leaf  # type: ignore[union-attr]
    assert not norm.running_mean.requires_grad  # type: ignore[union-attr]
    assert norm.running_mean.tolist() == [0.0, 0.0, 0.0]  # type: ignore[union-attr,operator]


def test_another_part_of_the_same_memory_comes_back() -> None:
    """Of the same shape and strides, at another place of its storage."""
    base = torch.arange(6.0)
    model = nn.Linear(2, 2)
    model.register_buffer("part", base[:3])
    with untouched(model):
        model.part.data = base[3:]
    assert model.part.data_ptr() == base.data_ptr()
    assert base.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_exchanged_axes_come_back() -> None:
    """The same memory with other strides."""
    model = nn.Linear(2, 2)
    before = model.weight.tolist()
    with untouched(model):
        model.weight.data = model.weight.data.t()
    assert model.weight.tolist() == before


@pytest.mark.parametrize(
    "overwrite",
    [
        lambda w: w.data.clamp_(-0.1, 0.1),  # does not move the version counter
        lambda w: w.detach().add_(1),
        lambda w: w.data.copy_(w.data.flip(0)),  # keeps the sum of the entries
    ],
)
@pytest.mark.parametrize("limit", [0, guard.COPY_LIMIT])
def test_an_overwritten_parameter_is_an_error(
    monkeypatch: pytest.MonkeyPatch, overwrite: Callable[[Tensor], Any], limit: int
) -> None:
    """An overwritten parameter is an error."""
    monkeypatch.setattr(guard, "COPY_LIMIT", limit)
    model = nn.Sequential(nn.Linear(20, 20), nn.Dropout())
    before = fingerprint(model)

    def block() -> None:
        with untouched(model):
            overwrite(model[0].weight)
            model.eval()
            torch.rand(1)

    with pytest.raises(StateChangedError, match=r"overwrote its parameters 0\.weight in place") as caught:
        block()
    assert isinstance(caught.value, NormscopeError)
    assert model[1].training  # the rest is restored in any case
    restored = fingerprint(model) == before
    assert restored == (limit > 0)
    assert ("they were restored" in str(caught.value)) == restored
    assert ("load the weights again" in str(caught.value)) == (not restored)


def test_an_error_of_the_block_wins_and_carries_the_note() -> None:
    """An error of the block wins and carries the note."""
    model = nn.Linear(2, 2)

    def block() -> None:
        with untouched(model):
            model.weight.data.zero_()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        block()
    assert "overwrote its parameters weight" in caught.value.__notes__[0]


def test_lazy_parameters_are_refused() -> None:
    """Lazy parameters are refused."""
    with pytest.raises(StateChangedError, match="lazy"), untouched(nn.Sequential(nn.LazyLinear(3))):
        pass


def test_registered_parametrizations_go_away() -> None:
    """Registered parametrizations go away."""
    model = nn.Linear(3, 3)
    before = fingerprint(model)
    with untouched(model):
        parametrizations.spectral_norm(model)
        assert parametrize.is_parametrized(model)
    assert fingerprint(model) == before
    assert not parametrize.is_parametrized(model)


def test_scripted_state() -> None:
    """Scripted state."""
    scripted = torch.jit.script(nn.BatchNorm1d(2))
    with untouched(scripted):
        scripted.eval()
        scripted.running_mean.add_(1)
    assert scripted.training
    assert scripted.running_mean.tolist() == [0.0, 0.0]


def test_inference_tensors_are_restored() -> None:
    """Inference tensors are restored."""
    module = nn.Module()
    with torch.inference_mode():
        module.register_buffer("b", torch.zeros(2))
    with untouched(module), torch.inference_mode():
        module.b.add_(1)
    assert module.b.tolist() == [0.0, 0.0]


def test_the_accelerators_generators_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accelerators generators are restored."""

    class Device:
        states = [torch.tensor([1], dtype=torch.uint8)]  # noqa: RUF012

        @classmethod
        def get_rng_state_all(cls) -> list[Tensor]:
            return [s.clone() for s in cls.states]

        @classmethod
        def set_rng_state_all(cls, states: list[Tensor]) -> None:
            cls.states = states

    monkeypatch.setattr("normscope.core.environment._accelerator", lambda: Device)
    with untouched(nn.Identity()):
        Device.states = [torch.tensor([2], dtype=torch.uint8)]
    assert int(Device.states[0]) == 1


def test_the_state_of_a_model_lists_each_tensor_once() -> None:
    """Tied weights under their first name."""
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    tied.cache = [torch.zeros(1)]  # type: ignore[assignment]
    assert [name for name, _ in ModelState(tied).tensors] == ["0.weight", "0.bias", "1.bias", "cache.0"]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.int64, torch.complex64]
)
def test_bits_tell_every_dtype_apart(dtype: torch.dtype) -> None:
    """Bits tell every dtype apart."""
    a = torch.ones(130).to(dtype)
    b = a.clone()
    assert same_bits(a, b)
    assert checksum(a) == checksum(b)
    b[70] = 0
    assert not same_bits(a, b)
    assert checksum(a) != checksum(b)
    swapped = b.clone()
    swapped[[70, 71]] = b[[71, 70]]
    assert checksum(swapped) != checksum(b)


def test_guards_nest() -> None:
    """Guards nest."""
    norm = nn.BatchNorm1d(2)
    with StateGuard(norm):
        norm(torch.ones(2, 2))
        inner = norm.running_mean.clone()
        with StateGuard(norm):
            norm(torch.ones(2, 2))
        assert torch.equal(norm.running_mean, inner)
    assert norm.running_mean.tolist() == [0.0, 0.0]


def test_the_callers_autograd_and_device_are_left_for_the_block() -> None:
    """Bounds from below differentiate, wherever the caller stands; afterwards it stands there again."""
    model = nn.Linear(2, 1)
    for context in (torch.no_grad(), torch.inference_mode(), torch.device("meta")):
        with context:
            before = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_device())
            with untouched(model):
                x = torch.ones(1, 2, requires_grad=True)
                (gradient,) = torch.autograd.grad(model(x).sum(), x)
                assert torch.equal(gradient, model.weight)
                assert not gradient.is_inference()
            assert before == (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_device())


def test_what_a_block_changed_is_named() -> None:
    """Attributes, buffers new and old, containers; random draws apart."""
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[1].seen = []
    with untouched(model) as guard:
        pass
    assert (guard.moved, guard.drew) == ((), False)
    with untouched(model) as guard:
        model[0].running_mean.add_(1.0)
        model[1].count = 1
        model[1].seen.append(1)
        model.register_buffer("table", torch.zeros(1))
        torch.rand(1)
    assert (set(guard.moved), guard.drew) == ({"0.running_mean", "1.count", "1.seen", "table"}, True)


def test_an_inner_guard_leaves_parameters_to_the_outer_one() -> None:
    """It costs no copy of them."""
    model = nn.Linear(2, 2)
    inner = untouched(model, parameters=False)
    with pytest.raises(StateChangedError, match="weight"), untouched(model), inner, torch.no_grad():
        model.weight.add_(1.0)
    assert inner.moved == ()


@pytest.mark.parametrize("limit", [0, guard.COPY_LIMIT])
def test_parameters_made_in_inference_mode_are_watched(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """They count no writes; large ones are compared by their bits alone."""
    monkeypatch.setattr(guard, "COPY_LIMIT", limit)
    with torch.inference_mode():
        model = nn.Linear(3, 2)
    before = fingerprint(model)
    with untouched(model):
        model(torch.ones(1, 3))
    assert fingerprint(model) == before

    def overwrite() -> None:
        with untouched(model), torch.inference_mode():
            model.weight.add_(1.0)

    with pytest.raises(StateChangedError, match="overwrote its parameters weight in place"):
        overwrite()
    assert (fingerprint(model) == before) == (limit > 0)


def test_tensors_made_in_inference_mode_are_put_back() -> None:
    """They may be written there only."""
    with torch.inference_mode():
        model = nn.BatchNorm1d(2)
    before = model.running_mean.clone()
    with untouched(model), torch.inference_mode():
        model.running_mean.add_(1.0)
    assert torch.equal(model.running_mean, before)


@dataclass
class Meter:
    """A count."""

    count: int = 0


class Drawing(nn.Module):
    """A model that draws from generators of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.torch = torch.Generator().manual_seed(1)
        self.sources = {"numpy": [np.random.default_rng(2)], "old": (np.random.RandomState(3),)}
        self.helper = SimpleNamespace(inner=SimpleNamespace(python=random.Random(4)))

    def forward(self, x: Tensor) -> Tensor:
        """Draw from each."""
        numbers = [self.sources["numpy"][0].normal(), self.sources["old"][0].rand(), self.helper.inner.python.random()]
        return x + torch.randn(x.shape, generator=self.torch) + torch.tensor(numbers).sum()


@pytest.mark.parametrize("ending", [None, ValueError("own")])
def test_generators_of_the_model_stand_where_they_stood(ending: BaseException | None) -> None:
    """The next draws are those without the block, and the block is known to have drawn."""
    model, twin, x = Drawing(), Drawing(), torch.zeros(3)
    assert torch.equal(model(x), twin(x))
    try:
        with untouched(model) as guard:
            model(x)
            if ending is not None:
                raise ending
    except ValueError:
        pass
    assert guard.drew
    assert guard.moved == ()
    assert torch.equal(model(x), twin(x))


class Nested(nn.Module):
    """A model with state deep in containers and objects."""

    def __init__(self) -> None:
        super().__init__()
        self.table: dict[str, Any] = {"a": {"n": 0, "seen": [1, [2]]}, "t": [torch.zeros(2)], "s": [{1}]}
        self.recent = deque([deque([1, 2], maxlen=2)])
        self.histogram = {"counts": np.zeros(3)}
        self.helper = SimpleNamespace(empty=SimpleNamespace(), meters=[Meter()])
        self.layers = [nn.BatchNorm1d(2)]

    def forward(self, x: Tensor) -> Tensor:
        """Move all of it."""
        self.table["a"]["n"] += 1
        self.table["a"]["seen"][1].append(3)
        self.table["a"]["seen"].insert(0, 0)
        self.table["t"][0] += 1
        self.table["s"][0].add(2)
        self.recent[0].append(3)
        self.histogram["counts"][1] += 1
        self.helper.empty.new = 1
        self.helper.meters[0].count += 1
        return self.layers[0](x)


def _nested_state(model: Nested) -> Any:
    """Return the state as text, and which objects it lies in."""
    table, counts, norm = model.table, model.histogram["counts"], model.layers[0]
    held = [table, table["a"], table["a"]["seen"], table["a"]["seen"][1], table["t"][0], model.recent[0], counts]
    return repr((table, model.recent, counts, model.helper, norm.running_mean, norm.training)), [id(h) for h in held]


def test_nested_containers_are_put_back_in_place() -> None:
    """Plain values, structure, tensors and arrays by value; the containers are the same objects."""
    model, x = Nested(), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    before, fresh = _nested_state(model), repr(_nested_state(Nested())[0])
    with untouched(model) as guard:
        model(x).sum().backward()
        model.table["a"] = {}
        model.layers[0].eval()
    assert _nested_state(model) == before
    assert repr(before[0]) == fresh
    assert model.layers[0].weight.grad is None
    assert {"table", "table.a", "table.t.0", "histogram.counts", "helper.meters.0.count"} <= set(guard.moved)
    model(x)
    assert _nested_state(model) != before


def test_keys_of_any_kind() -> None:
    """Tensors as keys are compared by identity; names that meet hide nothing."""
    model = nn.Identity()
    key, first, second = torch.zeros(3), torch.zeros(1), torch.zeros(1)
    model.table = {key: 0, 1: first, "1": second}
    with untouched(model):
        model.table[torch.zeros(3)] = model.table.pop(key)
        first.add_(1)
        second.add_(1)
    assert [k is key for k in model.table] == [True, False, False]
    assert (float(first), float(second)) == (0.0, 0.0)


def test_a_renamed_key_gets_its_name_back() -> None:
    """The same values in the same order under another name are a change too, of tables and of attributes."""
    model = nn.Identity()
    model.table, model.scale = {"mean": torch.zeros(1), "var": torch.ones(1)}, 2.0
    with untouched(model) as guard:
        for key in ("mean", "var"):
            model.table[key.upper()] = model.table.pop(key)
        model.factor = model.__dict__.pop("scale")
    assert list(model.table) == ["mean", "var"]
    assert model.scale == 2.0
    assert not hasattr(model, "factor")
    assert {"table", "scale"} <= set(guard.moved)


@pytest.mark.filterwarnings("ignore:.*(nested tensors|quantize|Sparse CSR).*")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.eye(2).to_sparse_csr(),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
        lambda: torch.ones(2).to(torch.float8_e4m3fn),
        lambda: torch.ones(2, device="meta"),
    ],
)
@pytest.mark.parametrize("deep", [False, True])
def test_tensors_of_any_kind_are_no_harm(make: Callable[[], Tensor], deep: bool) -> None:
    """Those that cannot be compared are left alone."""
    model = nn.Identity()
    model.held = {"a": [make()]} if deep else make()
    with untouched(model) as guard:
        pass
    assert guard.moved == ()
