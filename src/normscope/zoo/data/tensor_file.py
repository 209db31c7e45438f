"""Examples in a tensor file: .npy, .npz, .pt and .safetensors, read without running code in the file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normscope.core.errors import InputError
from normscope.core.files import user_path
from normscope.graph.safe_load import FileKind, existing_file, safe_load, unlike_numbers, unreadable
from normscope.zoo.data.source import Records

#: Names under which inputs and labels are looked for, whatever their case.
INPUTS = ("inputs", "images", "input_ids", "x", "x_test", "x_train", "data", "features")
LABELS = ("labels", "targets", "y", "y_test", "y_train", "classes")
EXAMPLES = FileKind(
    "data",
    InputError,
    (".npy", ".npz", ".pt", ".pth", ".safetensors"),
    "Save plain tensors: torch.save({'inputs': x, 'labels': y}, FILE).",
)

#: One stored array, or the error to raise if it is needed but cannot be used.
Column = torch.Tensor | np.ndarray | InputError


def file_content(file: Path) -> bytes:
    """Return the bytes of a file; raise an InputError if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise unreadable(file, EXAMPLES, error) from error


def _npy_columns(path: Path) -> dict[str, Column]:
    """Return the array of a .npy file, mapped into memory."""
    return {"inputs": _numbers(np.load(path, mmap_mode="r", allow_pickle=False), str(path))}


def _npz_columns(path: Path) -> dict[str, Column]:
    """Return the arrays of a .npz archive."""
    found: dict[str, Column] = {}
    with path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        for name in archive.files:
            try:
                found[name] = _numbers(archive[name], f"{name} in {path}")
            except ValueError:
                found[name] = InputError(
                    f"Expected numbers, but {name} in {path} holds Python objects, which are never loaded."
                )
    return found


def _numbers(array: np.ndarray, place: str) -> Column:
    """Return an array if torch has its type."""
    try:
        torch.from_numpy(np.empty(0, array.dtype.newbyteorder("=")))
    except TypeError:
        return InputError(f"Expected numbers, but {place} holds {array.dtype}. Save them as float32 or uint8.")
    return array


def _torch_columns(path: Path) -> dict[str, Column]:
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
    return {str(key): _tensor_column(path, str(key), value) for key, value in content.items()}


def _tensor_column(path: Path, name: str, value: Any) -> Column:
    """Return a tensor or, under a known name, a list of tensors or numbers of one shape."""
    listing = isinstance(value, (list, tuple)) and name.lower() in (*INPUTS, *LABELS)
    parts = list(value) if listing else [value]
    if listing and parts and all(isinstance(part, (bool, int, float)) for part in parts):
        return torch.tensor(parts)
    if not parts or not all(isinstance(part, torch.Tensor) for part in parts):
        held = " of ".join(type(thing).__name__ for thing in (value, *parts[: int(listing)]))
        return InputError(f"Expected {name} in {path} to be a tensor, got {held}.")
    odd = next((pair for part in parts if (pair := unlike_numbers(part))[0]), None)
    if odd is not None:
        return InputError(f"Expected a dense tensor, but {name} in {path} is {odd[0]}. Save {odd[1]}.")
    kinds = sorted({f"{tuple(part.shape)} {str(part.dtype).removeprefix('torch.')}" for part in parts})
    if len(kinds) > 1:
        return InputError(
            f"Expected examples of one shape and dtype, but {name} in {path} is a list of tensors {kinds[0]}, "
            f"{kinds[1]} and others. Crop or pad them and save one tensor."
        )
    return torch.stack(parts) if listing else parts[0]


def _chosen(names: Iterable[str], known: Sequence[str]) -> str | None:
    by_lower = {name.lower(): name for name in names}
    return next((by_lower[name] for name in known if name in by_lower), None)


def tensor_file(path: str | Path) -> Records:
    """Return the examples in a tensor file; the first axis counts them.

    An archive or dictionary holds inputs under one of :data:`INPUTS` and labels under one of :data:`LABELS`; a single
    tensor is taken as the inputs, whatever its name, unless that is one for labels. A list of tensors of one shape
    counts as a tensor. Other entries may hold anything: labels that are not numbers are left out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/x.npz", x=np.zeros((5, 3), np.float32), y=np.arange(5))
    ...     data = tensor_file(f"{folder}/x.npz")
    ...     data.count, data.shape, data.labels.tolist()
    (5, (3,), [0, 1, 2, 3, 4])
    """
    path = user_path(path)
    existing_file(path, EXAMPLES)
    from safetensors.torch import load_file

    readers: dict[str, Callable[[Path], Mapping[str, Column]]]
    readers = {".npy": _npy_columns, ".npz": _npz_columns, ".safetensors": load_file}
    try:
        columns = readers.get(path.suffix.lower(), _torch_columns)(path)
    except InputError:
        raise
    except Exception as error:
        # Damaged files raise almost anything, KeyError, ValueError and SafetensorError among them.
        raise unreadable(path, EXAMPLES, error) from error
    return _checked(path, columns)


def _inputs_name(path: Path, columns: Mapping[str, Column]) -> str:
    """Return the name of the inputs: a known one, or that of the only array which is not named as labels."""
    usable = [key for key, column in columns.items() if not isinstance(column, InputError)]
    name = _chosen(usable, INPUTS) or _chosen(columns, INPUTS)
    if name is not None:
        return name
    unnamed = [key for key in usable or columns if key.lower() not in LABELS]
    if len(usable or columns) != 1 or not unnamed:
        held = ", ".join(sorted(columns)) or "nothing"
        raise InputError(f"Expected the inputs in {path} to be named {', '.join(INPUTS[:4])} or similar, found {held}.")
    return unnamed[0]


def _checked(path: Path, columns: Mapping[str, Column]) -> Records:
    name = _inputs_name(path, columns)
    examples = columns[name]
    if isinstance(examples, InputError):
        raise examples
    others = {key: column for key, column in columns.items() if not isinstance(column, InputError) and key != name}
    label = _chosen(others, LABELS)
    unusable = _chosen([key for key, column in columns.items() if isinstance(column, InputError)], LABELS)
    note = "" if label or unusable is None else f"The labels are left out. {columns[unusable]}"
    records = Records(examples, None if label is None else others[label], note)
    if not examples.shape or examples.shape[0] == 0:
        raise InputError(
            f"Expected examples along the first axis, but {name} in {path} has shape {tuple(examples.shape)}."
        )
    if records.part(0, 0)[0].is_complex():
        raise InputError(f"Expected real numbers, but {name} in {path} is complex. Save its real and imaginary parts.")
    if records.labels is not None and records.labels.shape[:1] != examples.shape[:1]:
        raise InputError(
            f"Expected one label per example, but {path} has {examples.shape[0]} examples and labels of shape "
            f"{tuple(records.labels.shape)}."
        )
    return records
