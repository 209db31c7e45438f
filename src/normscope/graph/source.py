"""The code a model's forward can reach, by content; what is installed, by version."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

_PLAIN = (bool, int, float, str, type(None))
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_DEFAULTS = ("__defaults__", "__kwdefaults__")


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
    functions = reachable_functions(model)
    spaces = {id(f.__globals__): f.__globals__ for f in functions}
    settings = [
        repr(sorted((k, repr(v)) for k, v in names.items() if type(v) in _PLAIN and not k.startswith("__")))
        for names in spaces.values()
    ]
    return [sorted({_hash(f.__code__.co_filename) for f in functions}), sorted(settings)]


def reachable_functions(model: nn.Module) -> list[types.FunctionType]:
    """Return the functions in the user's files that a model can call by name.

    Args:
        model: the model.
    """
    found: list[types.FunctionType] = []
    seen: set[int] = set()
    stack = [f for kind in {type(module) for module in model.modules()} for f in _functions(kind)]
    stack += [f for module in model.modules() for f in _functions(vars(module))]
    while stack:
        function = stack.pop()
        if id(function) in seen or not is_users(function.__code__.co_filename):
            continue
        seen.add(id(function))
        found.append(function)
        stack.extend(_functions(dict(enumerate(_cells(function).values()))))
        stack.extend(_functions(vars(function)))
        names = function.__globals__
        if id(names) not in seen:
            seen.add(id(names))
            stack.extend(_functions(names))
    return found


def values_read(functions: Iterable[types.FunctionType]) -> list[tuple[str, Any]]:
    """Return what functions read besides their arguments, by name: variables around them, defaults, globals.

    Globals are those whose name stands in the code of one of the functions, also as an attribute, as in
    ``settings.scale``: then they may be of a module of the user that is named there too. Functions and modules are left
    out, and so is our own code, whose files stand for all that it reads. The environment is one of the values if a name
    says that it is looked at.

    >>> def outer(gain):
    ...     return lambda x, shift=2: gain * x + shift
    >>> sorted(values_read([outer(3)]))
    [('outer.<locals>.<lambda>.__defaults__', (2,)), ('outer.<locals>.<lambda>.gain', 3)]
    """
    functions = [f for f in functions if not f.__code__.co_filename.startswith(_OURS)]
    names = {name for function in functions for name in _names(function.__code__)}
    found: list[tuple[str, Any]] = []
    spaces: dict[int, tuple[str, dict[str, Any]]] = {}
    for function in functions:
        where = function.__qualname__
        found += [(f"{where}.{name}", value) for name, value in _cells(function).items()]
        found += [(f"{where}.{part}", v) for part in _DEFAULTS if (v := getattr(function, part))]
        spaces[id(function.__globals__)] = (function.__module__, function.__globals__)
    for space in [space for _, space in spaces.values()]:
        for value in (space[name] for name in names if name in space):
            if isinstance(value, types.ModuleType) and is_users(file_of(value)):
                spaces[id(vars(value))] = (value.__name__, vars(value))
    for where, space in spaces.values():
        found += [(f"{where}.{name}", space[name]) for name in names if name in space and not name.startswith("__")]
    found = [(name, v) for name, v in found if not isinstance(v, types.FunctionType | types.ModuleType)]
    if names & {"environ", "getenv"}:
        found.append(("environment", dict(os.environ)))
    return found


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
        elif isinstance(inner, type | types.ModuleType) and depth < 2 and is_users(file_of(inner)):
            yield from _functions(inner, depth + 1)


def file_of(holder: type | types.ModuleType) -> str:
    """Return the file of a module, or of a class: that of one of its functions."""
    if isinstance(holder, types.ModuleType):
        return getattr(holder, "__file__", None) or ""
    own = (value for value in vars(holder).values() if isinstance(value, types.FunctionType))
    return next((f.__code__.co_filename for f in own if not f.__code__.co_filename.startswith("<")), "")


def _cells(function: types.FunctionType) -> dict[str, Any]:
    """Return the variables around a function, by name; one may have no value yet."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in compiled code, functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _hash(file: str) -> str:
    """Return the hash of a file's content as it is now."""
    return _hash_at(file, Path(file).stat().st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _hash_at(file: str, changed: int) -> str:
    """Return the hash of a file's content, read once per change."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
