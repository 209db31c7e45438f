"""The one reader of files that torch.save wrote: no code runs, every refusal says what holds, what came, what to do."""

from __future__ import annotations

import argparse
import datetime
import functools
import os
import pickle
import warnings
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from normscope.core.errors import InputError, WeightsError
from normscope.graph.safe_load import (
    CHECKPOINT,
    FileKind,
    StandIn,
    existing_file,
    holds_tensors,
    is_mappable,
    is_safetensors,
    refuse_unlike_numbers,
    safe_load,
    tensors_by_name,
    unlike_numbers,
    unreadable,
)
from normscope.zoo.state_dict import read_state_dict

DATA = FileKind("data", InputError, (".pt",), "Save plain tensors")


class Evil:
    """An object whose pickle creates a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("archive", [True, False])
def test_content_comes_back_bit_by_bit(tmp_path: Path, archive: bool) -> None:
    """Tensors of any dtype in plain containers, in both formats torch has had; only the newer one is mapped."""
    content = {"a": [torch.arange(3), torch.ones(2, dtype=torch.bfloat16)], "b": (1, "x", None), 3: torch.tensor(2.5)}
    path = tmp_path / "m.pt"
    torch.save(content, path, _use_new_zipfile_serialization=archive)
    found = safe_load(path, CHECKPOINT)
    assert is_mappable(path) is archive
    assert found["b"] == content["b"]
    assert torch.equal(found[3], content[3])
    assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(found["a"], content["a"], strict=True))


def test_large_files_are_mapped(tmp_path: Path) -> None:
    """A change of the mapped bytes on disk is seen by the tensor: nothing was copied to memory."""
    path = tmp_path / "m.pt"
    torch.save({"w": torch.full((1 << 16,), 7.0)}, path)
    tensor = safe_load(path, CHECKPOINT)["w"]
    raw = path.read_bytes()
    offset = raw.index(torch.full((8,), 7.0).numpy().tobytes())
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(torch.tensor([9.0]).numpy().tobytes())
    assert float(tensor[0]) == 9.0


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("kind", [CHECKPOINT, DATA], ids=["weights", "data"])
def test_code_is_refused_by_name_and_not_run(tmp_path: Path, kind: FileKind, archive: bool) -> None:
    """The error is the kind's own, and says how to save the file instead."""
    path = tmp_path / "m.pt"
    torch.save({"w": torch.ones(1), "x": Evil(tmp_path / "ran")}, path, _use_new_zipfile_serialization=archive)
    with pytest.raises(kind.error) as caught:
        safe_load(path, kind)
    text = str(caught.value)
    assert "Only tensors and plain containers are loaded" in text
    assert "mkdir could run code" in text
    assert text.endswith(kind.save)
    assert not (tmp_path / "ran").exists()


def test_no_message_advises_to_switch_the_protection_off(tmp_path: Path) -> None:
    """Torch's own texts do; a pickle of another program, plain text and a script archive get ours."""
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    (tmp_path / "text.pt").write_text("hello world, this is no checkpoint")
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as archive:
        archive.writestr("readme.txt", "not written by torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), tmp_path / "script.pt")
    for name in ("plain", "text", "zip", "script"):
        with pytest.raises(WeightsError) as caught:
            safe_load(tmp_path / f"{name}.pt", CHECKPOINT)
        text = str(caught.value)
        assert f"{name}.pt" in text
        assert "\n" not in text
        assert "Save " in text
        assert "weights_only" not in text
        assert "add_safe_globals" not in text
        assert ("TorchScript archive, which contains code" in text) is (name == "script")
    assert not (tmp_path / "ran").exists()


class Settings:
    """A class of some training script, with and without what pickles as a list, a mapping and slots."""

    def __init__(self) -> None:
        self.rate = 0.1


class Items(list[int]):
    """A list of a class of its own."""


class Places(dict[str, int]):
    """A mapping of a class of its own."""


@pytest.mark.parametrize("archive", [True, False])
def test_what_training_scripts_save_beside_the_weights_is_passed_over(tmp_path: Path, archive: bool) -> None:
    """Arguments, paths, numpy's numbers, dates, objects: no class of them is loaded, and the weights are read."""
    state = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).state_dict()
    beside = {
        "args": argparse.Namespace(lr=0.1, out=Path("runs")),
        "best": np.float64(0.3),
        "history": np.ones(3),
        "when": datetime.datetime(2026, 1, 2),
        "counts": defaultdict(list, {1: [2]}),
        "act": functools.partial(print, 1),
        "own": [Settings(), Items([1, 2]), Places(a=1), {1, 2}],
    }
    path = tmp_path / "m.pt"
    torch.save({"state_dict": state, **beside}, path, _use_new_zipfile_serialization=archive)
    found = tensors_by_name(safe_load(path, CHECKPOINT), "m.pt")
    assert list(found) == list(state)
    assert all(torch.equal(found[key], state[key]) for key in state)
    with pytest.raises(InputError, match="Refused to load"):
        safe_load(path, DATA)


