"""Files of tensors, read without running code in them: one reader and one set of messages for weights and for data.

Checkpoints often hold more than tensors: the arguments of a script, paths, a whole module. Objects of classes that are
not on torch's list of harmless ones are read as :class:`StandIn`, which keeps what the file says about them and runs
nothing.
"""

import errno
import os
import pickle
import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch._weights_only_unpickler import _get_allowed_globals

from normscope.core.errors import NormscopeError, WeightsError, listed

SAFETENSORS = ".safetensors"
PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".th")
#: The first bytes of what torch.save wrote before it wrote zip archives: a pickled number.
_LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")
#: Keys under which training scripts put the state dict.
WRAPPERS = ("state_dict", "model_state_dict", "model")
#: Modules and functions that no checkpoint needs: a file that names one is refused.
_CODE = (
    "os",
    "posix",
    "nt",
    "sys",
    "subprocess",
    "shutil",
    "socket",
    "runpy",
    "importlib",
    "pty",
    "ctypes",
    "webbrowser",
)
_RUNNERS = ("eval", "exec", "compile", "__import__", "open", "input", "breakpoint")
#: Keys of the state of an optimizer.
_OPTIMIZER = {"state", "param_groups"}


@dataclass(frozen=True)
class FileKind:
    """What a file is read for, as messages call it.

    Attributes:
        name: its name at the start of a sentence, e.g. ``"a checkpoint"``.
        error: the class of every error.
        endings: what its name may end in.
        save: how to write such a file.
        directory: what to do when a directory is named instead.
        by_content: whether a file of tensors may have any ending.
        stand_ins: whether objects of unknown classes may lie beside the tensors.
    """

    name: str
    error: type[NormscopeError]
    endings: tuple[str, ...]
    save: str
    directory: str = "Name a file in it."
    by_content: bool = False
    stand_ins: bool = False


