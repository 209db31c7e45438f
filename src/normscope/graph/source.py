"""The code a model's forward can reach, by content; what is installed, by version."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

_PLAIN = (bool, int, float, str, type(None))


class UnidentifiableError(Exception):
    """Something a graph may depend on cannot be described."""


@functools.cache
def installed() -> list[list[str]]:
    """Return every installed distribution and its version.

    >>> "torch" in [name for name, _ in installed()]
    True
    """
    return sorted([str(d.metadata["Name"]), str(d.version)] for d in importlib.metadata.distributions())


def loaded_files() -> list[list[str]]:
    """Return the hash of every loaded file that is neither installed, nor in the standard library, nor ours."""
    found: set[tuple[str, str]] = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and name.split(".")[0] != "normscope" and is_users(file):
            found.add((name, _hash(file)))
    return [list(pair) for pair in sorted(found)]


def reachable_files(model: nn.Module) -> list[Any]:
    """Return the files of all functions a model can call by name, and the plain settings beside them.

    Modules that were dropped from ``sys.modules`` are found too, through the globals of the functions.

    Args:
        model: the model.
    """
    files: set[str] = set()
    settings: list[str] = []
    seen: set[int] = set()
    stack = [f for kind in {type(module) for module in model.modules()} for f in _functions(kind)]
    stack += [f for module in model.modules() for f in _functions(vars(module))]
    while stack:
        function = stack.pop()
        if id(function) in seen or not is_users(function.__code__.co_filename):
            continue
        seen.add(id(function))
        files.add(function.__code__.co_filename)
        cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        stack.extend(_functions(dict(enumerate(cells))))
        stack.extend(_functions(vars(function)))
        names = function.__globals__
        if id(names) in seen:
            continue
        seen.add(id(names))
        stack.extend(_functions(names))
        plain = sorted((k, repr(v)) for k, v in names.items() if type(v) in _PLAIN and not k.startswith("__"))
        settings.append(repr(plain))
    return [sorted(_hash(file) for file in files), sorted(settings)]


def own_files() -> list[list[str]]:
    """Return the hash of every file of the code that makes graphs."""
    return [[path.name, _hash(str(path))] for path in sorted(Path(__file__).parent.glob("*.py"))]


def require_file(function: types.FunctionType) -> None:
    """Raise if a function is not in a file, as in a notebook: what it calls could not be followed.

    Raises:
        UnidentifiableError: in that case.
    """
    if not Path(function.__code__.co_filename).is_file():
        raise UnidentifiableError(f"{function.__qualname__} is not in a file")


@functools.cache
def is_users(file: str) -> bool:
    """Tell whether a file is the user's: neither installed nor of the standard library.

    >>> is_users(functools.__file__), is_users("<string>")
    (False, False)
    """
    path = Path(file).resolve()
    standard = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    if {"site-packages", "dist-packages"} & set(path.parts) or any(path.is_relative_to(root) for root in standard):
        return False
    return path.is_file()


def _functions(holder: Any, depth: int = 0) -> Iterator[types.FunctionType]:
    """Yield the functions in a class, module or dictionary, and those of classes and modules in it."""
    if isinstance(holder, type):
        values = [value for base in holder.__mro__ for value in vars(base).values()]
    else:
        values = list((holder if isinstance(holder, dict) else vars(holder)).values())
    for value in values:
        inner = getattr(value, "__func__", value)  # methods, class methods and static methods
        inner = getattr(inner, "fget", inner)  # properties
        if isinstance(inner, types.FunctionType):
            yield inner
        elif isinstance(inner, type | types.ModuleType) and depth < 2 and is_users(_file_of(inner)):
            yield from _functions(inner, depth + 1)


def _file_of(holder: type | types.ModuleType) -> str:
    """Return the file of a module, or of a class: that of one of its functions."""
    if isinstance(holder, types.ModuleType):
        return getattr(holder, "__file__", None) or ""
    own = (value for value in vars(holder).values() if isinstance(value, types.FunctionType))
    return next((f.__code__.co_filename for f in own if not f.__code__.co_filename.startswith("<")), "")


def _filled(cell: types.CellType) -> bool:
    """Tell whether a closure's variable has a value yet."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _hash(file: str) -> str:
    """Return the hash of a file's content as it is now."""
    return _hash_at(file, Path(file).stat().st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _hash_at(file: str, changed: int) -> str:
    """Return the hash of a file's content, read once per change."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