class Tabled(nn.Module):
    """A module with a buffer that its state dict leaves out, a part that is absent, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(2), persistent=False)
        self.register_buffer("mean", torch.zeros(2))
        self.first = self.again = nn.utils.weight_norm(nn.Linear(2, 2))
        self.register_module("absent", None)


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("key", ["", "model"])
def test_a_module_that_was_saved_whole_counts_as_its_state_dict(tmp_path: Path, key: str, archive: bool) -> None:
    """Read without importing a class of it; alone, or under a key beside an optimizer."""
    torch.manual_seed(0)
    path = tmp_path / "m.pt"
    for module in (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), Tabled()):
        content = {key: module, "optimizer": torch.optim.SGD(module.parameters())} if key else module
        torch.save(content, path, _use_new_zipfile_serialization=archive)
        found, state = tensors_by_name(safe_load(path, CHECKPOINT), "m.pt"), module.state_dict()
        assert set(found) == set(state)
        assert all(torch.equal(found[name], state[name]) for name in state)


@pytest.mark.parametrize("error", [KeyError(101), OSError(22, "Invalid argument")])
def test_errors_that_only_damage_explains_are_left_out(error: Exception) -> None:
    """A byte or an offset that makes no sense tells a user nothing; what else the system says stays."""
    assert str(unreadable(Path("m.pt"), CHECKPOINT, error)).startswith("m.pt cannot be read as a checkpoint. It may be")
    assert "Too many open files" in str(unreadable(Path("m.pt"), CHECKPOINT, OSError(24, "Too many open files")))


@pytest.mark.parametrize(
    "asked",
    [b"cbuiltins\neval\n", b"c__builtin__\nexec\n", b"csubprocess\nPopen\n", b"cimportlib\nimport_module\n"],
)
def test_what_would_run_code_is_refused_and_not_passed_over(tmp_path: Path, asked: bytes) -> None:
    """Written as pickles by hand: a stand-in would do no harm, but such a file is no checkpoint."""
    path = tmp_path / "m.pt"
    _archive(path, b"\x80\x02" + asked + b"X\x03\x00\x00\x001+1\x85R.")
    with pytest.raises(WeightsError, match=asked.split(b"\n")[1].decode() + " could run code"):
        safe_load(path, CHECKPOINT)


def test_a_file_cannot_change_a_class(tmp_path: Path) -> None:
    """A pickle may ask to set attributes of whatever it names: only stand-ins take any."""
    path = tmp_path / "m.pt"
    state = b"N}X\x06\x00\x00\x00markedK\x01s\x86b"  # (None, {"marked": 1}), build
    for named in (b"ctorch.nn.parameter\nParameter\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ca.b\nC\n"):
        _archive(path, b"\x80\x02cargparse\nNamespace\n0" + named + state + b".")
        with pytest.raises(WeightsError, match="cannot be read as a checkpoint"):
            safe_load(path, CHECKPOINT)
    assert not hasattr(nn.Parameter, "marked")
    assert not hasattr(torch._utils._rebuild_tensor_v2, "marked")
    assert not hasattr(StandIn, "marked")


def _archive(path: Path, pickled: bytes) -> None:
    """Write what torch.save would write around a pickle."""
    torch.save({}, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, pickled if name.endswith("data.pkl") else content)


@pytest.mark.parametrize("archive", [True, False])
def test_cut_files_are_refused_wherever_the_copy_stopped(tmp_path: Path, archive: bool) -> None:
    """At every so many bytes, and the whole file is read."""
    path = tmp_path / "m.pt"
    state = {"a": torch.randn(20, 20, generator=torch.Generator().manual_seed(0))}
    torch.save(state, path, _use_new_zipfile_serialization=archive)
    content = path.read_bytes()
    lengths = range(
        0, len(content), len(content) // 50 if archive else 7
    )  # the older one names functions in plain text
    for length in lengths:
        path.write_bytes(content[:length])
        # A cut name in the older format reads as that of another function.
        said = "truncated" if archive else r"truncated|unpickling [\w.]+ could run code"
        with pytest.raises(WeightsError, match=said if length else r"is empty \(0 bytes\)"):
            safe_load(path, CHECKPOINT)
    path.write_bytes(content)
    assert torch.equal(safe_load(path, CHECKPOINT)["a"], state["a"])


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """Directories, absent and empty files, other endings."""
    (tmp_path / "m.h5").write_text("x")
    (tmp_path / "empty.pt").touch()
    (tmp_path / "folder.pt").mkdir()
    cases = {
        "": r"\S+ is a directory. Name a file in it",
        "folder.pt": "is a directory",
        "none.pt": r"File not found: \S*none\.pt. Check the path",
        "m.h5": r"ending in \.safetensors, \.pt.*, got m\.h5",
        "empty.pt": r"is empty \(0 bytes\). Copy it again",
    }
    for name, message in cases.items():
        with pytest.raises(WeightsError, match=message):
            safe_load(tmp_path / name, CHECKPOINT)
        with pytest.raises(WeightsError, match=message):
            existing_file(tmp_path / name, CHECKPOINT)


def test_a_file_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason of the system."""
    torch.save({}, tmp_path / "m.pt")

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(WeightsError, match=r"Cannot read .*Permission denied.*Check its permissions"):
        safe_load(tmp_path / "m.pt", CHECKPOINT)


