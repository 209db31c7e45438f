"""Checkpoints without their model: every norm against dense singular values, every mistake named."""

from __future__ import annotations

import copy
import json
import math
import os
import struct
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm

from normscope import analyze
from normscope.analysis.checkpoint import (
    CheckpointResult,
    TensorResult,
    analyze_checkpoint,
    is_checkpoint,
)
from normscope.core.errors import InputError, NonFiniteError, WeightsError
from normscope.linalg import dense


def _random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _norm(weight: torch.Tensor) -> float:
    return float(torch.linalg.matrix_norm(weight.detach().double().flatten(1), ord=2))


def _analyzed(tensors: dict[str, torch.Tensor], folder: Path, name: str = "m.safetensors") -> dict[str, TensorResult]:
    save_file(tensors, folder / name)
    return {t.name: t for t in analyze_checkpoint(folder / name).tensors}


def _encloses(result: TensorResult, truth: float, width: float = 1e-8) -> bool:
    upper, lower = result.upper, result.lower
    assert upper is not None
    assert lower is not None
    above = upper.log >= math.log(truth) - 1e-12
    return above and lower.log <= math.log(truth) + 1e-12 and upper.log - lower.log < width


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_matrices_of_every_precision(tmp_path: Path, dtype: torch.dtype) -> None:
    """Matrices of every precision."""
    weight = _random(24, 17, dtype=dtype)
    found = _analyzed({"fc.weight": weight}, tmp_path)["fc.weight"]
    assert found.role == "matrix"
    assert found.dtype == str(dtype).removeprefix("torch.")
    assert _encloses(found, _norm(weight))


def test_eight_bit_floats_are_read_exactly(tmp_path: Path) -> None:
    """Eight bit floats are read exactly."""
    weight = _random(9, 7).to(torch.float8_e4m3fn)
    assert _encloses(_analyzed({"fc.weight": weight}, tmp_path)["fc.weight"], _norm(weight))


