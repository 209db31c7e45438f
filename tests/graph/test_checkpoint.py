"""Checkpoints without their model: headers, streams, roles, and files that are refused."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune, spectral_norm

from normscope.core.errors import InputError, WeightsError
from normscope.graph.checkpoint import (
    Role,
    TensorEntry,
    checkpoint_files,
    guess_role,
    iterate_tensors,
    read_header,
)

STATE = {
    "conv.weight": torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0)),
    "norm.weight": torch.ones(4, dtype=torch.bfloat16),
    "head.weight": torch.randn(2, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
    "steps": torch.tensor(7),
}


def save(folder: Path, kind: str) -> Path:
    """Write the same tensors in one of the formats."""
    if kind == "safetensors":
        save_file(STATE, folder / "m.safetensors")
        return folder / "m.safetensors"
    if kind == "sharded":
        names = sorted(STATE)
        shards = {"a.safetensors": names[:1], "b.safetensors": names[1:]}
        for file, keys in shards.items():
            save_file({key: STATE[key] for key in keys}, folder / file)
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {key: file for file, keys in shards.items() for key in keys}}))
        return index
    content = {"state_dict": STATE, "epoch": 3} if kind == "wrapped" else STATE
    torch.save(content, folder / "m.pt", _use_new_zipfile_serialization=kind != "old")
    if kind == "compressed":
        with (
            zipfile.ZipFile(folder / "m.pt") as plain,
            zipfile.ZipFile(folder / "z.pt", "w", zipfile.ZIP_DEFLATED) as new,
        ):
            for name in plain.namelist():
                new.writestr(name, plain.read(name))
        return folder / "z.pt"
    return folder / "m.pt"


KINDS = ["safetensors", "sharded", "zip", "wrapped", "old", "compressed"]


@pytest.mark.parametrize("kind", KINDS)
def test_header_and_stream_agree_with_what_was_saved(tmp_path: Path, kind: str) -> None:
    """Names, shapes, dtypes, sizes and every bit, in the header's order."""
    path = save(tmp_path, kind)
    header = read_header(path)
    assert {entry.name for entry in header} == set(STATE)
    for entry in header:
        tensor = STATE[entry.name]
        assert entry.shape == tuple(tensor.shape)
        assert f"torch.{entry.dtype}" == str(tensor.dtype)
        assert entry.nbytes == tensor.numel() * tensor.element_size()
    streamed = [(entry, tensor.clone()) for entry, tensor in iterate_tensors(path)]
    assert [entry for entry, _ in streamed] == header
    assert all(torch.equal(tensor, STATE[entry.name]) for entry, tensor in streamed)


