"""Checkpoint files of every kind: read without running code, unwrapped, fitted or refused by name."""

from __future__ import annotations

import argparse
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from normscope.core.errors import InputError, WeightsError
from normscope.zoo.networks.gpt import GPT
from normscope.zoo.state_dict import fitted, load_weights, mismatch, read_state_dict


class Evil:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("ending", ["pt", "pth", "bin", "ckpt", "safetensors"])
def test_formats_give_the_same_tensors(tmp_path: Path, ending: str) -> None:
    """Bit by bit."""
    state = nn.Linear(4, 3).state_dict()
    path = tmp_path / f"m.{ending}"
    save_file(state, path) if ending == "safetensors" else torch.save(state, path)
    read = read_state_dict(path)
    assert list(read) == ["weight", "bias"] or set(read) == {"weight", "bias"}
    assert all(torch.equal(read[key], state[key]) for key in state)


def test_the_format_before_zip_is_read(tmp_path: Path) -> None:
    """It cannot be mapped, only loaded."""
    torch.save({"a": torch.arange(3)}, tmp_path / "m.pt", _use_new_zipfile_serialization=False)
    assert torch.equal(read_state_dict(tmp_path / "m.pt")["a"], torch.arange(3))


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "net"])
def test_wrapping_keys_are_opened(tmp_path: Path, key: str) -> None:
    """One level or several, tensors beside the wrapper ignored; names stay as they are in the file."""
    inner = OrderedDict({"module.fc.weight": torch.ones(2), "module.fc.bias": torch.zeros(2)})
    for content in (inner, {key: inner, "epoch": 3, "loss": torch.tensor(0.1)}, {"model": {key: inner}}):
        torch.save(content, tmp_path / "m.pt")
        assert list(read_state_dict(tmp_path / "m.pt")) == ["module.fc.weight", "module.fc.bias"]


class Own(nn.Module):
    """A model with a part called module."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 2)
        self.head = nn.Linear(2, 1)


WRAPPED: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)),
    "parallel": lambda: nn.DataParallel(WRAPPED["plain"]()),
    "compiled": lambda: torch.compile(WRAPPED["plain"]()),  # type: ignore[dict-item, return-value]
    "both": lambda: nn.DataParallel(torch.compile(WRAPPED["plain"]())),  # type: ignore[arg-type]
    "inside": lambda: nn.Sequential(torch.compile(nn.Linear(3, 2)), nn.BatchNorm1d(2)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("target", WRAPPED)
@pytest.mark.parametrize("source", WRAPPED)
def test_wrappers_of_the_model_and_of_the_file_do_not_matter(tmp_path: Path, source: str, target: str) -> None:
    """A file of the model in any wrapper loads into the model in any other."""
    saved, model = WRAPPED[source](), WRAPPED[target]()
    torch.save(saved.state_dict(), tmp_path / "m.pt")
    assert load_weights(model, tmp_path / "m.pt") == []
    pairs = zip(saved.state_dict().values(), model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_part_called_module_keeps_its_name(tmp_path: Path) -> None:
    """Alone, in a wrapper, and in a file of which every name begins so."""
    for saved in (Own(), nn.DataParallel(Own())):
        torch.save(saved.state_dict(), tmp_path / "m.pt")
        model = Own()
        load_weights(model, tmp_path / "m.pt")
        assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), model.parameters(), strict=True))
    both = nn.Module()
    both.module = nn.Linear(1, 1, bias=False)
    both.weight = nn.Parameter(torch.zeros(1, 1))
    state = {"module.weight": torch.ones(1, 1), "weight": torch.zeros(1, 1)}
    assert fitted(both, state) == state
    assert list(fitted(nn.Linear(1, 1), {"module.weight": state["weight"], "_orig_mod.weight": state["weight"]})) == [
        "weight",
        "_orig_mod.weight",
    ]


def test_a_name_the_model_lacks_is_told_as_it_is_in_the_file(tmp_path: Path) -> None:
    """With its prefix."""
    torch.save({"module.weight": torch.ones(1, 2), "module.scale": torch.ones(1)}, tmp_path / "m.pt")
    with pytest.raises(WeightsError, match=r"missing: bias; unexpected: module\.scale. Build"):
        load_weights(nn.Linear(2, 1), tmp_path / "m.pt")


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["nested", "sparse_coo", "qint8", "on the meta device", "int8", "bool"])
def test_tensors_that_are_no_weights_are_named(tmp_path: Path, kind: str) -> None:
    """Integers of the right shape too: without their scale they are other weights."""
    made: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "nested": lambda w: torch.nested.nested_tensor([w[0], w[1, :2]]),
        "sparse_coo": lambda w: w.to_sparse(),
        "qint8": lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8),
        "on the meta device": lambda w: w.to("meta"),
        "int8": lambda w: (127 * w).to(torch.int8),
        "bool": lambda w: w > 0,
    }
    model = nn.Linear(3, 2)
    before = model.weight.clone()
    torch.save({**model.state_dict(), "weight": made[kind](model.weight.detach())}, tmp_path / "m.pt")
    whole = kind in ("int8", "bool")
    text = rf"integers for weight \({kind}\). They look quantized" if whole else rf"weight in \S+m\.pt is {kind}"
    for target in (model, nn.Linear(3, 2, device="meta")):
        with pytest.raises(WeightsError, match=text):
            load_weights(target, tmp_path / "m.pt")
    assert torch.equal(model.weight, before)


def test_a_buffer_of_numbers_may_be_stored_as_integers(tmp_path: Path) -> None:
    """A mask of zeros and ones is the same in both."""
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.zeros(2))
    torch.save({**model.state_dict(), "mask": torch.tensor([True, False])}, tmp_path / "m.pt")
    load_weights(model, tmp_path / "m.pt")
    assert model.mask.tolist() == [1.0, 0.0]


def test_formats_that_torch_only_stores_are_refused_with_the_tensor(tmp_path: Path) -> None:
    """They cannot be copied into the model."""
    packed = torch.zeros(2, 2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    save_file({"weight": packed, "bias": torch.zeros(2)}, tmp_path / "m.safetensors")
    with pytest.raises(WeightsError, match=r"do not fit the model: .*weight"):
        load_weights(nn.Linear(2, 2), tmp_path / "m.safetensors")


def test_the_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is not there is told."""
    torch.save({"weight": torch.ones(2)}, tmp_path / "m.pt")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list(read_state_dict("~/m.pt")) == ["weight"]
    with pytest.raises(InputError, match="No home folder"):
        read_state_dict("~nosuchuser/m.pt")