def test_large_matrices_go_through_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large matrices go through blocks."""
    weight = _random(40, 30)
    monkeypatch.setattr(dense, "LARGEST_COPIED", 100)
    monkeypatch.setattr(dense, "to_unit_scale", None)  # it would convert the whole matrix
    assert _encloses(_analyzed({"fc.weight": weight}, tmp_path)["fc.weight"], _norm(weight))


@pytest.mark.parametrize(
    ("stride", "padding", "groups", "dilation"), [(1, 1, 1, 1), (2, 1, 1, 1), (1, 0, 2, 1), (1, 2, 1, 2)]
)
def test_convolution_certificate_covers_the_convolution(
    tmp_path: Path, stride: int, padding: int, groups: int, dilation: int
) -> None:
    """Convolution certificate covers the convolution."""
    conv = nn.Conv2d(4, 6, 3, stride=stride, padding=padding, groups=groups, dilation=dilation, bias=False).double()
    conv.weight.data.copy_(_random(*conv.weight.shape, dtype=torch.float64))
    found = _analyzed({"conv.weight": conv.weight.data}, tmp_path)["conv.weight"]
    assert found.role == "convolution"
    assert found.kernel is not None
    assert _norm(conv.weight) <= found.kernel.value <= _norm(conv.weight) * (1 + 1e-8)
    basis = torch.eye(4 * 7 * 7, dtype=torch.float64).reshape(-1, 4, 7, 7)
    truth = float(torch.linalg.matrix_norm(conv(basis).detach().flatten(1), ord=2))
    assert found.upper is not None
    assert found.lower is not None
    assert found.lower.value <= truth * (1 + 1e-12)
    assert truth <= found.upper.value <= 3.0 * _norm(conv.weight) * (1 + 1e-8)


def test_convolution_certificate_is_nearly_attained_by_a_box_kernel(tmp_path: Path) -> None:
    """Convolution certificate is nearly attained by a box kernel."""
    found = _analyzed({"conv.weight": torch.full((1, 1, 3, 3), 1 / 3)}, tmp_path)["conv.weight"]
    basis = torch.eye(24 * 24).reshape(-1, 1, 24, 24).double()
    image = nn.functional.conv2d(basis, torch.full((1, 1, 3, 3), 1 / 3).double(), padding=1)
    truth = float(torch.linalg.matrix_norm(image.flatten(1), ord=2))
    assert found.upper is not None
    assert truth <= found.upper.value < 1.02 * truth


def test_norm_scales_biases_and_running_statistics(tmp_path: Path) -> None:
    """Norm scales biases and running statistics."""
    tensors = {
        "bn.weight": torch.tensor([0.5, -3.0]),
        "bn.bias": torch.tensor([-7.0, 2.0]),
        "bn.running_mean": torch.tensor([-4.0, 1.0]),
        "bn.running_var": torch.tensor([0.25, 9.0]),
        "bn.num_batches_tracked": torch.tensor(5),
    }
    found = _analyzed(tensors, tmp_path)
    assert found["bn.weight"].role == "norm scale"
    assert found["bn.weight"].details == {"largest": 3.0}
    assert found["bn.bias"].details == {"largest": 7.0}
    assert found["bn.running_mean"].details == {"largest": 4.0}
    assert found["bn.running_var"].details == {"std_min": 0.5, "std_max": 3.0, "variance_min": 0.25}
    assert "no norm" in found["bn.num_batches_tracked"].note


def test_a_negative_variance_is_told(tmp_path: Path) -> None:
    """A negative variance is told."""
    save_file({"bn.running_var": torch.tensor([-0.25, 9.0])}, tmp_path / "m.safetensors")
    assert any("negative in bn.running_var" in m for m in analyze_checkpoint(tmp_path / "m.safetensors").messages)


def test_embeddings_have_a_norm_and_a_largest_row(tmp_path: Path) -> None:
    """Embeddings have a norm and a largest row."""
    table = _random(50, 8)
    found = _analyzed({"wte.weight": table}, tmp_path)["wte.weight"]
    truth = float(table.double().norm(dim=1).max())
    assert found.role == "embedding"
    assert _encloses(found, _norm(table))
    assert truth <= found.details["largest_row"] <= truth * (1 + 1e-12)


@pytest.mark.parametrize("kind", ["old", "new"])
def test_weight_normalization_is_put_together(tmp_path: Path, kind: str) -> None:
    """Weight normalization is put together."""
    layer = nn.Conv1d(3, 5, 2)
    layer.weight.data.copy_(_random(5, 3, 2))
    wrapped = parametrizations.weight_norm(layer) if kind == "new" else torch.nn.utils.weight_norm(layer)
    state = {k: v.detach().clone() for k, v in wrapped.state_dict().items()}
    for key in state:
        if key.endswith(("weight_g", "original0")):
            state[key] = torch.tensor([3.0, -1.0, 0.5, 2.0, 1.0]).reshape(5, 1, 1)
    found = _analyzed(state, tmp_path)
    direction = next(t for name, t in found.items() if name.endswith(("weight_v", "original1")))
    v = state[direction.name].double()
    acts = (
        torch.tensor([3.0, -1.0, 0.5, 2.0, 1.0]).double().reshape(5, 1, 1) * v / v.flatten(1).norm(dim=1)[:, None, None]
    )
    assert "the effective weight" in direction.note
    assert direction.kernel is not None
    assert _norm(acts) <= direction.kernel.value <= _norm(acts) * (1 + 1e-8)


def test_a_direction_without_its_gain_is_told(tmp_path: Path) -> None:
    """A direction without its gain is told."""
    found = _analyzed({"fc.weight_v": _random(4, 3)}, tmp_path)["fc.weight_v"]
    assert "not the effective weight" in found.note


def test_spectral_normalization_is_told(tmp_path: Path) -> None:
    """Spectral normalization is told."""
    state = parametrizations.spectral_norm(nn.Linear(4, 3)).state_dict()
    found = _analyzed({k: v.clone() for k, v in state.items()}, tmp_path)
    assert "before spectral normalization" in found["parametrizations.weight.original"].note


@pytest.mark.parametrize("hook", ["spectral normalization", "pruning"])
def test_convolutions_behind_old_hooks_are_measured_and_told(hook: str, tmp_path: Path) -> None:
    """The stored kernel has the norm of its matrix and a size-free certificate; the note says what the layer adds."""
    conv = nn.Conv2d(3, 4, 3)
    hooked = spectral_norm(conv) if "spectral" in hook else prune.l1_unstructured(conv, "weight", amount=0.5)
    found = _analyzed({k: v.clone() for k, v in hooked.state_dict().items()}, tmp_path)["weight_orig"]
    assert found.role == "convolution"
    assert f"before {hook}" in found.note
    truth = _norm(hooked.weight_orig.detach().flatten(1))
    assert found.kernel is not None
    assert truth <= found.kernel.value <= truth * (1 + 1e-8)
    assert found.upper is not None
    assert found.upper.value >= 3 * truth


def test_products_are_printed_and_in_the_log_domain(tmp_path: Path) -> None:
    """Products are printed and in the log domain."""
    tensors = {f"layers.{i}.weight": torch.eye(3) * 1e30 for i in range(20)}
    save_file(tensors, tmp_path / "m.safetensors")
    product = analyze_checkpoint(tmp_path / "m.safetensors").products["printed_weights"]
    assert product.kind.value == "printed"
    assert math.isclose(product.log10, 600.0, rel_tol=1e-7)


def test_products_say_what_they_multiply(tmp_path: Path) -> None:
    """Bounds of the layers as they act, and reshaped kernels beside them."""
    save_file({"a.weight": torch.eye(2), "b.weight": torch.ones(1, 1, 2, 2)}, tmp_path / "m.safetensors")
    products = analyze_checkpoint(tmp_path / "m.safetensors").products
    assert math.isclose(products["printed_weights"].value, 4.0, rel_tol=1e-9)
    assert math.isclose(products["printed_kernels"].value, 2.0, rel_tol=1e-9)


_LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "one axis": (nn.Conv1d(2, 3, 4, padding=3), (2, 9)),
    "three axes": (nn.Conv3d(1, 2, 2, padding=1), (1, 4, 3, 3)),
    "depthwise": (nn.Conv2d(4, 4, 3, padding=1, groups=4), (4, 6, 6)),
    "transposed": (nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1), (3, 5, 5)),
    "transposed, in groups": (nn.ConvTranspose2d(4, 4, 3, groups=2), (4, 5, 5)),
    "circular": (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), (2, 6, 6)),
    "patches": (nn.Conv2d(3, 5, 4, stride=4), (3, 8, 8)),
    "dilated": (nn.Conv2d(2, 2, 3, padding=4, dilation=4, stride=2), (2, 9, 9)),
    "matrix": (nn.Linear(5, 7), (5,)),
}


@pytest.mark.parametrize("sign", [False, True], ids=["random", "of one sign"])
@pytest.mark.parametrize("name", _LAYERS)
def test_upper_is_above_the_layer_as_it_acts(name: str, sign: bool, tmp_path: Path) -> None:
    """Of every layout, on images on which the layer is a dense matrix; kernels of one sign are the hardest."""
    layer, shape = _LAYERS[name]
    layer = copy.deepcopy(layer).double()
    weight = _random(*layer.weight.shape, dtype=torch.float64)  # type: ignore[operator, misc]
    layer.weight.data = weight.abs() if sign else weight  # type: ignore[union-attr]
    layer.bias = None
    found = _analyzed({"layer.weight": layer.weight.detach()}, tmp_path)["layer.weight"]  # type: ignore[operator]
    basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    truth = float(torch.linalg.matrix_norm(layer(basis).detach().flatten(1), ord=2))
    assert found.upper is not None
    assert found.lower is not None
    assert found.lower.value <= truth * (1 + 1e-9)
    assert truth <= found.upper.value


def test_the_product_of_a_checkpoint_is_that_of_its_model_or_above(tmp_path: Path) -> None:
    """Under the same name, with convolutions on the model's own image size there."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3))
    for p in model.parameters():
        p.data = _random(*p.shape).abs()
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    weights = analyze_checkpoint(tmp_path / "m.safetensors").products["printed_weights"]
    of_model = analyze(model, _random(2, 2, 6, 6)).end_to_end["printed_weights"]
    assert of_model is not None
    assert of_model.log <= weights.log <= of_model.log + math.log(9.0)