CHECKPOINT = FileKind(
    "a checkpoint",
    WeightsError,
    (SAFETENSORS, *PICKLED),
    "Save a state dict: torch.save(model.state_dict(), FILE).",
    "Name a file in it (for a model: hf:DIRECTORY).",
    by_content=True,
    stand_ins=True,
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
    """Return whether a file is of the safetensors format: by its ending, or by its first bytes under any other."""
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
        return False  # damaged: reading it as a whole reports that


def unreadable(path: Path, kind: FileKind, error: Exception) -> NormscopeError:
    """Return the error for a file that is damaged, cut short or of another format.

    >>> str(unreadable(Path("m.pt"), CHECKPOINT, EOFError("ran out of input")))[:66]
    'm.pt cannot be read as a checkpoint (EOFError: ran out of input). '
    """
    if isinstance(error, PermissionError):
        return kind.error(f"Cannot read {path}: {error}. Check its permissions.")
    first = (str(error).splitlines() or ["no message"])[0].partition(" This is an internal")[0]
    # where a damaged file led the reader astray, the error names no more than a byte of it or an offset
    astray = isinstance(error, LookupError | TypeError | AttributeError) or getattr(error, "errno", 0) == errno.EINVAL
    reason = "" if astray else f" ({type(error).__name__}: {first[:160]})"
    return kind.error(
        f"{path} cannot be read as {kind.name}{reason}. It may be truncated or in another format: copy it again. "
        f"{kind.save}"
    )


_ASKED = re.compile(r"(?:GLOBAL|global) (\w+(?:\.\w+)*)")


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
    asked = _ASKED.search(text)
    if not asked:  # torch's own text would advise to switch the protection off
        return unreadable(path, kind, pickle.UnpicklingError("not a pickle written by torch.save"))
    return kind.error(
        f"Refused to load {path}: unpickling {asked.group(1)} could run code. Only tensors and "
        f"plain containers are loaded. {kind.save}"
    )


class StandIn:
    """Keeps what a pickle says about an object whose class is not loaded; nothing of that class runs.

    Attributes:
        state: what was given to restore it, e.g. the attributes of a module.
    """

    state: Any = None
    dump_patches = False  # the older format asks every module class for it

    def __init__(self, *args: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignore an item of a mapping."""

    def append(self, item: Any) -> None:
        """Ignore an item of a list."""


class _Unpickler(pickle._Unpickler):
    """Finds what torch considers harmless, and stand-ins for the rest; only stand-ins get a state from the file."""

    dispatch: ClassVar[Any] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names."""
        module = {"__builtin__": "builtins"}.get(module, module)  # its name in the pickles of torch.save
        if module.partition(".")[0] in _CODE or (module == "builtins" and name in _RUNNERS):
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")
        return _get_allowed_globals().get(f"{module}.{name}", StandIn)

    def _build(self) -> None:
        """Give a state to the object on the stack: a class or a function of torch must not be changed by a file."""
        state, restored = self.stack.pop(), self.stack[-1]
        if isinstance(restored, StandIn):
            restored.state = state
        elif not isinstance(restored, OrderedDict):  # a state dict: the versions of its modules are not needed
            raise pickle.UnpicklingError(f"not a plain container: {type(restored).__name__}")

    dispatch[pickle.BUILD[0]] = _build


def _unpickling() -> ModuleType:
    """Return a pickle module for torch.load that finds classes with :class:`_Unpickler`."""
    module: Any = ModuleType("normscope_unpickling")
    module.Unpickler = _Unpickler
    module.load = lambda file, **options: _Unpickler(file, **options).load()
    return module


def safe_load(path: Path, kind: FileKind) -> Any:
    """Return what torch.save wrote to a file, on the CPU, mapped from disk where the format allows.

    Only tensors and plain containers are built, and stand-ins for other objects where the kind allows them: no code in
    the file is run.

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
            mapped = is_mappable(path)
            try:
                return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
            except pickle.UnpicklingError as error:
                if not kind.stand_ins or not _ASKED.search(str(error)):
                    raise
                return torch.load(
                    path, map_location="cpu", pickle_module=_unpickling(), weights_only=False, mmap=mapped
                )
        except Exception as error:
            # Damaged pickles raise almost anything, KeyError and struct.error among them.
            raise _refused(path, kind, error) from error


def tensors_by_name(content: Any, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a state dict: bare, under one of :data:`WRAPPERS`, or the only one under another key.

    A module that was saved as a whole counts as its state dict.

    Returns:
        Tensors by name; anything else in the state dict is left out, and so is what lies beside it.

    Raises:
        WeightsError: if there are none, or several state dicts and it is unclear which is meant.

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
    """Return content with state dicts for saved modules and lists of pairs, as ``list(state_dict.items())`` gives."""
    if isinstance(content, Mapping):
        return {key: _named(value) if isinstance(value, list | StandIn) else value for key, value in content.items()}
    if isinstance(content, StandIn):
        return _module_tensors(content) or content
    pairs = isinstance(content, list) and all(isinstance(x, tuple | list) and len(x) == 2 for x in content)
    named = pairs and all(isinstance(x[0], str) and isinstance(x[1], torch.Tensor) for x in content)
    return dict(content) if named and content else content


def _module_tensors(module: Any, prefix: str = "", above: tuple[int, ...] = ()) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a module that was saved as a whole, named as its state dict names them."""
    held = module.state if isinstance(module, StandIn) and isinstance(module.state, Mapping) else {}
    parts = ("_parameters", "_buffers", "_modules")
    if id(module) in above or not all(isinstance(held.get(part), Mapping) for part in parts):
        return {}
    passing = held.get("_non_persistent_buffers_set")
    passing = passing if isinstance(passing, set) else set()
    buffers = {name: buffer for name, buffer in held["_buffers"].items() if name not in passing}
    own = {f"{prefix}{k}": v for k, v in {**held["_parameters"], **buffers}.items() if isinstance(v, torch.Tensor)}
    for name, part in held["_modules"].items():
        own |= _module_tensors(part, f"{prefix}{name}.", (*above, id(module)))
    return own


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
    """Return whether a value can be a weight: numbers along an axis, not a counter, a score or a generator state."""
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
