"""Tensor files of every kind: with labels, and refused by name."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from normscope.core.errors import InputError
from normscope.zoo.data.tensor_file import tensor_file

X = torch.randn(10, 3, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(10)


def save(path: Path, kind: str, inputs: torch.Tensor = X, labels: torch.Tensor = Y) -> Path:
    """Write inputs and labels in one of the forms a file may have."""
    if kind == "npy":
        np.save(path.with_suffix(".npy"), inputs.numpy())
        return path.with_suffix(".npy")
    if kind.startswith("npz"):
        write = np.savez_compressed if kind == "npz compressed" else np.savez
        write(path.with_suffix(".npz"), X=inputs.numpy(), Y=labels.numpy())
        return path.with_suffix(".npz")
    if kind == "safetensors":
        save_file({"images": inputs.contiguous(), "labels": labels}, path.with_suffix(".safetensors"))
        return path.with_suffix(".safetensors")
    contents = {"pt": inputs, "pt pair": (inputs, labels), "pt dictionary": {"data": inputs, "targets": labels}}
    torch.save(contents[kind.removesuffix(" old")], path.with_suffix(".pt"),
               _use_new_zipfile_serialization=not kind.endswith("old"))  # fmt: skip
    return path.with_suffix(".pt")


KINDS = ["npy", "npz", "npz compressed", "safetensors", "pt", "pt pair", "pt dictionary", "pt pair old"]


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_give_the_same_examples(tmp_path: Path, kind: str) -> None:
    """With labels if there are any."""
    records = tensor_file(save(tmp_path / "x", kind))
    assert (records.count, records.shape, records.labelled) == (10, (3, 4), kind not in ("npy", "pt"))
    inputs, labels = records.part(3, 8)
    assert torch.equal(inputs, X[3:8])
    if labels is not None:
        assert torch.equal(labels, Y[3:8])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16, torch.float64, torch.bfloat16])
def test_dtypes_are_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    """bfloat16 too, where the format knows it."""
    kinds = ["safetensors", "pt"] if dtype == torch.bfloat16 else KINDS
    for kind in kinds:
        records = tensor_file(save(tmp_path / "x", kind, X.to(dtype)))
        assert torch.equal(records.part(0, 10)[0], X.to(dtype))
        assert records.part(0, 10)[0].dtype == dtype


@pytest.mark.parametrize("kind", ["npy", "npz compressed"])
def test_other_byte_orders_are_read(tmp_path: Path, kind: str) -> None:
    """Big-endian files of other machines."""
    swapped = X.numpy().astype(">f4")
    path = tmp_path / ("x.npy" if kind == "npy" else "x.npz")
    np.save(path, swapped) if kind == "npy" else np.savez_compressed(path, x=swapped)
    assert torch.equal(tensor_file(path).part(0, 10)[0], X)


@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_the_order_of_memory_does_not_matter(tmp_path: Path, ending: str) -> None:
    """Arrays in Fortran order are read as others are."""
    save_as = np.save if ending == "npy" else np.savez
    save_as(tmp_path / f"x.{ending}", np.asfortranarray(X.numpy()))
    assert torch.equal(tensor_file(tmp_path / f"x.{ending}").part(2, 9)[0], X[2:9])


def test_parameters_come_without_gradients(tmp_path: Path) -> None:
    """A saved parameter is data like any other."""
    torch.save(torch.nn.Parameter(X), tmp_path / "x.pt")
    assert not tensor_file(tmp_path / "x.pt").part(0, 3)[0].requires_grad


def test_an_only_tensor_may_have_any_name(tmp_path: Path) -> None:
    """Several must be recognizable."""
    save_file({"whatever": X}, tmp_path / "x.safetensors")
    assert tensor_file(tmp_path / "x.safetensors").count == 10
    torch.save({"first": X, "second": X}, tmp_path / "x.pt")
    with pytest.raises(InputError, match=r"to be named inputs, images, .*found first, second"):
        tensor_file(tmp_path / "x.pt")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.95])
def test_cut_files_are_refused(tmp_path: Path, kind: str, keep: float) -> None:
    """When they are opened."""
    path = save(tmp_path / "x", kind, X.repeat(20, 1, 1), Y.repeat(20))
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(InputError, match=r"truncated|empty|could run code"):
        tensor_file(path)


class Evil:
    """An object whose pickle creates a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_code_in_files_is_not_run(tmp_path: Path) -> None:
    """Pickles and arrays of objects are refused."""
    target = tmp_path / "made"
    objects = np.array([Evil(target)] * 3, dtype=object)
    torch.save(Evil(target), tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Evil(target)))
    np.save(tmp_path / "c.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "d.npz", x=objects)
    for name in ("a.pt", "b.pt", "c.npy", "d.npz"):
        with pytest.raises(InputError):
            tensor_file(tmp_path / name)
    assert not target.exists()


def test_labels_that_are_no_numbers_are_left_out_with_a_note(tmp_path: Path) -> None:
    """The inputs can be used all the same."""
    np.savez(tmp_path / "a.npz", x=X, y=np.array(["cat"] * len(X)))
    data = tensor_file(tmp_path / "a.npz")
    assert not data.labelled
    assert data.note.startswith("The labels are left out. Expected numbers, but y in ")
    assert tensor_file(save(tmp_path, "npz")).note == ""


def test_what_holds_no_examples_is_refused(tmp_path: Path) -> None:
    """Scalars, empty sets, text, complex numbers, other objects, other numbers of labels."""
    cases = {
        "scalar.pt": (torch.tensor(3.0), r"along the first axis"),
        "empty.pt": (torch.ones(0, 3), r"along the first axis"),
        "complex.pt": (torch.ones(2, dtype=torch.complex64), "real numbers"),
        "sparse.pt": ({"x": X.to_sparse()}, r"x in .* is sparse_coo\. Save x\.to_dense\(\)"),
        "meta.pt": (X.to("meta"), "inputs in .* is on the meta device"),
        "ragged.pt": (
            ([X[0], X[1, :2]], Y[:2]),
            r"inputs in .* list of tensors \(2, 4\) float32, \(3, 4\) float32",
        ),
        "mixed.pt": ({"x": [X[0], X[1].double()]}, r"x in .* is a list of tensors \(3, 4\) float32, \(3, 4\) float64"),
        "words.pt": ({"images": ["a", "b"], "labels": Y}, "Expected images in .* to be a tensor, got list of str"),
        "only labels.pt": ({"labels": Y}, "Expected the inputs in .* to be named .*, found labels"),
        "two.pt": ({"a": X, "b": X, "c": "d"}, "Expected the inputs in .* to be named .*, found a, b, c"),
        "number.pt": (3, "got int"),
        "labels.pt": ((X, Y[:4]), r"10 examples and labels of shape \(4,\)"),
        "nothing.pt": ({}, "found nothing"),
        "count.pt": ({"x": 3}, "Expected x in .* to be a tensor, got int"),
    }
    for name, (content, message) in cases.items():
        torch.save(content, tmp_path / name)
        with pytest.raises(InputError, match=message):
            tensor_file(tmp_path / name)
    np.save(tmp_path / "text.npy", np.array(["a", "b"]))
    with pytest.raises(InputError, match="Expected numbers"):
        tensor_file(tmp_path / "text.npy")
    with pytest.raises(InputError, match="File not found"):
        tensor_file(tmp_path / "none.pt")
    with pytest.raises(InputError, match="is a directory"):
        tensor_file(tmp_path)
    (tmp_path / "x.csv").write_text("1,2")
    with pytest.raises(InputError, match=r"ending in \.npy"):
        tensor_file(tmp_path / "x.csv")


@pytest.mark.parametrize("marks", [Y, Y.tolist(), list(Y)])
def test_lists_of_tensors_are_examples(tmp_path: Path, marks: object) -> None:
    """In a pair and in a dictionary; their labels are not taken for them."""
    for content in ((list(X), marks), {"images": list(X), "labels": marks}):
        torch.save(content, tmp_path / "x.pt")
        records = tensor_file(tmp_path / "x.pt")
        assert (records.count, records.shape, records.labelled) == (10, (3, 4), True)
        inputs, labels = records.part(0, 10)
        assert torch.equal(inputs, X)
        assert torch.equal(labels, Y)


def test_members_that_are_not_needed_may_hold_anything(tmp_path: Path) -> None:
    """Words, objects, sparse tensors: the numbers are used."""
    odd = {"names": np.array(["cat", "dog"]), "meta": np.array({"a": 1}, dtype=object)}
    np.savez(tmp_path / "named.npz", x=X.numpy(), y=Y.numpy(), **odd)
    np.savez(tmp_path / "only.npz", whatever=X.numpy(), **odd)
    torch.save({"x": X, "y": Y, "s": X.to_sparse(), "m": X.to("meta"), "t": "text"}, tmp_path / "named.pt")
    torch.save({"whatever": X, "s": X.to_sparse(), "t": "text", "ids": [1, 2]}, tmp_path / "only.pt")
    for name in ("named.npz", "only.npz", "named.pt", "only.pt"):
        records = tensor_file(tmp_path / name)
        assert torch.equal(records.part(0, 10)[0], X)
        assert records.labelled is name.startswith("named")


def test_labels_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    """Nothing is computed from them."""
    np.savez(tmp_path / "x.npz", x=X.numpy(), y=np.array(["cat"] * 10))
    torch.save((X, ["cat"] * 10), tmp_path / "x.pt")
    for name in ("x.npz", "x.pt"):
        records = tensor_file(tmp_path / name)
        assert (records.count, records.labelled) == (10, False)