def test_tensors_are_found_at_the_top_or_under_a_wrapper() -> None:
    """One level or several; what is no tensor is left out; what has none is described."""
    inner = {"w": torch.ones(1), "version": 3}
    for content in (inner, {"state_dict": inner, "loss": torch.ones(1)}, {"model": {"model_state_dict": inner}}):
        assert list(tensors_by_name(content, "m.pt")) == ["w"]
    cases = {"list": [torch.ones(1)], "nothing": {}, "epoch, lr": {"epoch": 3, "lr": 0.1}, "Tensor": torch.ones(2)}
    for held, content in cases.items():
        with pytest.raises(WeightsError, match=rf"Expected tensors by name.*; m\.pt has {held}. Save"):
            tensors_by_name(content, "m.pt")


def test_a_file_that_was_compressed_again_is_read_as_a_whole(tmp_path: Path) -> None:
    """Its bytes on disk are not the tensors: mapped, they would come back as other numbers."""
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    torch.save({"w": weight}, tmp_path / "m.pt")
    again = tmp_path / "again.pt"
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        with zipfile.ZipFile(tmp_path / "m.pt") as old, zipfile.ZipFile(again, "w", method) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
        assert is_mappable(again) is (method == zipfile.ZIP_STORED)
        assert torch.equal(safe_load(again, CHECKPOINT)["w"], weight)


SD = {"fc.weight": torch.eye(2), "fc.bias": torch.zeros(2)}


@pytest.mark.parametrize(
    "content",
    [
        {"net": SD, "best_acc": torch.tensor(0.9)},
        {"net": SD, "rng": torch.zeros(9, dtype=torch.uint8), "epoch": 3},
        {"net": {"state_dict": SD}, "metrics": {"loss": torch.tensor(0.1)}},
        {"net": SD, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []}},
        {"model": {"depth": 3}, "net": SD},
        {"net": SD, "model": SD, "ema": dict(SD)},
        {**SD, "fc._extra_state": {"scale": torch.ones(2)}},
        {**SD, "metrics": {"loss": torch.tensor(0.1)}},
    ],
)
def test_the_only_state_dict_is_found_under_any_key(content: dict[str, Any]) -> None:
    """Scores, counters, states of generators and of optimizers are no weights."""
    assert tensors_by_name(content, "m.pt") == SD


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"generator": SD, "discriminator": dict(SD), "step": torch.tensor(5)}, "has the state dicts generator, dis"),
        ({"net": {"a": SD, "b": dict(SD)}}, r"net/a, net/b\. Save one .*torch\.load\(FILE\)\['net'\]\['a'\]"),
        ({"net": SD, "curve": torch.ones(9)}, "has curve beside the state dicts net"),
    ],
)
def test_several_state_dicts_are_named(content: dict[str, Any], message: str) -> None:
    """None is taken by chance, and loose tensors are not taken instead."""
    with pytest.raises(WeightsError, match=message):
        tensors_by_name(content, "m.pt")


