"""Data in every form a user may bring, and what is said when it does not fit."""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fingerprints import fingerprint
from normscope.core.errors import InputError, NonFiniteError, StateChangedError
from normscope.graph.inputs import ModelInputs, as_inputs, check_runs, guess_inputs, iterate


class Two(nn.Module):
    """A model of two required inputs and an optional one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor, y: Tensor, scale: Tensor | None = None) -> Tensor:
        """Return a combination of the inputs."""
        return self.linear(x - y) * (1 if scale is None else scale)


class Optional(nn.Module):
    """A model all of whose inputs have defaults, as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """Look up the ids."""
        return self.table(input_ids)


LINEAR = nn.Linear(3, 2)
X = torch.arange(12.0).view(4, 3)
Y = torch.tensor([0, 1, 1, 0])


def test_a_tensor_is_the_one_argument() -> None:
    """A tensor is the one argument."""
    inputs = as_inputs(X, LINEAR)
    assert inputs.args[0] is not None
    assert torch.equal(inputs.args[0], X)
    assert (inputs.kwargs, inputs.labels, inputs.batch) == ({}, None, 4)


def test_numbers_come_in_the_models_dtype_and_a_copy_of_arrays() -> None:
    """Numbers come in the models dtype and a copy of arrays."""
    array = X.double().numpy()
    inputs = as_inputs(array, LINEAR)
    assert inputs.args[0].dtype == torch.float32
    array[:] = -1
    assert torch.equal(inputs.args[0], X)
    read_only = np.ones((2, 3), dtype=np.float32)
    read_only.setflags(write=False)
    assert as_inputs(read_only[::-1], LINEAR).batch == 2
    assert as_inputs(X.half(), LINEAR.to(torch.float32)).args[0].dtype == torch.float32
    assert as_inputs(np.array([[1, 2]]), Optional()).args[0].dtype == torch.int64


def test_a_required_keyword_is_an_argument_even_if_it_is_named_like_labels() -> None:
    """``forward(x, *, y)`` takes ``y`` from a mapping."""

    class Conditioned(nn.Module):
        def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
            return x + y

    inputs = as_inputs({"x": X, "y": X}, Conditioned())
    assert set(inputs.kwargs) == {"x", "y"}
    assert inputs.labels is None


@pytest.mark.parametrize("batch", [(X, Y), [X, Y], (X.numpy(), Y.numpy()), (X, [0, 1, 1, 0]), (X, Y, ["a"])])
def test_the_signature_tells_inputs_from_labels(batch: Any) -> None:
    """The signature tells inputs from labels."""
    inputs = as_inputs(batch, LINEAR)
    assert len(inputs.args) == 1
    assert inputs.labels is not None
    assert inputs.labels.tolist() == [0, 1, 1, 0]


def test_two_required_inputs_take_two_tensors() -> None:
    """Two required inputs take two tensors."""
    inputs = as_inputs((X, X + 1, Y), Two())
    assert [a.sum().item() for a in inputs.args] == [66, 78]
    assert inputs.labels is not None
    assert as_inputs((X, X), Two()).labels is None
    with pytest.raises(InputError, match=r"needs 2 inputs \(x, y\), but the batch has 1"):
        as_inputs((X,), Two())


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: [data], lambda data: iter([data])])
def test_inputs_in_a_pair_of_their_own(wrap: Callable[[Any], Any]) -> None:
    x, z, labels = torch.ones(6, 3), torch.zeros(6, 3), torch.arange(6)
    found = list(iterate(wrap(((x, z), labels)), Two(), batch=6))
    assert [len(inputs.args) for inputs in found] == [2]
    assert found[0].labels is not None
    torch.testing.assert_close(found[0].labels, labels)
    cut = list(iterate(((x, z), labels), Two(), batch=4))
    assert [(inputs.batch, len(inputs.args[1])) for inputs in cut] == [(4, 4), (2, 2)]


