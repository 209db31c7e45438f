"""Unpickle plain containers and numpy arrays, and nothing else: no code in the file can run."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from normscope.core.errors import InputError


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Return bytes the way Python 3 stores them in old pickle protocols; no other codec is let in."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {encoding!r}")
    return text.encode("latin1")


class _ArrayType:
    """Stands for ``numpy.ndarray``, which a pickle only passes on to the function that makes the empty array."""


def _empty_array(subtype: Any, shape: Any, dtype: Any) -> np.ndarray:
    """Return the empty array that the pickle then fills; only plain arrays are let in."""
    if subtype is not _ArrayType or tuple(shape) != (0,):
        raise pickle.UnpicklingError("an array subclass")
    return np.ndarray((0,), dtype)


def _array_of_buffer(buffer: Any, dtype: Any, shape: Any, order: Any, *unknown: Any) -> np.ndarray:
    """Return the array the newest pickle protocol stores as one run of bytes."""
    if any(value is not None for value in unknown):
        raise pickle.UnpicklingError("an array with its axes in another order")
    return np.frombuffer(buffer, dtype=dtype).reshape(shape, order=order)


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.numeric", "_frombuffer"): _array_of_buffer,
    ("numpy._core.numeric", "_frombuffer"): _array_of_buffer,
    ("numpy", "ndarray"): _ArrayType,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler whose only names are those that rebuild numpy arrays and bytes."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return _ALLOWED[module, name]

    def persistent_load(self, identifier: Any) -> Any:
        raise pickle.UnpicklingError("a persistent object")


def load_arrays(file: IO[bytes], name: str) -> Any:
    """Return the content of a pickle made of containers, numbers, bytes and numpy arrays.

    Args:
        file: opened for reading bytes.
        name: how messages call it.

    Returns:
        The content; text written by Python 2 comes back as bytes.

    Raises:
        InputError: if the pickle asks for anything else, or is damaged.

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
