"""Files of tensors, read without running code in them: one reader and one set of messages for weights and for data."""

from __future__ import annotations

import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from normscope.core.errors import NormscopeError, WeightsError, listed

SAFETENSORS = ".safetensors"
PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".th")
#: The first bytes of what torch.save wrote before it wrote zip archives: a pickled number.
_LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")
#: Keys under which training scripts put the state dict.
WRAPPERS = ("state_dict", "model_state_dict", "model")
#: Keys of the state of an optimizer.
_OPTIMIZER = {"state", "param_groups"}


@dataclass(frozen=True)
class FileKind:
    """What a file is read for, as messages call it.

    Attributes:
        name: its name at the start of a sentence, e.g. ``"a checkpoint"``.
        error: the class of every refusal.
        endings: what its name may end in.
        save: how to write such a file.
        directory: what to do when a directory is named instead.
        by_content: whether a file of tensors may have any ending.
    """

    name: str
    error: type[NormscopeError]
    endings: tuple[str, ...]
    save: str
    directory: str = "Name a file in it."
    by_content: bool = False


CHECKPOINT = FileKind(
    "a checkpoint",
    WeightsError,
    (SAFETENSORS, *PICKLED),
    "Save a state dict: torch.save(model.state_dict(), FILE).",
    "Name a file in it (for a model: hf:DIRECTORY).",
    by_content=True,
)


def existing_file(path: Path, kind: FileKind) -> None:
    """Raise the error of a kind of file unless the file is there, has a known ending and is not empty.

    >>> existing_file(Path("nowhere.pt"), CHECKPOINT)
    Traceback (most recent call last):
        ...
    normscope.core.errors.WeightsError: File not found: nowhere.pt. Check the path.
    """
    if not os.path.exists(path):  # unlike Path.exists, also where the system refuses to look at a name
        raise kind.error(f"File not found: {path}. Check the path.")
    if os.path.isdir(path):  # a name may be too long for the system to look at
        raise kind.error(f"Expected {kind.name}, but {path} is a directory. {kind.directory}")
    if not path.name.lower().endswith(kind.endings) and not (kind.by_content and holds_tensors(path)):
        raise kind.error(
            f"Expected {kind.name} in a file ending in {', '.join(kind.endings)}, got {path.name}. {kind.save}"
        )
    if path.stat().st_size == 0:
        raise kind.error(f"{path} is empty (0 bytes). Copy it again. {kind.save}")


def is_safetensors(path: Path) -> bool:
    """Tell whether a file is of the safetensors format: by its ending, or by its first bytes under any other."""
    if path.suffix.lower() == SAFETENSORS or not path.is_file():
        return path.suffix.lower() == SAFETENSORS
    with path.open("rb") as file:
        head = file.read(9)
    return head[8:] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size


def holds_tensors(path: Path) -> bool:
    """Tell by its first bytes whether a file was written by torch.save or safetensors, whatever its name ends in."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_LEGACY))
    except (OSError, ValueError):
        return False
    return head.startswith(b"PK\x03\x04") or head == _LEGACY or is_safetensors(path)


def is_mappable(path: Path) -> bool:
    """Return whether a file has the zip format of torch.save with its members as they are, not compressed again.

    Only then do the bytes on disk stand for the tensors, and can be mapped.
    """
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            return False
    try:
        with zipfile.ZipFile(path) as archive:
            return all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False  # damaged: whoever reads it as a whole says so


def unreadable(path: Path, kind: FileKind, error: Exception) -> NormscopeError:
    """Return the error for a file that is damaged, cut short or of another format.

    >>> str(unreadable(Path("m.pt"), CHECKPOINT, EOFError("ran out of input")))[:66]
    'm.pt cannot be read as a checkpoint (EOFError: ran out of input). '
    """
    if isinstance(error, PermissionError):
        return kind.error(f"Cannot read {path}: {error}. Check its permissions.")
    first = (str(error).splitlines() or ["no message"])[0]
    return kind.error(
        f"{path} cannot be read as {kind.name} ({type(error).__name__}: {first[:160]}). It may be "
        f"truncated or in another format: copy it again. {kind.save}"
    )


def _refused(path: Path, kind: FileKind, error: Exception) -> NormscopeError:
    """Return the error for a file that ``torch.load(weights_only=True)`` would not read, with the likely reason."""
    text = str(error)
    if "TorchScript" in text:
        return kind.error(
            f"Refused to load {path}: it is a TorchScript archive, which contains code. Save its "
            "weights: torch.save(torch.jit.load(FILE).state_dict(), NEW)."
        )
    if not isinstance(error, pickle.UnpicklingError):
        return unreadable(path, kind, error)
    asked = re.search(r"(?:GLOBAL|global) (\w+(?:\.\w+)+)", text)
    if not asked:  # torch's own text would advise to switch the protection off
        return unreadable(path, kind, pickle.UnpicklingError("not a pickle written by torch.save"))
    return kind.error(
        f"Refused to load {path}: unpickling {asked.group(1)} could run code. Only tensors and "
        f"plain containers are loaded. {kind.save}"
    )


def safe_load(path: Path, kind: FileKind) -> Any:
    """Return what torch.save wrote to a file, on the CPU, mapped from disk where the format allows.

    Only tensors and plain containers are built: no code in the file is run.

    Raises:
        NormscopeError: of the kind's class, if the file is missing, empty, cut short, unsafe or of another format.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"weight": torch.ones(2)}, f"{folder}/m.pt")
    ...     safe_load(Path(folder) / "m.pt", CHECKPOINT)["weight"]
    tensor([1., 1.])
    """
    existing_file(path, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on the file's age; every refusal is an error of its own
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_mappable(path))
        except Exception as error:
            # Damaged pickles raise almost anything, KeyError and struct.error among them.
            raise _refused(path, kind, error) from error


def tensors_by_name(content: Any, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a state dict: bare, under one of :data:`WRAPPERS`, or the only one under another key.

    Returns:
        Tensors by name; anything else in the state dict is left out, and so is what lies beside it.

    Raises:
        WeightsError: if there are none, or several state dicts and nothing tells which is meant.

    >>> list(tensors_by_name({"epoch": 3, "state_dict": {"weight": torch.ones(1), "version": 2}}, "m.pt"))
    ['weight']
    >>> list(tensors_by_name({"net": {"weight": torch.ones(1)}, "best": torch.tensor(0.9)}, "m.pt"))
    ['weight']
    """
    content = _named(content)
    inside = _state_dicts(content, _is_weight) or _state_dicts(content, lambda value: isinstance(value, torch.Tensor))
    while wrapper := next((key for key in WRAPPERS if any(path[:1] == (key,) for path in inside)), None):
        inside = {path[1:]: found for path, found in inside.items() if path[:1] == (wrapper,)}
    if len(inside) > 1:
        own = [str(key) for key, value in inside.pop((), {}).items() if _is_weight(value)]
        beside = f"{listed(own)} beside the state dicts " if own else "the state dicts "
        names = listed(["/".join(map(str, path)) for path in inside])
        raise WeightsError(
            f"Expected one state dict in the checkpoint, but {name} has {beside}{names}. Save one of them alone, e.g. "
            f"torch.save(torch.load(FILE){''.join(f'[{key!r}]' for key in next(iter(inside)))}, NEW)."
        )
    if inside:
        found = next(iter(inside.values()))
        return {str(key): value for key, value in found.items() if isinstance(value, torch.Tensor)}
    mapping = isinstance(content, Mapping)
    held = (listed([str(key) for key in content]) or "nothing") if mapping else type(content).__name__
    raise WeightsError(
        f"Expected tensors by name in the checkpoint, at the top or under {', '.join(WRAPPERS)}; "
        f"{name} has {held}. Save model.state_dict()."
    )