def test_pt_files_and_progress(tmp_path: Path) -> None:
    """Pt files and progress."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    torch.save({"state_dict": model.state_dict()}, tmp_path / "m.pt")
    said: list[str] = []
    result = analyze_checkpoint(tmp_path / "m.pt", said.append)
    assert [t.name for t in result.tensors] == list(model.state_dict())
    assert said[0] == "tensor 1 of 7: 0.weight"
    assert result.checkpoint["numbers"] == sum(v.numel() for v in model.state_dict().values())


def test_directories_and_shards(tmp_path: Path) -> None:
    """Directories and shards."""
    save_file({"a.weight": torch.eye(2)}, tmp_path / "one.safetensors")
    save_file({"b.weight": 2 * torch.eye(2)}, tmp_path / "two.safetensors")
    assert [t.name for t in analyze_checkpoint(tmp_path).tensors] == ["a.weight", "b.weight"]
    index = {"weight_map": {"a.weight": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert [t.name for t in analyze_checkpoint(tmp_path).tensors] == ["a.weight"]
    assert not any("config.json" in message for message in analyze_checkpoint(tmp_path).messages)
    (tmp_path / "config.json").write_text("{}")
    assert any(f"hf:{tmp_path}" in message for message in analyze_checkpoint(tmp_path).messages)


def test_a_directory_without_weights(tmp_path: Path) -> None:
    """A directory without weights."""
    with pytest.raises(WeightsError, match="No checkpoint"):
        analyze_checkpoint(tmp_path)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_not_finite_names_the_tensor(tmp_path: Path, bad: float, dtype: torch.dtype) -> None:
    """Not finite names the tensor."""
    weight = torch.ones(3, 3, dtype=dtype)
    weight[1, 1] = bad
    save_file({"good.weight": torch.eye(2), "bad.weight": weight}, tmp_path / "m.safetensors")
    with pytest.raises(NonFiniteError, match=r"bad\.weight has"):
        analyze_checkpoint(tmp_path / "m.safetensors")


def test_complex_weights_are_refused(tmp_path: Path) -> None:
    """Complex weights are refused."""
    torch.save({"fc.weight": torch.ones(2, 2, dtype=torch.complex64)}, tmp_path / "m.pt")
    with pytest.raises(WeightsError, match=r"fc\.weight is complex64"):
        analyze_checkpoint(tmp_path / "m.pt")


class _Payload:
    """An object whose unpickling would make a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.target),))