@pytest.mark.parametrize("content", [torch.ones(2), [torch.ones(2)], {}, {"epoch": 3}, {"state_dict": {}}])
def test_other_content_is_refused(tmp_path: Path, content: object) -> None:
    """Only tensors by name are a checkpoint."""
    torch.save(content, tmp_path / "m.pt")
    with pytest.raises(WeightsError, match="Expected tensors by name"):
        read_state_dict(tmp_path / "m.pt")


@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: {"state_dict": {"w": torch.ones(1)}, "extra": e}])
@pytest.mark.parametrize("archive", [True, False])
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path, wrap, archive: bool) -> None:
    """The message names what the file asked for and what to save instead."""
    marker = tmp_path / "ran"
    torch.save(wrap(Evil(marker)), tmp_path / "m.pt", _use_new_zipfile_serialization=archive)
    with pytest.raises(WeightsError, match=r"unpickling \S*mkdir could run code.*Save a state dict"):
        read_state_dict(tmp_path / "m.pt")
    assert not marker.exists()


def test_plain_pickles_are_refused_and_whole_modules_are_read(tmp_path: Path) -> None:
    """A pickled module, settings without weights, and a pickle that torch did not write."""
    module = nn.Linear(2, 2)
    torch.save(module, tmp_path / "module.pt")
    torch.save({"state_dict": {}, "args": argparse.Namespace(lr=1)}, tmp_path / "args.pt")
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    assert torch.equal(read_state_dict(tmp_path / "module.pt")["weight"], module.weight)
    with pytest.raises(WeightsError, match="Expected tensors by name"):
        read_state_dict(tmp_path / "args.pt")
    with pytest.raises(WeightsError, match=r"evil\.pt"):
        read_state_dict(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["zip.pt", "old.pt", "m.safetensors"])
