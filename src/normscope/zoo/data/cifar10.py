"""CIFAR-10 from its binary or its Python layout, one file at a time."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from normscope.core.errors import InputError
from normscope.zoo.data.idx import opened
from normscope.zoo.data.locate import checked_split, first_folder, roots
from normscope.zoo.data.source import Block

#: What a pickle of numpy arrays, and of bytes in old protocols, asks for; none of it runs code of the file's choice.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler whose only names are those that rebuild numpy arrays and bytes."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


def load_arrays(file: IO[bytes], name: str) -> Any:
    """Return the content of a pickle made of containers, numbers, bytes and numpy arrays.

    >>> import io
    >>> load_arrays(io.BytesIO(pickle.dumps({"data": np.arange(3)})), "a pickle")["data"].sum()
    np.int64(3)
    """
    try:
        return _ArraysOnly(file, encoding="bytes").load()
    except Exception as error:
        # Damaged pickles raise almost anything, from EOFError to IndexError and MemoryError.
        raise InputError(
            f"Refused to unpickle {name} ({type(error).__name__}: "
            f"{error}): only arrays and plain containers are read, because anything else could run code."
        ) from error


SHAPE = (3, 32, 32)
PIXELS = 3072
CLASSES = 10
FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py")
HOW = "Download https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz (or cifar-10-python.tar.gz) and unpack it there"


def _names(split: str) -> list[str]:
    return ["test_batch"] if split == "test" else [f"data_batch_{index}" for index in range(1, 6)]


def _checked_labels(labels: np.ndarray, file: Path) -> torch.Tensor:
    if labels.size and int(labels.max()) >= CLASSES:
        raise InputError(f"Expected labels from 0 to 9, but {file} has {int(labels.max())}. Download the file again.")
    return torch.from_numpy(labels.astype(np.int64))


@dataclass(frozen=True)
class BinaryCifar10:
    """Files of records of one label byte and 3072 pixel bytes (red, green and blue planes)."""

    files: tuple[Path, ...]
    shape: tuple[int, ...] = SHAPE
    labelled: bool = True

    def __post_init__(self) -> None:
        for file in self.files:
            size = file.stat().st_size
            if size == 0 or size % (PIXELS + 1):
                raise InputError(
                    f"{file} is truncated: expected a multiple of {PIXELS + 1} bytes, got {size}. Download it again."
                )

    @property
    def count(self) -> int:
        """Number of images."""
        return sum(file.stat().st_size for file in self.files) // (PIXELS + 1)

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield images (n, 3, 32, 32) of bytes and their labels."""
        for file in self.files:
            with opened(file) as stream:
                while chunk := stream.read(size * (PIXELS + 1)):
                    records = np.frombuffer(chunk, dtype=np.uint8).reshape(-1, PIXELS + 1)
                    images = torch.from_numpy(records[:, 1:].reshape(-1, *SHAPE).copy())
                    yield images, _checked_labels(records[:, 0], file)


@dataclass(frozen=True)
class PythonCifar10:
    """Files that are pickled dictionaries of an array ``data`` and a list ``labels``; read without running code."""

    files: tuple[Path, ...]
    shape: tuple[int, ...] = SHAPE
    labelled: bool = True

    def _read(self, file: Path) -> tuple[np.ndarray, np.ndarray]:
        with opened(file) as stream:
            content = load_arrays(stream, str(file))
        fields: dict[bytes, Any] = {
            bytes(k) if isinstance(k, bytes) else str(k).encode(): v for k, v in _items(content)
        }
        images: Any = fields.get(b"data")
        labels = np.asarray(fields.get(b"labels", ()))
        fits = isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.ndim == 2
        if not fits or images.shape[1] != PIXELS or labels.shape != (len(images),) or labels.dtype.kind not in "iu":
            raise InputError(
                f"Expected bytes 'data' of shape n x {PIXELS} and n integer 'labels' in {file}, found "
                f"{', '.join(sorted(k.decode('latin1') for k in fields)) or 'neither'}. Download it again."
            )
        if labels.size and int(labels.min()) < 0:
            raise InputError(
                f"Expected labels from 0 to 9, but {file} has {int(labels.min())}. Download the file again."
            )
        return images, labels

    @property
    def count(self) -> int:
        """Number of images."""
        return sum(len(self._read(file)[1]) for file in self.files)

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield images (n, 3, 32, 32) of bytes and their labels."""
        for file in self.files:
            images, labels = self._read(file)
            for start in range(0, len(images), size):
                part = images[start : start + size].reshape(-1, *SHAPE)
                yield torch.from_numpy(part.copy()), _checked_labels(labels[start : start + size], file)


def _items(content: object) -> list[tuple[object, object]]:
    return list(content.items()) if isinstance(content, dict) else []


def cifar10(root: str | Path | None = None, split: str = "test") -> BinaryCifar10 | PythonCifar10:
    """Return CIFAR-10 from the first folder that has it.

    Args:
        root: a folder with the files, or with ``cifar-10-batches-bin`` or ``cifar-10-batches-py`` in it.
        split: ``"train"`` (50,000 images) or ``"test"`` (10,000).

    >>> cifar10("/nowhere")
    Traceback (most recent call last):
    normscope.core.errors.InputError: cifar10 not found. Looked in /nowhere, ...
    """
    names = _names(checked_split(split, ("train", "test")))
    binary = [f"{name}.bin" for name in names]
    folders = [place / folder for place in roots(root) for folder in FOLDERS]
    folder = first_folder("cifar10", folders, [binary, names], HOW)
    if all((folder / name).is_file() for name in binary):
        return BinaryCifar10(tuple(folder / name for name in binary))
    return PythonCifar10(tuple(folder / name for name in names))
