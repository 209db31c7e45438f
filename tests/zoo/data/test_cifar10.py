"""CIFAR-10 in both layouts, from small files of the same form."""

from __future__ import annotations

import io
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from normscope.core.errors import InputError
from normscope.zoo.data.cifar10 import cifar10, load_arrays
from normscope.zoo.data.load import load_data

FILES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def content(seed: int, count: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Return images of bytes in rows, and labels."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, 3072), dtype=np.uint8), generator.integers(0, 10, count, dtype=np.uint8)


def write(folder: Path, layout: str) -> Path:
    """Write the six files of a layout."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(FILES):
        images, labels = content(seed)
        if layout == "binary":
            np.concatenate([labels[:, None], images], axis=1).tofile(folder / f"{name}.bin")
        else:
            # Keys and strings of the original are bytes: Python 2 wrote it.
            fields = {b"data": images, b"labels": [int(label) for label in labels], b"batch_label": b"one of six"}
            (folder / name).write_bytes(pickle.dumps(fields, protocol=2))
    return folder


@pytest.mark.parametrize("layout", ["binary", "python"])
@pytest.mark.parametrize("inner", ["", "usual"])
def test_layouts_give_the_same_images(tmp_path: Path, layout: str, inner: str) -> None:
    """Planes of red, green and blue, rows of 32, labels beside; in the folder itself or in the usual one."""
    usual = "cifar-10-batches-bin" if layout == "binary" else "cifar-10-batches-py"
    write(tmp_path / usual if inner else tmp_path, layout)
    records = cifar10(tmp_path)
    assert (records.count, records.shape) == (7, (3, 32, 32))
    images, labels = content(5)
    read, marks = records.part(0, 7)
    for n, channel, row, column in ((0, 0, 0, 0), (6, 2, 31, 31), (3, 1, 4, 17)):
        assert read[n, channel, row, column] == images[n, 1024 * channel + 32 * row + column]
    assert marks.dtype == torch.int64
    assert marks.tolist() == labels.tolist()


@pytest.mark.parametrize("layout", ["binary", "python"])
def test_training_images_come_file_after_file(tmp_path: Path, layout: str) -> None:
    """Batches run across the ends of files."""
    write(tmp_path, layout)
    data = load_data("cifar10", root=tmp_path, split="train", batch_size=10)
    assert len(data) == 35
    assert [len(batch.inputs) for batch in data] == [10, 10, 10, 5]
    expected = np.concatenate([content(seed)[0] for seed in range(5)]).reshape(-1, 3, 32, 32) / np.float32(255)
    np.testing.assert_allclose(data.tensors().inputs.numpy(), expected, rtol=1e-6)


def test_imagenet_preset_by_name(tmp_path: Path) -> None:
    """The normalization public CIFAR ResNets were trained with."""
    write(tmp_path, "binary")
    named, given = load_data("cifar10:imagenet", tmp_path), load_data("cifar10", tmp_path, normalize="imagenet")
    assert torch.equal(named.tensors().inputs, given.tensors().inputs)
    pixel = content(5)[0][0, 0] / 255
    assert named.tensors().inputs[0, 0, 0, 0].item() == pytest.approx((pixel - 0.485) / 0.229, rel=1e-5)


def test_absent_data_say_where_and_how(tmp_path: Path) -> None:
    """Each place that was tried, and the address."""
    with pytest.raises(InputError) as caught:
        cifar10(tmp_path)
    text = str(caught.value)
    places = (tmp_path, tmp_path / "cifar-10-batches-bin", tmp_path / "cifar-10-batches-py")
    assert f"Looked in {', '.join(map(str, places))}. Download https://www.cs.toronto.edu/~kriz/cifar" in text
    write(tmp_path, "binary")
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(InputError, match=r"lacks data_batch_4\.bin"):
        cifar10(tmp_path, "train")
    assert cifar10(tmp_path, "test").count == 7
    with pytest.raises(InputError, match="Expected split to be one of train, test"):
        cifar10(tmp_path, "valid")


def test_damaged_binaries_are_refused(tmp_path: Path) -> None:
    """Cut short, empty, or with labels that do not exist."""
    file = write(tmp_path, "binary") / "test_batch.bin"
    whole = file.read_bytes()
    for damaged in (whole[:-1], b""):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match="expected a multiple of 3073 bytes"):
            cifar10(tmp_path)
    file.write_bytes(b"\x0b" + whole[1:])
    with pytest.raises(InputError, match=r"0 to 9, but .* has 11"):
        cifar10(tmp_path)


class Evil:
    """An object whose pickle creates a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_pickles_cannot_run_code(tmp_path: Path) -> None:
    """Nor smuggle in other shapes, types or labels."""
    file = write(tmp_path, "python") / "test_batch"
    images, labels = content(0)
    good = {b"data": images, b"labels": labels.tolist()}
    file.write_bytes(pickle.dumps(good | {b"extra": Evil(tmp_path / "ran")}))
    with pytest.raises(InputError, match="could run code"):
        cifar10(tmp_path)
    assert not (tmp_path / "ran").exists()
    wrong = (
        [1, 2], {b"data": images}, good | {b"data": images.astype(np.float32)}, good | {b"data": images[:, :5]},
        good | {b"labels": [0.5] * 7}, good | {b"labels": labels.tolist()[:3]}, good | {b"labels": [-1] * 7},
        good | {b"labels": [10] * 7},
    )  # fmt: skip
    for fields in wrong:
        file.write_bytes(pickle.dumps(fields))
        with pytest.raises(InputError, match=r"Expected bytes 'data'|Expected labels from 0 to 9"):
            cifar10(tmp_path)
    file.write_bytes(pickle.dumps(good))
    shutil.copy(file, tmp_path / "copy")
    assert cifar10(tmp_path).count == 7


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_every_protocol_come_back(protocol: int, order: str) -> None:
    """With their containers, numbers, text and bytes."""
    array = np.asarray(np.arange(12, dtype=np.uint8).reshape(3, 4), order=order)
    content = {"data": array, "labels": [1, 2], "names": ["a", b"\xff"], "scale": 0.5}
    read = load_arrays(io.BytesIO(pickle.dumps(content, protocol)), "a file")
    np.testing.assert_array_equal(read["data"], array)
    assert (read["labels"], read["scale"], read["names"][1]) == ([1, 2], 0.5, b"\xff")


def test_a_pickle_of_python_2_is_read_as_bytes() -> None:
    """As in the files of CIFAR-10: short strings of protocol 2."""
    assert load_arrays(io.BytesIO(b"\x80\x02}q\x00U\x04dataK\x03s."), "a file") == {b"data": 3}


class Unsafe:
    """An object whose pickle calls something."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_calls_are_refused_and_not_made(tmp_path: Path) -> None:
    """Whether hidden in a container or not; the message says what was asked for."""
    target = str(tmp_path / "made")
    for content in (
        Unsafe(os.mkdir, target),
        {"data": [Unsafe(os.mkdir, target)]},
        Unsafe(eval, "1"),
        Unsafe(getattr, 1, "x"),
    ):
        with pytest.raises(InputError, match="Refused to unpickle"):
            load_arrays(io.BytesIO(pickle.dumps(content)), "a file")
    assert not Path(target).exists()


def test_subclasses_codecs_and_persistent_objects_are_refused() -> None:
    """The allowed names cannot be turned against their purpose."""
    matrix = b"cnumpy\nmatrix\n."
    subclass = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\nI0\ntS'b'\ntR."
    codec = b"c_codecs\nencode\n(S'abc'\nS'zlib'\ntR."
    persistent = b"P1\n."
    for stream in (matrix, subclass, codec, persistent):
        with pytest.raises(InputError, match="Refused"):
            load_arrays(io.BytesIO(stream), "a file")


def test_damaged_pickles_are_refused() -> None:
    """Cut anywhere, or not a pickle at all."""
    whole = pickle.dumps({"data": np.arange(100)})
    for length in range(0, len(whole) - 1, 7):
        with pytest.raises(InputError, match="Refused"):
            load_arrays(io.BytesIO(whole[:length]), "a file")
    with pytest.raises(InputError, match="Refused to unpickle a text"):
        load_arrays(io.BytesIO(b"hello"), "a text")
