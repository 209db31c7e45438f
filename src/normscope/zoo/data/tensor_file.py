"""Examples in a tensor file: .npy, .npz, .pt and .safetensors, a block at a time, without running code in the file."""

import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from normscope.core.errors import InputError
from normscope.core.files import user_path
from normscope.graph.safe_load import FileKind, existing_file, safe_load, unlike_numbers, unreadable
from normscope.zoo.data.source import Block

#: Names under which inputs and labels are looked for, whatever their case.
INPUTS = ("inputs", "images", "input_ids", "x", "x_test", "x_train", "data", "features")
LABELS = ("labels", "targets", "y", "y_test", "y_train", "classes")
EXAMPLES = FileKind(
    "data",
    InputError,
    (".npy", ".npz", ".pt", ".pth", ".safetensors"),
    "Save plain tensors: torch.save({'inputs': x, 'labels': y}, FILE).",
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


def _torch_dtype(dtype: np.dtype, place: str) -> torch.dtype:
    try:
        return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype
    except TypeError:
        raise InputError(f"Expected numbers, but {place} holds {dtype}. Save them as float32 or uint8.") from None


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


def _npy_header(stream: IO[bytes], place: str) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and dtype of the array that follows in C order."""
    version = np.lib.format.read_magic(stream)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = reader(stream)
    if dtype.hasobject:
        raise InputError(f"Expected numbers, but {place} holds Python objects, which are never loaded.")
    if fortran and len(shape) > 1:
        raise InputError(
            f"Expected an array in C order, but {place} is in Fortran order. Save np.ascontiguousarray(x)."
        )
    return shape, dtype


def _npz_column(path: Path, name: str) -> Column:
    """Return an array of a .npz archive; it is decompressed as a stream."""
    member, place = f"{name}.npy", f"{name} in {path}"
    with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
        shape, dtype = _npy_header(stream, place)
    row = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize

    def read(size: int) -> Iterator[torch.Tensor]:
        with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            _npy_header(stream, place)
            for start in range(0, shape[0], size):
                count = min(size, shape[0] - start)
                content = stream.read(count * row)
                if len(content) < count * row:
                    raise EOFError(f"{member} is truncated")
                yield _native(np.frombuffer(content, dtype=dtype).reshape(count, *shape[1:]))

    return Column(tuple(shape), _torch_dtype(dtype, place), read)


def _numpy_columns(path: Path) -> dict[str, Column | InputError]:
    if path.suffix.lower() == ".npy":
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        shape = tuple(array.shape)
        read = _sliced(lambda start, stop: array[start:stop], shape[0] if shape else 0)
        return {"inputs": Column(shape, _torch_dtype(array.dtype, str(path)), read)}
    with zipfile.ZipFile(path) as archive:
        members = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    return {name: _or_error(_npz_column, path, name) for name in members}


def _or_error(make: Callable[..., Column], *arguments: Any) -> Column | InputError:
    """Return a column, or why it is none: that matters only if it is wanted."""
    try:
        return make(*arguments)
    except InputError as error:
        return error


def _torch_columns(path: Path) -> dict[str, Column | InputError]:
    content = safe_load(path, EXAMPLES)
    if isinstance(content, torch.Tensor):
        content = {"inputs": content}
    elif isinstance(content, (tuple, list)) and len(content) in (1, 2):
        content = dict(zip(("inputs", "labels"), content, strict=False))
    if not isinstance(content, Mapping):
        raise InputError(
            f"Expected a tensor, a pair (inputs, labels) or a dictionary of tensors in {path}, got "
            f"{type(content).__name__}."
        )
    return {str(key): _or_error(_tensor_column, path, str(key), value) for key, value in content.items()}


def _tensor_column(path: Path, name: str, value: Any) -> Column:
    """Return a tensor as a column, or under a known name a list of tensors or numbers of one shape."""
    listing = isinstance(value, (list, tuple)) and name.lower() in (*INPUTS, *LABELS)
    parts = list(value) if listing else [value]
    if listing and parts and all(isinstance(part, (bool, int, float)) for part in parts):
        parts, listing = [torch.tensor(parts)], False
    if not parts or not all(isinstance(part, torch.Tensor) for part in parts):
        held = " of ".join(type(thing).__name__ for thing in (value, *parts[: int(listing)]))
        raise InputError(f"Expected {name} in {path} to be a tensor, got {held}.")
    odd = next((pair for part in parts if (pair := unlike_numbers(part))[0]), None)
    if odd is not None:
        raise InputError(f"Expected a dense tensor, but {name} in {path} is {odd[0]}. Save {odd[1]}.")
    if not listing:
        tensor = parts[0].detach()
        read = _sliced(lambda start, stop: tensor[start:stop].clone(), len(tensor) if tensor.dim() else 0)
        return Column(tuple(tensor.shape), tensor.dtype, read)
    kinds = sorted({f"{tuple(part.shape)} {str(part.dtype).removeprefix('torch.')}" for part in parts})
    if len(kinds) > 1:
        raise InputError(
            f"Expected examples of one shape and dtype, but {name} in {path} is a list of tensors {kinds[0]}, "
            f"{kinds[1]} and others. Crop or pad them and save one tensor."
        )
    read = _sliced(lambda start, stop: torch.stack(parts[start:stop]).detach(), len(parts))
    return Column((len(parts), *parts[0].shape), parts[0].dtype, read)


def _safetensors_columns(path: Path) -> dict[str, Column | InputError]:
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


def _chosen(names: Iterable[str], known: Sequence[str]) -> str | None:
    by_lower = {name.lower(): name for name in names}
    return next((by_lower[name] for name in known if name in by_lower), None)


def tensor_file(path: str | Path) -> TensorFile:
    """Return the examples in a tensor file; the first axis counts them.

    An archive or dictionary holds inputs under one of :data:`INPUTS` and labels under one of :data:`LABELS`; an only
    tensor is the inputs, whatever its name, unless that is one of labels. A list of tensors of one shape is as good as
    a tensor. What is no inputs may hold anything: labels that are no numbers are left out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/x.npz", x=np.zeros((5, 3), np.float32), y=np.arange(5))
    ...     data = tensor_file(f"{folder}/x.npz")
    ...     data.count, data.shape, [y.tolist() for _, y in data.blocks(3)]
    (5, (3,), [[0, 1, 2], [3, 4]])
    """
    path = user_path(path)
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


def _inputs_name(path: Path, columns: Mapping[str, Column | InputError]) -> str:
    """Return the name of the inputs: a known one, or that of the only array which is not named as labels."""
    usable = [key for key, column in columns.items() if isinstance(column, Column)]
    name = _chosen(usable, INPUTS) or _chosen(columns, INPUTS)
    if name is not None:
        return name
    unnamed = [key for key in usable or columns if key.lower() not in LABELS]
    if len(usable or columns) != 1 or not unnamed:
        held = ", ".join(sorted(columns)) or "nothing"
        raise InputError(f"Expected the inputs in {path} to be named {', '.join(INPUTS[:4])} or similar, found {held}.")
    return unnamed[0]


def _checked(path: Path, columns: Mapping[str, Column | InputError]) -> TensorFile:
    name = _inputs_name(path, columns)
    examples = columns[name]
    if isinstance(examples, InputError):
        raise examples
    others = {key: column for key, column in columns.items() if isinstance(column, Column) and key != name}
    label = _chosen(others, LABELS)
    marks = None if label is None else others[label]
    if not examples.shape or examples.shape[0] == 0:
        raise InputError(f"Expected examples along the first axis, but {name} in {path} has shape {examples.shape}.")
    if examples.dtype.is_complex:
        raise InputError(f"Expected real numbers, but {name} in {path} is complex. Save its real and imaginary parts.")
    if marks is not None and marks.shape[:1] != examples.shape[:1]:
        raise InputError(
            f"Expected one label per example, but {path} has {examples.shape[0]} examples and labels of shape "
            f"{marks.shape}."
        )
    return TensorFile(path, examples, marks)
