"""Examples in a tensor file: .npy, .npz, .pt and .safetensors, a block at a time, without running code in the file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from normscope.core.errors import InputError
from normscope.core.safe_load import FileKind, existing_file, safe_load, unreadable
from normscope.data.source import Block

#: Names under which inputs and labels are looked for, whatever their case.
INPUTS = ("inputs", "images", "input_ids", "x", "x_test", "x_train", "data", "features")
LABELS = ("labels", "targets", "y", "y_test", "y_train", "classes")
EXAMPLES = FileKind(
    "data",
    InputError,
    (".npy", ".npz", ".pt", ".pth", ".safetensors"),
    "save plain tensors: torch.save({'inputs': x, 'labels': y}, FILE)",
)

#: Returns, given a block size, consecutive blocks of one array.
Reader = Callable[[int], Iterator[torch.Tensor]]


@dataclass(frozen=True)
class Column:
    """One stored array: its shape, its dtype, and how to stream it along its first axis."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Reader


@dataclass(frozen=True)
class TensorFile:
    """Inputs, and labels if there are any, of one file."""

    path: Path
    examples: Column
    marks: Column | None

    @property
    def count(self) -> int:
        """Number of examples."""
        return self.examples.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.examples.shape[1:]

    @property
    def labelled(self) -> bool:
        """Whether the file has labels."""
        return self.marks is not None

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield examples as stored, and their labels."""
        try:
            if self.marks is None:
                yield from ((x, None) for x in self.examples.read(size))
            else:
                yield from zip(self.examples.read(size), self.marks.read(size), strict=True)
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise unreadable(self.path, EXAMPLES, error) from error


def _torch_dtype(dtype: np.dtype, path: Path) -> torch.dtype:
    try:
        return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype
    except TypeError:
        raise InputError(f"data must be numbers; {path} holds {dtype}; save them as float32 or uint8") from None


def _sliced(slices: Callable[[int, int], Any], count: int) -> Reader:
    """Return a reader for something that can be sliced."""

    def read(size: int) -> Iterator[torch.Tensor]:
        for start in range(0, count, size):
            part = slices(start, min(start + size, count))
            yield part if isinstance(part, torch.Tensor) else _native(part)

    return read


def _native(part: np.ndarray) -> torch.Tensor:
    """Return a copy in the machine's byte order."""
    return torch.from_numpy(np.array(part, dtype=part.dtype.newbyteorder("="), order="C"))