def test_no_code_is_run(tmp_path: Path) -> None:
    """No code is run."""
    torch.save({"fc.weight": torch.eye(2), "x": _Payload(tmp_path / "ran")}, tmp_path / "m.pt")
    with pytest.raises(WeightsError, match="could run code"):
        analyze_checkpoint(tmp_path / "m.pt")
    assert not (tmp_path / "ran").exists()


def test_json_and_save(tmp_path: Path) -> None:
    """Json and save."""
    save_file({"fc.weight": torch.zeros(2, 2)}, tmp_path / "m.safetensors")
    result: CheckpointResult = analyze_checkpoint(tmp_path / "m.safetensors")
    written = json.loads(result.save(tmp_path / "result.json").read_text())
    assert (written["schema_version"], written["kind"]) == (1, "weights")
    assert written["tensors"][0]["upper"]["log10"] == "-inf"
    assert written == result.to_dict()


def test_formats_that_torch_only_stores_are_listed_with_the_reason(tmp_path: Path) -> None:
    """The rest of the file is measured."""
    header = {
        "a.weight": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]},
        "b.weight": {"dtype": "F4", "shape": [2, 4], "data_offsets": [4, 8]},
    }
    text = json.dumps(header).encode()
    file = tmp_path / "packed.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<f", 3.0) + bytes(4))
    result = analyze_checkpoint(file)
    plain, packed = result.tensors
    assert plain.upper is not None
    assert plain.upper.value == pytest.approx(3.0)
    assert (packed.upper, packed.lower) == (None, None)
    assert packed.note == "not measured: torch cannot convert float4_e2m1fn_x2 to numbers"
    assert any("1 tensors are not measured" in message for message in result.messages)