@pytest.mark.parametrize("keep", [0.0, 0.02, 0.5, 0.99])
def test_cut_files_are_refused(tmp_path: Path, name: str, keep: float) -> None:
    """Wherever the copy stopped."""
    path = tmp_path / name
    state = {"a": torch.randn(50, 50, generator=torch.Generator().manual_seed(0))}
    if name == "m.safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=name == "zip.pt")
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(WeightsError, match="truncated" if keep else r"is empty \(0 bytes\)"):
        read_state_dict(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    """Text, TorchScript, unknown endings, directories, nothing at all."""
    (tmp_path / "text.pt").write_text("hello world, this is no checkpoint")
    (tmp_path / "text.safetensors").write_text("hello world, this is no checkpoint")
    (tmp_path / "m.h5").write_text("x")
    for name in ("text.pt", "text.safetensors"):
        with pytest.raises(WeightsError, match="cannot be read"):
            read_state_dict(tmp_path / name)
    with pytest.raises(WeightsError, match=r"ending in \.safetensors, \.pt.*got m\.h5"):
        read_state_dict(tmp_path / "m.h5")
    with pytest.raises(WeightsError, match="is a directory"):
        read_state_dict(tmp_path)
    with pytest.raises(WeightsError, match="File not found"):
        read_state_dict(tmp_path / "none.pt")
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), tmp_path / "script.pt")
    with pytest.raises(WeightsError, match="TorchScript archive, which contains code"):
        read_state_dict(tmp_path / "script.pt")


def test_mismatch_lists_a_dozen_of_each(tmp_path: Path) -> None:
    """Missing, unexpected and wrongly shaped keys, and how many more."""
    model = nn.ModuleList(nn.Linear(2, 1) for _ in range(8))
    content = {f"{i}.weight": torch.ones(1, 3) for i in range(8)} | {f"x{i}": torch.ones(1) for i in range(13)}
    torch.save(content, tmp_path / "m.pt")
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(WeightsError) as caught:
        load_weights(model, tmp_path / "m.pt")
    text = str(caught.value)
    assert "missing: 0.bias, 1.bias, 2.bias, 3.bias, 4.bias, 5.bias, 6.bias, 7.bias;" in text
    assert "unexpected: x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11 and 1 more;" in text
    assert "wrongly shaped: 0.weight (model 1x2, file 1x3)" in text
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_weights_arrive_in_the_model(tmp_path: Path) -> None:
    """Also without counters of batches, and from another precision."""
    source = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    state = {key: value for key, value in source.state_dict().items() if "num_batches" not in key}
    torch.save(state, tmp_path / "m.pt")
    target = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    notes = load_weights(target, tmp_path / "m.pt")
    assert len(notes) == 1
    assert "rounded to the model's precision" in notes[0]
    assert all(torch.equal(target.state_dict()[key], value.float()) for key, value in state.items())
    assert load_weights(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double(), tmp_path / "m.pt") == []


def test_a_model_without_memory_is_filled(tmp_path: Path) -> None:
    """Weights replace those on the meta device."""
    source = nn.Linear(3, 2)
    torch.save(source.state_dict(), tmp_path / "m.pt")
    target = nn.Linear(3, 2, device="meta")
    load_weights(target, tmp_path / "m.pt")
    assert torch.equal(target.weight, source.weight)


def test_tied_weights_need_one_copy(tmp_path: Path) -> None:
    """A file may leave out a tensor the model shares; an untied model misses it."""
    state = {key: value for key, value in GPT(width=8, layers=1).state_dict().items() if key != "head.weight"}
    save_file(state, tmp_path / "m.safetensors")
    model = GPT(width=8, layers=1)
    load_weights(model, tmp_path / "m.safetensors")
    assert torch.equal(model.head.weight, state["tokens.weight"])
    assert mismatch(GPT(width=8, layers=1, tied=False), state) == "missing: head.weight"


def test_a_view_of_a_part_of_a_weight_is_a_tensor_of_its_own() -> None:
    """It begins at the same address, and its numbers are not those of the whole."""
    model = nn.Linear(2, 3)
    model.register_buffer("head", model.weight.detach()[:1])
    assert mismatch(model, nn.Linear(2, 3).state_dict()) == "missing: head"


def test_complex_weights_are_refused(tmp_path: Path) -> None:
    """They would lose their imaginary parts."""
    torch.save({"weight": torch.ones(1, 2, dtype=torch.complex64), "bias": torch.ones(1)}, tmp_path / "m.pt")
    with pytest.raises(WeightsError, match="complex weight"):
        load_weights(nn.Linear(2, 1), tmp_path / "m.pt")
