"""MNIST and Fashion-MNIST: every name and place their files may have."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from normscope.core.errors import InputError
from normscope.zoo.data import mnist as module
from normscope.zoo.data.load import load_data
from normscope.zoo.data.mnist import mnist


def write(folder: Path, part: str, dot: str = "-", ending: str = "", mark: int = 0) -> None:
    """Write two images that are all ``mark`` and their labels."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = np.full((2, 28, 28), mark, np.uint8), np.array([3, 9], np.uint8)
    for kind, array in ((f"images{dot}idx3", images), (f"labels{dot}idx1", labels)):
        content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
        (folder / f"{part}-{kind}-ubyte{ending}").write_bytes(gzip.compress(content) if ending else content)


@pytest.mark.parametrize("dot", ["-", "."])
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "inner"),
    [("mnist", ""), ("mnist", "MNIST/raw"), ("fashion-mnist", "fashion-mnist"), ("fashion-mnist", "FashionMNIST/raw")],
)
def test_names_and_places(tmp_path: Path, name: str, inner: str, dot: str, ending: str) -> None:
    """Plain or compressed, in the folder or in the usual one below."""
    write(tmp_path / inner, "t10k", dot, ending, 51)
    write(tmp_path / inner, "train", dot, ending, 102)
    for split, value in (("test", 0.2), ("train", 0.4)):
        data = load_data(name, root=tmp_path, split=split)
        inputs, labels = data.tensors()
        assert inputs.shape == (2, 1, 28, 28)
        assert inputs.unique().tolist() == pytest.approx([value])
        assert labels.tolist() == [3, 9]


def test_sets_are_not_mixed_up(tmp_path: Path) -> None:
    """Each looks into its own folder only."""
    write(tmp_path / "mnist", "t10k")
    assert mnist("mnist", tmp_path).count == 2
    with pytest.raises(InputError, match=r"fashion-mnist not found.*dataset-fashion-mnist"):
        mnist("fashion-mnist", tmp_path)


def test_the_systems_folder_is_the_last_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only if no root is given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NORMSCOPE_DATA", raising=False)
    monkeypatch.setattr(module, "_SYSTEM", tmp_path / "system")
    write(tmp_path / "system" / "fashion-mnist", "t10k", ending=".gz")
    assert mnist("fashion-mnist").count == 2
    with pytest.raises(InputError, match="Looked in"):
        mnist("fashion-mnist", tmp_path / "elsewhere")