def test_a_forward_of_defaults_or_of_any_arguments() -> None:
    """A forward of defaults or of any arguments."""
    ids = torch.tensor([[1, 2]])
    inputs = as_inputs((ids, Y), Optional())
    assert len(inputs.args) == 1
    assert inputs.labels is Y or torch.equal(inputs.labels, Y)  # type: ignore[arg-type]

    class Variadic(nn.Module):
        def forward(self, *values: Tensor) -> Tensor:
            """Run the model."""
            return sum(values)  # type: ignore[return-value]

    assert len(as_inputs((X, X, X), Variadic()).args) == 3


def test_mappings_are_keyword_arguments() -> None:
    """Mappings are keyword arguments."""
    ids = torch.tensor([[1, 2]])
    batch = UserDict(input_ids=ids, attention_mask=torch.ones(1, 2), labels=torch.tensor([1]), text=["hello"])
    inputs = as_inputs(batch, Optional())
    assert list(inputs.kwargs) == ["input_ids", "attention_mask"]
    assert inputs.labels is not None
    assert inputs.labels.tolist() == [1]
    pair = as_inputs(({"input_ids": ids}, torch.tensor([3])), Optional())
    assert pair.labels is not None
    assert pair.labels.tolist() == [3]
    with pytest.raises(InputError, match=r"accepts input_ids, attention_mask, but the batch has atention_mask"):
        as_inputs({"input_ids": ids, "atention_mask": ids}, Optional())
    with pytest.raises(InputError, match="accepts input, but the batch has x"):
        as_inputs({"x": X}, LINEAR)


def test_masks_may_be_infinite_and_nothing_else() -> None:
    """Masks may be infinite and nothing else."""
    mask = torch.tensor([[0.0, -torch.inf]])
    ids = torch.tensor([[1, 2]])
    assert as_inputs({"input_ids": ids, "attention_mask": mask}, Optional()).kwargs["attention_mask"].isinf().any()
    bad = X.clone()
    bad[0, 0], bad[1, 1] = torch.nan, torch.inf
    with pytest.raises(InputError, match="1 NaN and 1 infinite of 12 entries, the first in sample 0") as caught:
        as_inputs(bad, LINEAR)
    assert isinstance(caught.value, NonFiniteError)


def test_the_first_sample_that_is_not_finite_is_named() -> None:
    """Counted over all batches, with the kinds of entries that there are."""
    bad = torch.zeros(6, 3)
    bad[5, 0] = torch.nan
    for data in (bad, [(bad[:4],), (bad[4:],)]):
        with pytest.raises(InputError, match=r"has 1 NaN of \d+ entries, the first in sample 5\."):
            list(iterate(data, LINEAR, batch=4))


CONV = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
WRONG: dict[str, tuple[Any, nn.Module, str]] = {
    "empty tensor": (torch.zeros(0, 3), LINEAR, "at least one entry"),
    "empty tuple": ((), LINEAR, "at least one tensor"),
    "complex": (X.to(torch.complex64), LINEAR, "Expected real inputs"),
    "string": ("3,224,224", LINEAR, "got str"),
    "none": (None, LINEAR, "got NoneType"),
    "array of words": (np.array(["a"]), LINEAR, "array of numbers, got dtype"),
    "numbers for an embedding": (X, Optional(), "expects integer ids, but the input is torch.float32"),
    "ids out of range": (torch.tensor([[10]]), Optional(), "ids range from 10 to 10"),
    "negative ids": (torch.tensor([[-1, 3]]), Optional(), "ids range from -1 to 3"),
    "bytes for a convolution": (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), CONV, r"x\.float\(\) / 255"),
    "image without batch axis": (torch.zeros(3, 8, 8), CONV, r"lacks the batch axis. Pass x\.unsqueeze\(0\)"),
    "vector without batch axis": (torch.zeros(3), LINEAR, "lacks the batch axis"),
}