def _npy_header(stream: IO[bytes], path: Path) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and dtype of the array that follows in C order."""
    version = np.lib.format.read_magic(stream)  # type: ignore[no-untyped-call]
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = reader(stream)  # type: ignore[no-untyped-call]
    if dtype.hasobject:
        raise InputError(f"data must be numbers; {path} holds Python objects, which were not read; save numbers")
    if fortran and len(shape) > 1:
        raise InputError(f"arrays in {path} must be in C order; got Fortran order; save np.ascontiguousarray(x)")
    return shape, dtype


def _npz_column(path: Path, member: str) -> Column:
    """Return an array of a .npz archive; it is decompressed as a stream."""
    with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
        shape, dtype = _npy_header(stream, path)
    row = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize

    def read(size: int) -> Iterator[torch.Tensor]:
        with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            _npy_header(stream, path)
            for start in range(0, shape[0], size):
                count = min(size, shape[0] - start)
                content = stream.read(count * row)
                if len(content) < count * row:
                    raise EOFError(f"{member} was cut short")
                yield _native(np.frombuffer(content, dtype=dtype).reshape(count, *shape[1:]))

    return Column(tuple(shape), _torch_dtype(dtype, path), read)


def _numpy_columns(path: Path) -> dict[str, Column]:
    if path.suffix.lower() == ".npy":
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        shape = tuple(array.shape)
        read = _sliced(lambda start, stop: array[start:stop], shape[0] if shape else 0)
        return {"inputs": Column(shape, _torch_dtype(array.dtype, path), read)}
    with zipfile.ZipFile(path) as archive:
        members = [name for name in archive.namelist() if name.endswith(".npy")]
    return {name.removesuffix(".npy"): _npz_column(path, name) for name in members}


def _torch_columns(path: Path) -> dict[str, Column]:
    content = safe_load(path, EXAMPLES)
    if isinstance(content, torch.Tensor):
        content = {"inputs": content}
    elif isinstance(content, (tuple, list)) and len(content) in (1, 2):
        content = dict(zip(("inputs", "labels"), content, strict=False))
    if not isinstance(content, Mapping):
        raise InputError(
            f"{path} must hold a tensor, a pair (inputs, labels) or a dictionary of tensors; it holds "
            f"{type(content).__name__}; save one of these"
        )
    tensors = {str(key): value for key, value in content.items() if isinstance(value, torch.Tensor)}
    odd = [key for key, value in tensors.items() if value.layout != torch.strided or value.is_quantized]
    if odd:
        raise InputError(
            f"data must be dense numbers; {', '.join(odd)} in {path} are sparse or quantized; save x.to_dense()"
        )
    return {key: _tensor_column(value) for key, value in tensors.items()}


def _tensor_column(tensor: torch.Tensor) -> Column:
    tensor, shape = tensor.detach(), tuple(tensor.shape)
    read = _sliced(lambda start, stop: tensor[start:stop].clone(), shape[0] if shape else 0)
    return Column(shape, tensor.dtype, read)


def _safetensors_columns(path: Path) -> dict[str, Column]:
    from safetensors import safe_open

    def column(name: str) -> Column:
        with safe_open(path, framework="pt") as file:
            view = file.get_slice(name)
            shape, dtype = tuple(view.get_shape()), (view[:0] if view.get_shape() else file.get_tensor(name)).dtype

        def read(size: int) -> Iterator[torch.Tensor]:
            with safe_open(path, framework="pt") as file:
                view = file.get_slice(name)
                for start in range(0, shape[0], size):
                    yield view[start : min(start + size, shape[0])]

        return Column(shape, dtype, read)

    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
    return {name: column(name) for name in names}


def _chosen(columns: Mapping[str, Column], names: Sequence[str]) -> str | None:
    by_lower = {key.lower(): key for key in columns}
    return next((by_lower[name] for name in names if name in by_lower), None)


def tensor_file(path: str | Path) -> TensorFile:
    """Return the examples in a tensor file; the first axis counts them.

    An archive or dictionary holds inputs under one of :data:`INPUTS` and labels under one of :data:`LABELS`; an only
    tensor is the inputs, whatever its name.

    Args:
        path: a file with one of the endings of :data:`EXAMPLES`.

    Returns:
        The examples as stored.

    Raises:
        InputError: if the file is missing, empty, cut short, unsafe, or holds no examples.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/x.npz", x=np.zeros((5, 3), np.float32), y=np.arange(5))
    ...     data = tensor_file(f"{folder}/x.npz")
    ...     data.count, data.shape, [y.tolist() for _, y in data.blocks(3)]
    (5, (3,), [[0, 1, 2], [3, 4]])
    """
    path = Path(path).expanduser()
    existing_file(path, EXAMPLES)
    readers = {".npy": _numpy_columns, ".npz": _numpy_columns, ".safetensors": _safetensors_columns}
    try:
        columns = readers.get(path.suffix.lower(), _torch_columns)(path)
    except InputError:
        raise
    except Exception as error:
        # Damaged files raise almost anything, KeyError, ValueError and SafetensorError among them.
        raise unreadable(path, EXAMPLES, error) from error
    return _checked(path, columns)


def _checked(path: Path, columns: Mapping[str, Column]) -> TensorFile:
    name = _chosen(columns, INPUTS) or (next(iter(columns)) if len(columns) == 1 else None)
    if name is None:
        held = ", ".join(sorted(columns)) or "no tensor"
        raise InputError(
            f"{path} must name its inputs {', '.join(INPUTS[:4])} or the like; it holds {held}; rename them"
        )
    examples, label = columns[name], _chosen(columns, LABELS)
    marks = columns[label] if label is not None and label != name else None
    if not examples.shape or examples.shape[0] == 0:
        raise InputError(f"the first axis must count examples; {name} in {path} has shape {examples.shape}")
    if examples.dtype.is_complex:
        raise InputError(f"data must be real numbers; {name} in {path} is complex; save real and imaginary parts")
    if marks is not None and marks.shape[:1] != examples.shape[:1]:
        raise InputError(
            f"there must be one label per example; {path} has {examples.shape[0]} examples and labels of shape "
            f"{marks.shape}; save them again"
        )
    return TensorFile(path, examples, marks)
