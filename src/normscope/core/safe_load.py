"""Files of tensors, read without running code in them: one reader and one set of messages for weights and for data."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from normscope.core.errors import NormscopeError, WeightsError, listed

SAFETENSORS = ".safetensors"
PICKLED = (".pt", ".pth", ".bin", ".ckpt")
#: Keys under which training scripts put the state dict.
WRAPPERS = ("state_dict", "model_state_dict", "model")


@dataclass(frozen=True)
class FileKind:
    """What a file is read for, as messages call it.

    Attributes:
        name: its name at the start of a sentence, e.g. ``"a checkpoint"``.
        error: the class of every refusal.
        endings: what its name may end in.
        save: how to write such a file.
        directory: what to do when a directory is named instead.
    """

    name: str
    error: type[NormscopeError]
    endings: tuple[str, ...]
    save: str
    directory: str = "name a file in it"


CHECKPOINT = FileKind(
    "a checkpoint",
    WeightsError,
    (SAFETENSORS, *PICKLED),
    "save a state dict: torch.save(model.state_dict(), FILE)",
    "name a file in it (for a model: hf:DIRECTORY)",
)


def existing_file(path: Path, kind: FileKind) -> None:
    """Return if the file is there, has a known ending and is not empty.

    Args:
        path: the file.
        kind: what it is read for.

    Raises:
        NormscopeError: of the kind's class, if it is missing, a directory, of another ending or empty.

    >>> existing_file(Path("nowhere.pt"), CHECKPOINT)
    Traceback (most recent call last):
        ...
    normscope.core.errors.WeightsError: a checkpoint must be a file; there is no nowhere.pt; check the path
    """
    if path.is_dir():
        raise kind.error(f"{kind.name} must be a file; {path} is a directory; {kind.directory}")
    if not path.exists():
        raise kind.error(f"{kind.name} must be a file; there is no {path}; check the path")
    if not path.name.lower().endswith(kind.endings):
        raise kind.error(f"{kind.name} must end in {', '.join(kind.endings)}; got {path.name}; {kind.save}")
    if not path.is_file():
        raise kind.error(f"{kind.name} must be a regular file; {path} is a pipe or a device; copy it to a file")
    if path.stat().st_size == 0:
        raise kind.error(f"{kind.name} must hold tensors; {path} is empty (0 bytes); copy it again, or {kind.save}")


def is_archive(path: Path) -> bool:
    """Return whether a file has the zip format of torch.save, which can be mapped from disk."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def unreadable(path: Path, kind: FileKind, error: Exception) -> NormscopeError:
    """Return the error for a file that is damaged, cut short or of another format.

    Args:
        path: the file.
        kind: what it is read for.
        error: what its reader raised.

    Returns:
        The error to raise.

    >>> str(unreadable(Path("m.pt"), CHECKPOINT, EOFError("ran out of input")))[:66]
    'm.pt cannot be read as a checkpoint (EOFError: ran out of input); '
    """
    if isinstance(error, PermissionError):
        return kind.error(f"{path} must be readable; {error}; check its permissions")
    first = (str(error).splitlines() or ["no message"])[0]
    return kind.error(
        f"{path} cannot be read as {kind.name} ({type(error).__name__}: {first[:160]}); it may be cut short or in "
        f"another format; copy it again, or {kind.save}"
    )


def _ends_with(path: Path, name: str) -> bool:
    """Return whether a file ends in the middle of a dotted name: it was cut short there, the name means nothing."""
    part = name.rpartition(".")[2].encode()
    with path.open("rb") as file:
        file.seek(-min(len(part) + 1, path.stat().st_size), 2)
        tail = file.read()
    # The unpickler takes the last letter of an unfinished name for the end of its line.
    return part in tail and not tail.endswith(b"\n")


def _refused(path: Path, kind: FileKind, error: Exception) -> NormscopeError:
    """Return the error for a file that ``torch.load(weights_only=True)`` would not read, with the likely reason."""
    text = str(error)
    if "TorchScript" in text:
        return kind.error(
            f"{kind.name} must hold tensors and plain containers only; {path} is a TorchScript archive, which holds "
            "code; save what is in it: torch.save(torch.jit.load(FILE).state_dict(), NEW)"
        )
    if not isinstance(error, pickle.UnpicklingError):
        return unreadable(path, kind, error)
    asked = re.search(r"(?:GLOBAL|global) (\w+(?:\.\w+)+)", text)
    if not asked or _ends_with(path, asked.group(1)):  # torch's own text would advise to switch the protection off
        return unreadable(path, kind, pickle.UnpicklingError("not a pickle that torch.save wrote"))
    return kind.error(
        f"{kind.name} must hold tensors and plain containers only; {path} asks for {asked.group(1)} and was refused, "
        f"because unpickling it could run code; {kind.save}"
    )


def safe_load(path: Path, kind: FileKind) -> Any:
    """Return what torch.save wrote to a file, on the CPU, mapped from disk where the format allows.

    Only tensors and plain containers are built: no code in the file is run.

    Args:
        path: the file.
        kind: what it is read for.

    Returns:
        Its content.

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
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive(path))
        except Exception as error:
            # Damaged pickles raise almost anything, KeyError and struct.error among them.
            raise _refused(path, kind, error) from error


def tensors_by_name(content: Any, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a state dict, bare or under one of :data:`WRAPPERS`.

    Args:
        content: what a checkpoint held.
        name: how messages call it.

    Returns:
        Tensors by name; anything else in the state dict is left out.

    Raises:
        WeightsError: if there are none.

    >>> list(tensors_by_name({"epoch": 3, "state_dict": {"weight": torch.ones(1), "version": 2}}, "m.pt"))
    ['weight']
    """
    while isinstance(content, Mapping):
        inner = next((content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    found = content if isinstance(content, Mapping) else {}
    tensors = {str(key): value for key, value in found.items() if isinstance(value, torch.Tensor)}
    if tensors:
        return tensors
    held = (listed([str(key) for key in content]) or "nothing") if content is found else type(content).__name__
    raise WeightsError(
        f"a checkpoint must hold tensors by name, at the top or under {', '.join(WRAPPERS)}; {name} holds {held}; "
        "save model.state_dict()"
    )