@pytest.mark.parametrize(("data", "model", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_data_is_named(data: Any, model: nn.Module, message: str) -> None:
    """Wrong data is named."""
    with pytest.raises(InputError, match=message):
        as_inputs(data, model)


class _LastFirst(nn.Module):
    """Registers a layer before the one that takes the input."""

    def __init__(self, first: nn.Module, then: nn.Module) -> None:
        super().__init__()
        self.later, self.sooner = first, then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sooner(x if x.ndim > 1 else x.unsqueeze(1))


RIGHT: dict[str, tuple[torch.Tensor, nn.Module]] = {
    "positions before tokens": (torch.tensor([[20, 3]]), _LastFirst(nn.Embedding(4, 2), nn.Embedding(32, 2))),
    "positions before patches": (X, _LastFirst(nn.Embedding(4, 2), nn.Linear(3, 2))),
    "convolution before tokens": (torch.tensor([[1, 2]]), _LastFirst(nn.Conv1d(2, 2, 1), nn.Embedding(4, 2))),
    "a batch of numbers": (torch.zeros(5), _LastFirst(nn.Linear(1, 2), nn.Linear(1, 2))),
}


@pytest.mark.parametrize(("data", "model"), RIGHT.values(), ids=RIGHT.keys())
def test_what_the_model_runs_on_is_not_refused(data: torch.Tensor, model: nn.Module) -> None:
    """The layer that is registered first need not be the first to run."""
    assert as_inputs(data, model).tensors()[0].shape == data.shape


SOURCES: dict[str, Callable[[], Any]] = {
    "tensor": lambda: X,
    "array": lambda: X.numpy(),
    "pair": lambda: (X, Y),
    "mapping": lambda: {"input": X, "labels": Y},
    "dataset": lambda: TensorDataset(X, Y),
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=3),
    "shuffling loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True),
    "generator": lambda: ((X[i : i + 3], Y[i : i + 3]) for i in (0, 3)),
    "list of batches": lambda: [(X[:3], Y[:3]), (X[3:], Y[3:])],
    "one batch": lambda: [X, Y],
    "inputs": lambda: ModelInputs((X,)),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_every_source_yields_every_row_once(source: Callable[[], Any]) -> None:
    """Every source yields every row once."""
    data = source()
    before = fingerprint(LINEAR)
    batches = list(iterate(data, LINEAR, batch=3))
    assert fingerprint(LINEAR) == before  # the random generators too
    rows = torch.cat([(*b.args, *b.kwargs.values())[0] for b in batches])
    assert rows.sort(0).values.tolist() == X.tolist()
    for batch in batches:
        if batch.labels is not None:
            first = (*batch.args, *batch.kwargs.values())[0][:, 0]
            assert batch.labels.tolist() == [Y[int(v) // 3].item() for v in first]


def test_generators_are_put_back_even_if_the_loop_is_left() -> None:
    """Generators are put back even if the loop is left."""
    loader = DataLoader(TensorDataset(X, Y), batch_size=1, shuffle=True)
    before = fingerprint(LINEAR)
    batches = iterate(loader, LINEAR)
    next(batches)
    random.random()
    batches.close()  # type: ignore[attr-defined]
    assert fingerprint(LINEAR) == before


@pytest.mark.parametrize("data", [[], iter(()), DataLoader(TensorDataset(X[:0], Y[:0]))])
def test_no_batch_is_an_error(data: Any) -> None:
    """No batch is an error."""
    with pytest.raises(InputError, match="at least one batch"):
        list(iterate(data, LINEAR))


def test_what_is_not_data_is_an_error() -> None:
    """What is not data is an error."""
    with pytest.raises(InputError, match="got int"):
        list(iterate(3, LINEAR))


def _flattening(size: int) -> nn.Module:
    """Return an image model that runs on one size only."""
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * (size - 2) ** 2, 4))


GUESSES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 2), (2, 5)),
    "flattened image": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 2)), (2, 784)),
    "convolution": (lambda: nn.Conv2d(3, 2, 3), (2, 3, 224, 224)),
    "cifar": (lambda: _flattening(32), (2, 1, 32, 32)),
    "mnist": (lambda: _flattening(28), (2, 1, 28, 28)),
    "signal": (lambda: nn.Conv1d(2, 2, 3), (2, 2, 128)),
    "volume": (lambda: nn.Conv3d(1, 1, 3), (2, 1, 16, 112, 112)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 2)), (2, 16)),
    "recurrent": (lambda: nn.LSTM(3, 4, batch_first=True), (2, 16, 3)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, batch_first=True), (2, 16, 8)),
    "layer norm": (lambda: nn.LayerNorm([3, 4]), (2, 3, 4)),
    "batch norm": (lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1)), (2, 3, 224, 224)),
    "group norm": (lambda: nn.GroupNorm(1, 3), (2, 3, 224, 224)),
    "two inputs": (Two, (2, 3)),
}


