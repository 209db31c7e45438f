"""The idx format, plain and compressed."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from normscope.core.errors import InputError
from normscope.zoo.data.idx import IdxImages


def encoded(array: np.ndarray) -> bytes:
    """Return an array of bytes in the idx format."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(folder: Path, images: bytes, labels: bytes, ending: str = "") -> tuple[Path, Path]:
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
def test_images_and_labels_come_in_blocks(tmp_path: Path, ending: str) -> None:
    """As often as wanted."""
    records = IdxImages(*write(tmp_path, encoded(IMAGES), encoded(LABELS), ending))
    assert (records.count, records.shape, records.labelled) == (11, (1, 4, 6), True)
    for _ in range(2):
        parts = list(records.blocks(4))
        assert [len(x) for x, _ in parts] == [4, 4, 3]
        np.testing.assert_array_equal(torch.cat([x for x, _ in parts])[:, 0].numpy(), IMAGES)
        assert torch.cat([y for _, y in parts]).tolist() == LABELS.tolist()


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_cut_files_are_refused(tmp_path: Path, ending: str) -> None:
    """In the header, in the pixels, or in the compressed stream."""
    paths = write(tmp_path, encoded(IMAGES)[:-5], encoded(LABELS), ending)
    with pytest.raises(InputError, match=r"truncated \(5 bytes are missing\)"):
        list(IdxImages(*paths).blocks(4))
    paths = write(tmp_path, encoded(IMAGES)[:9], encoded(LABELS), ending)
    with pytest.raises(InputError, match="truncated"):
        IdxImages(*paths)
    if ending:
        paths = write(tmp_path, encoded(IMAGES), encoded(LABELS), ending)
        paths[0].write_bytes(paths[0].read_bytes()[:-30])
        with pytest.raises(InputError, match="cannot be decompressed"):
            list(IdxImages(*paths).blocks(4))
        paths[0].write_bytes(b"not gzip at all")
        with pytest.raises(InputError, match="cannot be decompressed"):
            IdxImages(*paths)


def test_other_content_is_refused(tmp_path: Path) -> None:
    """Not idx, another number of axes, another number of labels."""
    with pytest.raises(InputError, match=r"its first bytes are 0x6865 0x6c 0x6c"):
        IdxImages(*write(tmp_path, b"hello world", encoded(LABELS)))
    with pytest.raises(InputError, match="expected three axes for images, got 1"):
        IdxImages(*write(tmp_path, encoded(LABELS), encoded(LABELS)))
    with pytest.raises(InputError, match=r"one label per image; .* has 11 images, .* has shape \(10,\)"):
        IdxImages(*write(tmp_path, encoded(IMAGES), encoded(LABELS[:10])))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_file_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """With the reason of the system."""
    paths = write(tmp_path, encoded(IMAGES), encoded(LABELS), ending)

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(gzip, "open", refuse)
    with pytest.raises(InputError, match=r"Cannot read \S*images\S*: .*Permission denied.*Check its permissions"):
        IdxImages(*paths)
