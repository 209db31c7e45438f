"""MNIST and Fashion-MNIST: every name and place their files may have."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from normscope.core.errors import InputError
from normscope.zoo.data import mnist as module
from normscope.zoo.data.load import load_data
from normscope.zoo.data.mnist import mnist, read_images


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


def encoded(array: np.ndarray) -> bytes:
    """Return an array of bytes in the idx format."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_pair(folder: Path, images: bytes, labels: bytes, ending: str = "") -> tuple[Path, Path]:
    """Write both files, compressed if the ending says so."""
    pack = gzip.compress if ending else bytes
    paths = folder / f"images{ending}", folder / f"labels{ending}"
    for path, content in zip(paths, (images, labels), strict=True):
        path.write_bytes(pack(content))
    return paths


GENERATOR = np.random.default_rng(0)
IMAGES = GENERATOR.integers(0, 256, (11, 4, 6), dtype=np.uint8)
LABELS = GENERATOR.integers(0, 10, 11, dtype=np.uint8)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_images_and_labels_are_read(tmp_path: Path, ending: str) -> None:
    """Bytes with a channel of their own, labels as torch wants them."""
    records = read_images(*write_pair(tmp_path, encoded(IMAGES), encoded(LABELS), ending))
    assert (records.count, records.shape, records.labelled) == (11, (1, 4, 6), True)
    images, labels = records.part(0, 11)
    np.testing.assert_array_equal(images[:, 0].numpy(), IMAGES)
    assert labels.dtype == torch.int64
    assert labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_cut_files_are_refused(tmp_path: Path, ending: str) -> None:
    """In the header, in the pixels, or in the compressed stream."""
    paths = write_pair(tmp_path, encoded(IMAGES)[:-5], encoded(LABELS), ending)
    with pytest.raises(InputError, match=r"truncated \(5 bytes are missing\)"):
        read_images(*paths)
    paths = write_pair(tmp_path, encoded(IMAGES)[:9], encoded(LABELS), ending)
    with pytest.raises(InputError, match="truncated"):
        read_images(*paths)
    if ending:
        paths = write_pair(tmp_path, encoded(IMAGES), encoded(LABELS), ending)
        paths[0].write_bytes(paths[0].read_bytes()[:-30])
        with pytest.raises(InputError, match="cannot be decompressed"):
            read_images(*paths)
        paths[0].write_bytes(b"not gzip at all")
        with pytest.raises(InputError, match="cannot be decompressed"):
            read_images(*paths)


def test_other_content_is_refused(tmp_path: Path) -> None:
    """Not idx, another number of axes, another number of labels."""
    with pytest.raises(InputError, match=r"its first bytes are 0x6865 0x6c 0x6c"):
        read_images(*write_pair(tmp_path, b"hello world", encoded(LABELS)))
    with pytest.raises(InputError, match="expected three axes for images, got 1"):
        read_images(*write_pair(tmp_path, encoded(LABELS), encoded(LABELS)))
    with pytest.raises(InputError, match=r"one label per image; .* has 11 images, .* has shape \(10,\)"):
        read_images(*write_pair(tmp_path, encoded(IMAGES), encoded(LABELS[:10])))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_file_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """With the reason of the system."""
    paths = write_pair(tmp_path, encoded(IMAGES), encoded(LABELS), ending)

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError, match=r"Cannot read \S*images\S*: .*Permission denied.*Check its permissions"):
        read_images(*paths)
