"""MNIST and Fashion-MNIST: where their four files lie, and the idx format of these, compressed or not."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from normscope.core.errors import InputError
from normscope.zoo.data.locate import checked_split, first_files, roots
from normscope.zoo.data.source import Records
from normscope.zoo.data.tensor_file import file_content

_FOLDERS = {
    "mnist": ("", "mnist", "MNIST/raw"),
    "fashion-mnist": ("", "fashion-mnist", "FashionMNIST/raw"),
}
#: Where distributions install the files.
_SYSTEM = Path("/usr/share/datasets")
#: The type of the entries of all these files.
_UNSIGNED_BYTE = 8
_HOW = {
    "mnist": "Download the four files of https://storage.googleapis.com/cvdf-datasets/mnist/ into one of them",
    "fashion-mnist": (
        "Install the Debian package dataset-fashion-mnist, or download the four files of "
        "https://github.com/zalandoresearch/fashion-mnist into one of them"
    ),
}


def read_idx(file: Path) -> np.ndarray:
    """Return the array of bytes in an idx file: a short header, then the entries."""
    content = file_content(file)
    if file.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise _damaged(file, f"it cannot be decompressed ({error})") from error
    try:
        zero, kind, axes = struct.unpack_from(">HBB", content)
        if zero != 0 or kind != _UNSIGNED_BYTE or axes == 0:
            raise _damaged(file, f"its first bytes are {zero:#06x} {kind:#04x} {axes:#04x}")
        shape = struct.unpack_from(f">{axes}I", content, 4)
    except struct.error:
        raise _damaged(file, "it is truncated") from None
    start, count = 4 + 4 * axes, math.prod(shape)
    if len(content) < start + count:
        raise _damaged(file, f"it is truncated ({start + count - len(content)} bytes are missing)")
    return np.frombuffer(content, np.uint8, count, start).reshape(shape)


def _damaged(file: Path, reason: str) -> InputError:
    return InputError(f"{file} is not a valid idx file of bytes: {reason}. Download it again.")


def read_images(images: Path, labels: Path) -> Records:
    """Return the images (n, 1, height, width) and labels in two idx files."""
    pixels, marks = read_idx(images), read_idx(labels)
    if pixels.ndim != 3:
        raise _damaged(images, f"expected three axes for images, got {pixels.ndim}")
    if marks.shape != pixels.shape[:1]:
        raise InputError(
            f"Expected one label per image; {images} has {len(pixels)} images, {labels} has shape {marks.shape}. "
            "Download both again."
        )
    return Records(pixels[:, None], marks.astype(np.int64))


def _pairs(split: str) -> list[list[str]]:
    """Return the names the image and label files may have, plain files first."""
    part = "train" if split == "train" else "t10k"
    return [
        [f"{part}-images{dot}idx3-ubyte{ending}", f"{part}-labels{dot}idx1-ubyte{ending}"]
        for ending in ("", ".gz")
        for dot in ("-", ".")
    ]


def mnist(name: str = "mnist", root: str | Path | None = None, split: str = "test") -> Records:
    """Return MNIST or Fashion-MNIST from the first folder that has it.

    Args:
        name: ``"mnist"`` or ``"fashion-mnist"``.
        root: a folder with the files, or with a folder of them.
        split: ``"train"`` (60,000 images) or ``"test"`` (10,000).

    >>> mnist(root="/nowhere")
    Traceback (most recent call last):
    normscope.core.errors.InputError: mnist not found. Looked in /nowhere, ...
    """
    checked_split(split, ("train", "test"))
    folders = [place / folder for place in roots(root) for folder in _FOLDERS[name]]
    if root is None:
        folders.append(_SYSTEM / name)
    return read_images(*first_files(name, folders, _pairs(split), _HOW[name]))
