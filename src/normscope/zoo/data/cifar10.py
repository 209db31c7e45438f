"""CIFAR-10 from its binary or its Python layout."""

import io
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from normscope.core.errors import InputError
from normscope.zoo.data.locate import checked_split, first_files, roots
from normscope.zoo.data.source import Records
from normscope.zoo.data.tensor_file import file_content

#: What pickles of numpy arrays, and of bytes in old protocols, need; none of it runs code chosen by the file.
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
    """An unpickler that accepts only the names that rebuild numpy arrays and bytes."""

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


def _read_binary(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of pixels and labels of records of one label byte and 3072 bytes (red, green and blue planes)."""
    content = file_content(file)
    if not content or len(content) % (PIXELS + 1):
        raise InputError(
            f"{file} is truncated: expected a multiple of {PIXELS + 1} bytes, got {len(content)}. Download it again."
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, PIXELS + 1)
    return records[:, 1:], records[:, 0]


def _read_python(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of pixels and labels of a pickled dictionary with ``data`` and ``labels``; no code in it is run."""
    content = load_arrays(io.BytesIO(file_content(file)), str(file))
    items = content.items() if isinstance(content, dict) else ()
    fields: dict[bytes, Any] = {k if isinstance(k, bytes) else str(k).encode(): v for k, v in items}
    images: Any = fields.get(b"data")
    labels = np.asarray(fields.get(b"labels", ()))
    fits = isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.ndim == 2
    if not fits or images.shape[1] != PIXELS or labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise InputError(
            f"Expected bytes 'data' of shape n x {PIXELS} and n integer 'labels' in {file}, found "
            f"{', '.join(sorted(k.decode('latin1') for k in fields)) or 'neither'}. Download it again."
        )
    return images, labels


def _read(files: Sequence[Path], reader: Callable[[Path], tuple[np.ndarray, np.ndarray]]) -> Records:
    pairs = [reader(file) for file in files]
    for file, (_, labels) in zip(files, pairs, strict=True):
        wrong = labels[(labels < 0) | (labels >= CLASSES)]
        if wrong.size:
            raise InputError(f"Expected labels from 0 to 9, but {file} has {wrong[0]}. Download the file again.")
    images, labels = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    return Records(images.reshape(-1, *SHAPE), labels.astype(np.int64))


def cifar10(root: str | Path | None = None, split: str = "test") -> Records:
    """Return CIFAR-10 from the first folder that has it.

    Args:
        root: a folder with the files, or with ``cifar-10-batches-bin`` or ``cifar-10-batches-py`` in it.
        split: ``"train"`` (50,000 images) or ``"test"`` (10,000).

    >>> cifar10("/nowhere")
    Traceback (most recent call last):
    normscope.core.errors.InputError: cifar10 not found. Looked in /nowhere, ...
    """
    checked_split(split, ("train", "test"))
    names = ["test_batch"] if split == "test" else [f"data_batch_{index}" for index in range(1, 6)]
    folders = [place / folder for place in roots(root) for folder in FOLDERS]
    files = first_files("cifar10", folders, [[f"{name}.bin" for name in names], names], HOW)
    return _read(files, _read_binary if files[0].suffix == ".bin" else _read_python)