@pytest.mark.parametrize(("factory", "shape"), GUESSES.values(), ids=GUESSES.keys())
def test_guesses_from_the_first_layers(factory: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """Guesses from the first layers."""
    model = factory()
    before = fingerprint(model)
    inputs = guess_inputs(model)
    assert fingerprint(model) == before
    assert tuple(inputs.args[0].shape) == shape
    assert torch.equal(inputs.args[0], guess_inputs(model).args[0])
    model(*inputs.args)


def test_guesses_from_configurations() -> None:
    """Guesses from configurations."""
    timm_like = nn.Sequential(nn.Conv2d(3, 2, 3))
    timm_like.pretrained_cfg = {"input_size": (3, 96, 80)}  # type: ignore[assignment]
    assert tuple(guess_inputs(timm_like).args[0].shape) == (2, 3, 96, 80)
    text = Optional()
    text.main_input_name = "input_ids"  # type: ignore[assignment]
    text.config = SimpleNamespace(vocab_size=10, max_position_embeddings=12)  # type: ignore[assignment]
    ids = guess_inputs(text, batch=3).kwargs["input_ids"]
    assert tuple(ids.shape) == (3, 12)
    assert int(ids.max()) < 10


@pytest.mark.parametrize(
    ("name", "config", "shapes"),
    [
        ("BertModel", {}, {"input_ids": (2, 16)}),
        ("ViTModel", {"image_size": 16, "patch_size": 8}, {"pixel_values": (2, 3, 16, 16)}),
        ("T5Model", {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}, None),
    ],
)
def test_guesses_for_transformers(name: str, config: dict[str, int], shapes: dict[str, tuple[int, ...]] | None) -> None:
    """Guesses for transformers."""
    import transformers

    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    options = {"vocab_size": 11, **(small if shapes else {}), **config}
    model = getattr(transformers, name)(getattr(transformers, name.replace("Model", "Config"))(**options))
    inputs = guess_inputs(model)
    found = {key: tuple(value.shape) for key, value in inputs.kwargs.items()}
    assert found == (shapes or {"input_ids": (2, 16), "decoder_input_ids": (2, 16)})


def test_a_given_shape_is_taken_or_refused_with_the_layer() -> None:
    """A given shape is taken or refused with the layer."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 2))
    assert tuple(guess_inputs(model, "1,28,28", batch=5).args[0].shape) == (5, 1, 28, 28)
    assert tuple(guess_inputs(model, (28, 28)).args[0].shape) == (2, 28, 28)
    assert guess_inputs(nn.Embedding(7, 3), (4,)).args[0].dtype == torch.int64
    assert guess_inputs(nn.Identity(), (4,), torch.float64).args[0].dtype == torch.float64
    with pytest.raises(
        InputError, match=r"layer 1, Linear\(in_features=784.*got \(2, 1024\).*Pass another shape \(--input\)"
    ):
        guess_inputs(model, "1,32,32")


def test_when_nothing_can_be_guessed_the_error_says_what_to_pass() -> None:
    """When nothing can be guessed the error says what to pass."""
    with pytest.raises(InputError, match=r"no layer determines.*--input 3,224,224.*data="):
        guess_inputs(nn.ReLU())

    class Odd(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            """Run the model."""
            raise RuntimeError("not today")

    with pytest.raises(InputError, match=r"tried \(2, 3\): not today"):
        guess_inputs(Odd(3, 3))
    with pytest.raises(StateChangedError, match="lazy"):
        guess_inputs(nn.Sequential(nn.Linear(3, 3), nn.LazyLinear(2)))


def test_a_run_that_fails_names_the_layer_and_leaves_no_trace() -> None:
    """A run that fails names the layer and leaves no trace."""
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(4, 2)).train()
    before = fingerprint(model)
    with pytest.raises(InputError, match=r"shape \(4, 3\) in layer 1, Linear\(in_features=4"):
        check_runs(model, ModelInputs((X,)))
    assert fingerprint(model) == before
    assert check_runs(LINEAR, ModelInputs((X,))).args[0] is X


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            torch.zeros(2, 3, device="meta"),
            "on the meta device, without values. Pass the tensor with",
        ),
        (torch.eye(3).to_sparse(), r"dense tensor of numbers, got one that is sparse_coo. Pass x.to_dense\(\)"),
        ([[1.0, 2.0, 3.0]], r"Expected a batch of tensors or arrays, got float. Convert the numbers"),
        ([1.0, 2.0, 3.0], "got float"),
        ([[]], "empty"),
    ],
)
def test_tensors_that_are_no_numbers_in_memory_are_refused(data: Any, message: str) -> None:
    """As one tensor, and in a loader."""
    with pytest.raises(InputError, match=message):
        list(iterate(data, LINEAR))
    if isinstance(data, Tensor):
        with pytest.raises(InputError, match=message):
            list(iterate(iter([data]), LINEAR))


def test_data_made_in_inference_mode_becomes_plain() -> None:
    """It could not be differentiated at."""
    with torch.inference_mode():
        x = torch.ones(2, 3)
    assert not as_inputs(x, LINEAR).args[0].is_inference()


def test_a_forward_that_exits_does_not_run() -> None:
    """And not the process ends."""

    class Exits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise SystemExit(3)

    with pytest.raises(InputError, match=r"does not run on an input of shape \(2, 3\): it called sys.exit\(3\)"):
        check_runs(Exits(), ModelInputs((X[:2],)))


def test_an_exception_of_the_model_is_told_with_its_line() -> None:
    """A shape is no remedy for it; the module that raised is named if it is inside the model."""

    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("kaboom")

    for model, name in ((Raises(), "forward"), (nn.Sequential(nn.Linear(3, 3), Raises()), r"1\.forward")):
        place = r"test_inputs.py, line \d+"
        with pytest.raises(InputError, match=rf"^{name}\(\) raised ValueError: kaboom \({place}\) on .* \(2, 3\)\.$"):
            check_runs(model, ModelInputs((X[:2],)))


def test_exported_programs_run() -> None:
    """Their eval() raises."""
    program = torch.export.export(LINEAR, (X,)).module()
    inputs = ModelInputs((X,))
    assert check_runs(program, inputs) is inputs


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested tensors")
def test_other_layouts_are_refused_with_what_to_do() -> None:
    """Compressed rows, and rows of several lengths."""
    with pytest.raises(InputError, match=r"sparse_csr\. Pass x.to_dense\(\)"):
        as_inputs(torch.eye(3).to_sparse_csr(), LINEAR)
    with pytest.raises(InputError, match=r"nested\. Pass torch\.nested\.to_padded"):
        as_inputs(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), LINEAR)


class Boxes(Dataset[Any]):
    """Samples with what a detector is trained on: boxes, as many as there are."""

    def __init__(self, sample: Callable[[int], Any]) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


NO_NUMBERS: dict[str, Callable[[], Any]] = {
    "names of files": lambda: DataLoader([(X[i], f"{i}.png") for i in range(4)], batch_size=2),  # type: ignore[arg-type]
    "list of words": lambda: [(X, ["a", "b", "c", "d"])],
    "array of words": lambda: [(X, np.array(["a", "b", "c", "d"]))],
    "one word": lambda: [(X, "a.png")],
    "boxes": lambda: [(X, [{"boxes": torch.ones(i + 1, 4)} for i in range(4)])],
    "one mapping": lambda: [(X, {"boxes": torch.ones(2, 4)})],
    "rows of several lengths": lambda: [(X, [[1], [2, 3], [], [4]])],
    "nothing": lambda: [(X, None)],
    "mapping": lambda: [{"input": X, "labels": ["a", "b", "c", "d"]}],
    "dataset of words": lambda: Boxes(lambda i: (X[i], f"{i}.png")),
    "dataset of boxes": lambda: Boxes(lambda i: (X[i], {"boxes": torch.ones(i + 1, 4)})),
    "dataset of mappings": lambda: Boxes(lambda i: {"input": X[i], "target": {"boxes": torch.ones(i + 1, 4)}}),
    "dataset of objects": lambda: Boxes(lambda i: (X[i], SimpleNamespace())),
}


@pytest.mark.parametrize("source", NO_NUMBERS.values(), ids=NO_NUMBERS.keys())
def test_labels_that_are_no_numbers_are_left_out(source: Callable[[], Any]) -> None:
    """The model does not take them."""
    batches = list(iterate(source(), LINEAR, batch=3))
    assert torch.equal(torch.cat([inputs.tensors()[0] for inputs in batches]), X)
    assert all(inputs.labels is None and len(inputs.tensors()) == 1 for inputs in batches)


def test_lists_of_labels_are_cut_with_their_inputs() -> None:
    """One label each in every batch, whether the pair is a tuple or a mapping."""
    for data in ((X, Y.tolist()), {"input": X, "labels": Y.tolist()}):
        assert [b.labels.tolist() for b in iterate(data, LINEAR, batch=3)] == [[0, 1, 1], [0]]  # type: ignore[union-attr]


def test_samples_that_cannot_be_stacked_are_no_batch() -> None:
    """Pictures of several sizes, and what is no tensor."""
    for sample in (lambda i: X[i, : i % 2 + 1], lambda i: (X[i, : i % 2 + 1], 0), lambda i: SimpleNamespace()):
        with pytest.raises(InputError, match=r"arrays, got list\. Convert the numbers"):
            list(iterate(Boxes(sample), LINEAR))


class ByName(nn.Module):
    """A model whose arguments have names and no places."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, *, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Run the layer."""
        return self.linear(x) if scale is None else self.linear(x) * scale


class PartlyByName(ByName):
    """A model with one argument of each kind."""

    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:  # type: ignore[override]
        """Run the layer."""
        return self.linear(x) * scale


def test_arguments_that_have_no_place_are_given_by_name() -> None:
    """A tensor, a shape and a labelled batch all reach the one argument; two tensors reach one each."""
    x, y = torch.ones(4, 3), torch.arange(4)
    for inputs in (as_inputs(x, ByName()), as_inputs((x, y), ByName()), guess_inputs(ByName(), (3,))):
        assert (inputs.args, list(inputs.kwargs)) == ((), ["x"])
        assert inputs.kwargs["x"].shape[1:] == (3,)
    assert as_inputs((x, y), ByName()).labels is not None
    both = as_inputs((x, torch.ones(4, 2), y), PartlyByName())
    assert (len(both.args), list(both.kwargs), both.labels is not None) == (1, ["scale"], True)
    with pytest.raises(InputError, match=r"needs 2 inputs \(x, scale\)"):
        as_inputs((x,), PartlyByName())