def test_the_index_of_pickled_shards_may_be_named(tmp_path: Path) -> None:
    """As its directory may."""
    torch.save({"a.weight": torch.eye(2)}, tmp_path / "m-1.bin")
    torch.save({"b.weight": torch.eye(2) * 2}, tmp_path / "m-2.bin")
    index = tmp_path / "m.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a.weight": "m-1.bin", "b.weight": "m-2.bin"}}))
    assert is_checkpoint(str(index))
    named, whole = analyze_checkpoint(index), analyze_checkpoint(tmp_path)
    assert [t.name for t in named.tensors] == ["a.weight", "b.weight"]
    assert named.tensors == whole.tensors


@pytest.mark.parametrize("kind", ["epochs", "precisions", "indices"])
def test_several_checkpoints_in_a_directory_are_not_multiplied(tmp_path: Path, kind: str) -> None:
    """The first name that comes twice is told, with both files."""
    if kind == "epochs":
        for epoch in range(3):
            torch.save({"fc.weight": 10 * torch.eye(3)}, tmp_path / f"epoch{epoch}.pt")
        files = r"epoch0\.pt and in epoch1\.pt"
    else:
        save_file({"fc.weight": 10 * torch.eye(3)}, tmp_path / "model.safetensors")
        save_file({"fc.weight": 10 * torch.eye(3).half()}, tmp_path / "model.fp16.safetensors")
        files = r"model\.fp16\.safetensors and in model\.safetensors"
    if kind == "indices":
        for name in ("model", "model.fp16"):
            index = {"weight_map": {"fc.weight": f"{name}.safetensors"}}
            (tmp_path / f"{name}.safetensors.index.json").write_text(json.dumps(index))
        files = r"model\.fp16\.safetensors\.index\.json and in model\.safetensors\.index\.json"
    with pytest.raises(
        WeightsError, match=rf"one checkpoint in the directory, but fc\.weight is in {files}\. Name the file"
    ):
        analyze_checkpoint(tmp_path)


def test_a_folder_of_a_training_run_is_read(tmp_path: Path) -> None:
    """Its settings would ask for code, and the state of its optimizer is no weights."""
    torch.save({"a.weight": 2 * torch.eye(3)}, tmp_path / "pytorch_model-1.bin")
    torch.save({"b.weight": 3 * torch.eye(3)}, tmp_path / "pytorch_model-2.bin")
    torch.save(_Payload(tmp_path / "ran"), tmp_path / "training_args.bin")
    torch.save({"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": []}, tmp_path / "optimizer.pt")
    index = {"weight_map": {"a.weight": "pytorch_model-1.bin", "b.weight": "pytorch_model-2.bin"}}
    for _ in range(2):
        result = analyze_checkpoint(tmp_path)
        assert [t.name for t in result.tensors] == ["a.weight", "b.weight"]
        assert result.products["printed_weights"].value == pytest.approx(6.0)
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("name", ["attn_mask", "encoder.causal_mask", "bias_mask", "block.tril"])
def test_masks_of_minus_infinity_are_listed_without_a_norm(tmp_path: Path, name: str) -> None:
    """And said; the rest is measured."""
    mask = torch.triu(torch.full((3, 3), -math.inf), 1)
    torch.save({"fc.weight": 2 * torch.eye(3), name: mask}, tmp_path / "m.pt")
    result = analyze_checkpoint(tmp_path / "m.pt")
    found = {t.name: t for t in result.tensors}[name]
    assert (found.upper, found.lower, found.details) == (None, None, {})
    assert "minus infinity" in found.note
    assert any(f"{name}: contains minus infinity" in message for message in result.messages)
    assert result.products["printed_weights"].value == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("fc.weight", -math.inf),
        ("in_proj_weight", -math.inf),
        ("fc.bias", -math.inf),
        ("bn.running_mean", -math.inf),
        ("pos_embed", -math.inf),
        ("attn_mask", math.inf),
        ("attn_mask", math.nan),
    ],
)
def test_other_infinities_are_refused(tmp_path: Path, name: str, bad: float) -> None:
    """Weights by their name, and what no mask holds."""
    torch.save({"ok.weight": torch.eye(2), name: torch.tensor([[0.0, bad], [0.0, 1.0]])}, tmp_path / "m.pt")
    with pytest.raises(NonFiniteError, match=rf"finite weights, but {name} has"):
        analyze_checkpoint(tmp_path / "m.pt")