def _named(content: Any) -> Any:
    """Return content with lists of (name, tensor) pairs, as ``list(state_dict.items())`` gives, as dictionaries."""
    if isinstance(content, Mapping):
        return {key: _named(value) if isinstance(value, list) else value for key, value in content.items()}
    pairs = isinstance(content, list) and all(isinstance(x, tuple | list) and len(x) == 2 for x in content)
    named = pairs and all(isinstance(x[0], str) and isinstance(x[1], torch.Tensor) for x in content)
    return dict(content) if named and content else content


def _state_dicts(content: Any, is_part: Callable[[Any], bool]) -> dict[tuple[Any, ...], Mapping[Any, Any]]:
    """Return every mapping inside that holds such a part, by the keys on the way to it; the outermost has none.

    States of optimizers are left out, and what a module keeps beside its tensors (``get_extra_state``). Mappings may
    lie inside themselves, and inside several others: each is found once, under :data:`WRAPPERS` if it is there.
    """
    found: dict[tuple[Any, ...], Mapping[Any, Any]] = {}
    seen: set[int] = set()
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), content)]
    for path, value in waiting:  # grows while it is walked: the shallow ones come first
        if not isinstance(value, Mapping) or id(value) in seen or value.keys() >= _OPTIMIZER:
            continue
        seen.add(id(value))
        if any(is_part(item) for item in value.values()):
            found[path] = value
        inner = [((*path, k), v) for k, v in value.items() if str(k).rpartition(".")[2] != "_extra_state"]
        waiting += sorted(inner, key=lambda pair: pair[0][-1] not in WRAPPERS)
    return found


def _is_weight(value: Any) -> bool:
    """Tell whether a value can be a weight: numbers along an axis, not a counter, a score or a state of a generator."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return False
    return value.is_floating_point() or value.is_complex() or value.is_quantized


def unlike_numbers(tensor: torch.Tensor) -> tuple[str, str]:
    """Return what keeps a tensor from being plain numbers in memory, and what to make of it; empty texts if nothing.

    >>> unlike_numbers(torch.eye(2).to_sparse())
    ('sparse_coo', 'x.to_dense()')
    >>> unlike_numbers(torch.eye(2))
    ('', '')
    """
    if tensor.is_nested:
        return "nested", "torch.nested.to_padded_tensor(x, 0.0)"
    if tensor.is_quantized:
        return str(tensor.dtype).removeprefix("torch."), "x.dequantize()"
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch."), "x.to_dense()"
    if tensor.is_meta:
        return "on the meta device, without values", "the tensor with its values"
    return "", ""


def refuse_unlike_numbers(tensors: Mapping[str, torch.Tensor], name: str) -> None:
    """Raise if a weight is nested, quantized, sparse or without values.

    >>> refuse_unlike_numbers({"weight": torch.eye(2)}, "m.pt")
    """
    for key, tensor in tensors.items():
        kind, mend = unlike_numbers(tensor)
        if kind:
            raise WeightsError(f"Expected dense numbers as weights, but {key} in {name} is {kind}. Save {mend}.")