def test_a_mapping_inside_itself_is_walked_once(tmp_path: Path) -> None:
    """Directly and around a corner."""
    direct: dict[str, Any] = dict(SD)
    direct["model"] = direct
    torch.save(direct, tmp_path / "m.pt")
    assert list(tensors_by_name(safe_load(tmp_path / "m.pt", CHECKPOINT), "m.pt")) == list(SD)
    outer: dict[str, Any] = {}
    outer["model"] = {**SD, "model": outer}
    assert list(tensors_by_name(outer, "m.pt")) == list(SD)
    empty: dict[str, Any] = {}
    empty["state_dict"] = empty
    with pytest.raises(WeightsError, match="has state_dict"):
        tensors_by_name(empty, "m.pt")


def test_integers_alone_are_a_state_dict_too() -> None:
    """Of quantized weights, say; under a wrapper or not."""
    packed = {"w": torch.ones(2, dtype=torch.int8)}
    assert tensors_by_name(packed, "m.pt") == tensors_by_name({"model": packed}, "m.pt") == packed


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:The PyTorch API of nested tensors")
def test_tensors_that_are_not_plain_numbers_are_named_with_their_mend() -> None:
    """Each by what it is."""
    cases = {
        "qint8": (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "x.dequantize()"),
        "sparse_coo": (torch.eye(2).to_sparse(), "x.to_dense()"),
        "nested": (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "torch.nested.to_padded_tensor(x, 0.0)"),
        "on the meta device, without values": (torch.ones(2, device="meta"), "the tensor with its values"),
    }
    for kind, (tensor, mend) in cases.items():
        assert unlike_numbers(tensor) == (kind, mend)
        with pytest.raises(WeightsError) as caught:
            refuse_unlike_numbers({"a": torch.ones(1), "b": tensor}, "m.pt")
        assert str(caught.value) == f"Expected dense numbers as weights, but b in m.pt is {kind}. Save {mend}."


def test_names_too_long_for_a_file_are_no_file(tmp_path: Path) -> None:
    """The system refuses even to look."""
    with pytest.raises(WeightsError, match="File not found"):
        existing_file(tmp_path / ("a" * 400 + ".pt"), CHECKPOINT)


@pytest.mark.parametrize("ending", [".pt", ".bin", ".ckpt", ".th", ".safetensors"])
def test_the_format_is_told_by_content(ending: str, tmp_path: Path) -> None:
    """Under every ending that checkpoints have."""
    file = tmp_path / f"m{ending}"
    safetensors.torch.save_file({"weight": torch.ones(2, 2)}, file)
    assert is_safetensors(file)
    assert torch.equal(read_state_dict(file)["weight"], torch.ones(2, 2))
    if ending != ".safetensors":
        torch.save({"weight": torch.zeros(3)}, file)
        assert not is_safetensors(file)
        assert read_state_dict(file)["weight"].numel() == 3


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_state_dict_kept_as_a_list(wrapped: bool, tmp_path: Path) -> None:
    """Of names and tensors, bare or under a key."""
    pairs = list({"weight": torch.ones(2), "bias": torch.zeros(1)}.items())
    torch.save({"state_dict": pairs, "epoch": 3} if wrapped else pairs, tmp_path / "m.pt")
    assert {k: v.tolist() for k, v in read_state_dict(tmp_path / "m.pt").items()} == {"weight": [1, 1], "bias": [0]}


@pytest.mark.parametrize("name", ["noending", "m.weights", "m.pth.tar", "m.old", "epoch=3.model"])
@pytest.mark.parametrize("how", ["zip", "legacy", "safetensors"])
def test_files_of_tensors_may_have_any_name(name: str, how: str, tmp_path: Path) -> None:
    """They are told by their first bytes; text is no checkpoint, whatever its name."""
    path = tmp_path / name
    if how == "safetensors":
        safetensors.torch.save_file({"a": torch.ones(2)}, path)
    else:
        torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=how == "zip")
    assert holds_tensors(path)
    existing_file(path, CHECKPOINT)
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    assert not holds_tensors(path)
    with pytest.raises(WeightsError, match="ending in"):
        existing_file(path, CHECKPOINT)