P = "fc.parametrizations.weight.original"


@pytest.mark.parametrize(
    "first",
    [
        torch.ones(5),
        torch.full((3,), 7.0),
        torch.ones(1, 1, 3),
        torch.ones(3, 1, dtype=torch.int64),
        torch.ones(3, 2),
        torch.tensor(7.0),
    ],
)
def test_two_originals_are_weight_normalization_only_if_the_shapes_say_so(tmp_path: Path, first: torch.Tensor) -> None:
    """Other parametrizations have two tensors as well: they are measured as stored, and that is said."""
    second = _random(3, 4)
    found = _analyzed({f"{P}0": first, f"{P}1": second}, tmp_path)
    assert found[f"{P}1"].note == "as stored in a parametrization, not the effective weight"
    assert _encloses(found[f"{P}1"], _norm(second))
    assert found[f"{P}0"].upper is None


@pytest.mark.parametrize("dim", [0, 1, 2, None])
def test_weight_normalization_along_every_axis(tmp_path: Path, dim: int | None) -> None:
    """As torch computes it."""
    layer = nn.Conv1d(3, 5, 2).double()
    layer.weight.data.copy_(_random(5, 3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        wrapped = torch.nn.utils.weight_norm(layer, dim=dim)
    wrapped.weight_g.data.copy_(_random(*wrapped.weight_g.shape, seed=1))
    found = _analyzed({k: v.clone() for k, v in wrapped.state_dict().items()}, tmp_path)["weight_v"]
    wrapped(torch.zeros(1, 3, 4, dtype=torch.float64))
    assert "the effective weight" in found.note
    assert found.upper is not None
    assert _encloses(replace(found, upper=found.kernel), _norm(wrapped.weight))
    assert found.upper.value >= _norm(wrapped.weight)


def test_a_zero_direction_has_no_weight_and_refuses_nothing_else(tmp_path: Path) -> None:
    """Torch divides zero by zero there; the tensor is named and the rest is measured."""
    v = torch.ones(3, 3)
    v[0] = 0.0
    torch.save({"fc.weight_g": torch.ones(3, 1), "fc.weight_v": v, "b.weight": 2 * torch.eye(2)}, tmp_path / "m.pt")
    result = analyze_checkpoint(tmp_path / "m.pt")
    found = {t.name: t for t in result.tensors}
    assert (found["fc.weight_v"].upper, found["fc.weight_v"].lower) == (None, None)
    assert any("fc.weight_v: weight normalization: a direction v is zero" in m for m in result.messages)
    assert _encloses(found["b.weight"], 2.0)
    assert bool(torch._weight_norm(v, torch.ones(3, 1), 0).isnan().any())


def test_texts_that_are_no_paths_are_no_checkpoints() -> None:
    """A specification may be longer than a file's name."""
    assert not is_checkpoint(f"net.py:build[layers=[{','.join(['64'] * 120)}]]")
    with pytest.raises(WeightsError, match="File not found"):
        analyze_checkpoint("a" * 400 + ".pt")
    with pytest.raises(InputError, match="No home folder"):
        analyze_checkpoint("~nosuchuser/m.pt")