#: Prints how many mebibytes a process grows by while it reads a file; a new process has no freed memory to use again.
GROWTH = """
import os, sys
from pathlib import Path
from normscope.graph.checkpoint import iterate_tensors
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
kept, peak, before = [], 0.0, resident()
for _, tensor in iterate_tensors(Path(sys.argv[1])):
    assert float(tensor.sum()) == 2 << 20
    peak = max(peak, resident() - before)
    if sys.argv[2] == "kept":
        kept.append(tensor)
    del tensor
print(peak)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from Linux's /proc")
@pytest.mark.turns(6)
@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_peak_memory_is_near_the_largest_tensor(tmp_path: Path, ending: str) -> None:
    """A file of 128 MiB in tensors of 8 MiB: streaming needs a window of 16 MiB and a little, keeping all needs all."""
    path = tmp_path / f"m.{ending}"
    state = {f"{index}.weight": torch.ones(2 << 20) for index in range(16)}
    save_file(state, path) if ending == "safetensors" else torch.save(state, path)

    def growth(how: str) -> float:
        command = [sys.executable, "-c", GROWTH, str(path), how]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert growth("kept") > 110
    assert growth("streamed") < 30


def true_roles(model: nn.Module) -> dict[str, Role]:
    """Return what each tensor of a network is, by the class of the layer that owns it."""
    roles: dict[str, Role] = {}
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.InstanceNorm2d)
    kinds: list[tuple[tuple[type, ...], Role]] = [
        (norms, Role.NORM_SCALE),
        ((nn.Conv2d, nn.ConvTranspose2d, nn.Conv1d), Role.CONVOLUTION),
        ((nn.Linear, nn.LSTM, nn.MultiheadAttention), Role.MATRIX),
        ((nn.Embedding,), Role.EMBEDDING),
    ]
    for owner, module in model.named_modules():
        for classes, role in kinds:
            if isinstance(module, classes):
                for name, _ in module.named_parameters(recurse=False):
                    roles[f"{owner}.{name}"] = Role.BIAS if "bias" in name else role
                for name, _ in module.named_buffers(recurse=False):
                    roles[f"{owner}.{name}"] = Role.RUNNING_STATISTICS
    return roles


class Sample(nn.Module):
    """Layers of every kind under common names."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.GroupNorm(2, 8))
        self.patch_embed = nn.Conv2d(3, 8, 4)
        self.wte = nn.Embedding(50, 8)
        self.embed_tokens = nn.Embedding(50, 8)
        self.position_embeddings = nn.Embedding(9, 8)
        self.ln_f = nn.LayerNorm(8)
        self.input_layernorm = nn.RMSNorm(8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.q_proj = nn.Linear(8, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2)
        self.audio = nn.Conv1d(4, 4, 3)
        self.rnn = nn.LSTM(8, 4, bidirectional=True)
        self.fc = nn.Linear(8, 3)


def test_roles_are_guessed_from_names_and_shapes() -> None:
    """Every tensor of a model with common names."""
    model = Sample()
    roles = true_roles(model)
    assert set(roles) == set(model.state_dict())
    guesses = {name: guess_role(name, tuple(tensor.shape)) for name, tensor in model.state_dict().items()}
    assert guesses == roles


@pytest.mark.parametrize(
    ("name", "shape", "role"),
    [
        ("vit.embeddings.cls_token", (1, 1, 8), Role.EMBEDDING),
        ("pos_embed", (1, 197, 192), Role.EMBEDDING),
        ("embeddings.LayerNorm.gamma", (768,), Role.NORM_SCALE),
        ("embeddings.LayerNorm.beta", (768,), Role.BIAS),
        ("conv.parametrizations.weight.original0", (8, 1, 1, 1), Role.OTHER),
        ("conv.parametrizations.weight.original1", (8, 3, 3, 3), Role.CONVOLUTION),
        ("fc.parametrizations.weight.0._u", (8,), Role.OTHER),
        ("conv.weight_mask", (8, 3, 3, 3), Role.OTHER),
        ("fc.weight_mask", (8, 3), Role.OTHER),
        ("cls.predictions.transform.dense.weight", (768, 768), Role.MATRIX),
        ("blocks.0.token_mixing.fc1.weight", (384, 196), Role.MATRIX),
        ("logit_scale", (), Role.OTHER),
        ("layer_scale", (8,), Role.OTHER),
        ("", (3, 3), Role.MATRIX),
    ],
)
def test_special_names(name: str, shape: tuple[int, ...], role: Role) -> None:
    """Names of public checkpoints."""
    assert TensorEntry(name, shape, "float32", 0, Path()).role is role


@pytest.mark.parametrize(
    ("layer", "role"),
    [
        (nn.Conv1d(3, 4, 3), Role.CONVOLUTION),
        (nn.Conv2d(3, 4, 3), Role.CONVOLUTION),
        (nn.Conv3d(3, 4, 3), Role.CONVOLUTION),
        (nn.ConvTranspose2d(3, 4, 3), Role.CONVOLUTION),
        (nn.Linear(3, 4), Role.MATRIX),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
@pytest.mark.parametrize("hook", ["spectral norm", "pruning"])
def test_weights_behind_old_hooks_keep_their_role(layer: nn.Module, role: Role, hook: str) -> None:
    """Spectral normalization by hook and pruning store the weight as ``weight_orig``, beside vectors and masks."""
    layer = copy.deepcopy(layer)
    hooked = spectral_norm(layer) if hook == "spectral norm" else prune.l1_unstructured(layer, "weight", amount=0.5)
    guesses = {name: guess_role(name, tuple(tensor.shape)) for name, tensor in hooked.state_dict().items()}
    beside = {"weight_mask": Role.OTHER} if hook == "pruning" else {"weight_u": Role.OTHER, "weight_v": Role.OTHER}
    assert guesses == {"weight_orig": role, "bias": Role.BIAS, **beside}


class Evil:
    """An object whose pickle creates a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path: Path) -> None:
    """The message names what was asked for."""
    torch.save({"w": torch.ones(1), "x": Evil(tmp_path / "ran")}, tmp_path / "m.pt")
    with pytest.raises(WeightsError, match=r"unpickling \S*mkdir could run code"):
        read_header(tmp_path / "m.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["safetensors", "zip", "old"])
@pytest.mark.parametrize("keep", [0.0, 0.1, 0.6, 0.98])
def test_cut_files_are_refused(tmp_path: Path, kind: str, keep: float) -> None:
    """Wherever the copy stopped."""
    path = save(tmp_path, kind)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(WeightsError, match="truncated" if keep else r"is empty \(0 bytes\)"):
        list(iterate_tensors(path))


def test_indices_that_lie_are_refused(tmp_path: Path) -> None:
    """Missing files, missing tensors, files elsewhere, no map at all."""
    index = save(tmp_path, "sharded")
    good = json.loads(index.read_text())["weight_map"]
    cases = {
        "lacks c.safetensors": {"weight_map": good | {"x": "c.safetensors"}},
        "lacks .*, which": {"weight_map": good | {"x": "a.safetensors"}},
        "to name files in its own folder": {"weight_map": {"x": "../a.safetensors"}},
        "names no file": {"weight_map": {}},
        "to be JSON with a weight_map": {"weights": good},
    }
    for message, content in cases.items():
        index.write_text(json.dumps(content))
        with pytest.raises(WeightsError, match=message):
            read_header(index)
    index.write_text("{")
    with pytest.raises(WeightsError, match="to be JSON"):
        read_header(index)


def test_other_files_are_refused(tmp_path: Path) -> None:
    """Directories, unknown endings, absent files, contents that are no tensors."""
    (tmp_path / "m.h5").write_text("x")
    torch.save([torch.ones(1)], tmp_path / "list.pt")
    torch.save({"epoch": 3}, tmp_path / "epoch.pt")
    cases = {
        "": "is a directory",
        "none.pt": "File not found",
        "m.h5": r"ending in \.safetensors",
        "list.pt": "has list",
        "epoch.pt": "has epoch",
    }
    for name, message in cases.items():
        with pytest.raises(WeightsError, match=message):
            read_header(tmp_path / name)


def test_formats_that_torch_does_not_know_are_named(tmp_path: Path) -> None:
    """With the tensor; not as a failure of the reader."""
    header = b'{"a.weight": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}'
    file = tmp_path / "six.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(3))
    with pytest.raises(WeightsError, match=r"a\.weight: .*F6_E2M3. Save it in a dtype"):
        read_header(file)


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    """It is well-formed, and says nothing."""
    save_file({}, tmp_path / "m.safetensors")
    with pytest.raises(WeightsError, match=r"No tensors found in \S+m\.safetensors. Save a state dict"):
        read_header(tmp_path / "m.safetensors")


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["nested", "sparse_coo", "qint8", "on the meta device"])
def test_tensors_that_are_not_plain_numbers_are_named(tmp_path: Path, kind: str) -> None:
    """Not a failure of the reader."""
    made = {
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "sparse_coo": lambda: torch.eye(3).to_sparse(),
        "qint8": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "on the meta device": lambda: torch.ones(2, 2, device="meta"),
    }
    torch.save({"a.weight": torch.eye(2), "b.weight": made[kind]()}, tmp_path / "m.pt")
    with pytest.raises(WeightsError, match=rf"b\.weight in \S+m\.pt is {kind}.*\. Save "):
        read_header(tmp_path / "m.pt")


def test_a_folder_of_a_training_run_is_its_weights(tmp_path: Path) -> None:
    """Settings, states of optimizers and of generators lie beside them; an index says which files there are."""
    for name in ("a-1.bin", "a-2.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth",
                 "rng_state_1.pth", "scaler.pt", "random_states_0.pt"):  # fmt: skip
        (tmp_path / name).write_text("x")
    assert [file.name for file in checkpoint_files(tmp_path)] == ["a-1.bin", "a-2.bin"]
    (tmp_path / "pytorch_model.bin.index.json").write_text("{}")
    assert [file.name for file in checkpoint_files(tmp_path)] == ["pytorch_model.bin.index.json"]
    (tmp_path / "model.safetensors").write_text("x")
    (tmp_path / "optimizer.safetensors").write_text("x")
    assert [file.name for file in checkpoint_files(tmp_path)] == ["model.safetensors"]
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert [file.name for file in checkpoint_files(tmp_path)] == ["model.safetensors.index.json"]


def test_a_home_that_is_not_there_is_told() -> None:
    """Not a failure of the system."""
    with pytest.raises(InputError, match="No home folder"):
        read_header("~nosuchuser/m.pt")


@pytest.mark.filterwarnings("error")
def test_parameters_of_a_module_that_was_saved_whole_need_no_gradient(tmp_path: Path) -> None:
    """As numbers they would make torch warn."""
    torch.save(nn.Linear(2, 2), tmp_path / "whole.pt")
    assert not any(tensor.requires_grad for _, tensor in iterate_tensors(tmp_path / "whole.pt"))
