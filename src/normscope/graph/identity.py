"""What makes two models give the same graph: their code, their settings and the shapes of their state."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import sys
import types
import weakref
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.graph.guard import bits
from normscope.graph.ir import FORMAT
from normscope.graph.source import (
    UnidentifiableError,
    file_of,
    installed,
    is_users,
    loaded_files,
    own_files,
    reachable_files,
    reachable_functions,
    require_file,
    values_read,
)

#: Parts of a module that are described by the tree and the state.
_STRUCTURE = ("_parameters", "_buffers", "_modules")
#: Code that torch's and Python's versions stand for.
_KNOWN_CODE = ("builtins", "torch", "typing", "abc", "collections", "functools", "types", "enum", "dataclasses")
_PLAIN = (bool, int, float, str, type(None))
_DEPTH = 16


def model_key(model: nn.Module, inputs: Any, **settings: Any) -> str | None:
    """Return a key that is the same only for models that give the same graph, or ``None`` if that cannot be told.

    The key covers the content of every loaded file that is neither in the standard library nor installed, the
    versions of all that is installed, what the user's functions read around them (closures, defaults, globals, the
    environment if they look at it), class, forward and attributes of every module (of tensors that are not state, the
    content), hooks, names, shapes and dtypes of the state, shapes and dtypes of the inputs, and our own code.

    Args:
        model: the model.
        inputs: its example inputs, nested; of tensors only shape and dtype count.
        settings: further settings of the capture.

    Returns:
        A hexadecimal digest, or ``None`` if a class has no source or an attribute is of an unknown kind.

    >>> a = model_key(nn.Linear(2, 3), (torch.zeros(1, 2),))
    >>> a == model_key(nn.Linear(2, 3), (torch.ones(1, 2),)), a == model_key(nn.Linear(2, 4), (torch.ones(1, 2),))
    (True, False)
    """
    try:
        parts = (*model.named_modules(), *model.named_parameters(), *model.named_buffers())
        known = {id(part): name for name, part in parts}
        describer = _Describer(known)
        read = sorted(values_read(reachable_functions(model)), key=lambda pair: pair[0])
        content = {
            "format": FORMAT,
            "python": sys.version,
            "installed": installed(),
            "code": [*loaded_files(), *reachable_files(model), *own_files()],
            "read": [[name, describer.describe(value)] for name, value in read],
            "modules": [describer.module(path, m) for path, m in model.named_modules(remove_duplicate=False)],
            "parameters": [_shape(name, p, known[id(p)]) for name, p in model.named_parameters(remove_duplicate=False)],
            "buffers": [_shape(name, b, known[id(b)]) for name, b in model.named_buffers(remove_duplicate=False)],
            "inputs": _Describer({}, shapes_only=True).describe(inputs),
            "settings": describer.describe(settings),
        }
        text = json.dumps(content, sort_keys=True)
    except (UnidentifiableError, OSError, TypeError, ValueError, AttributeError, LookupError, RuntimeError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()


class _Describer:
    """Describes values as JSON data that is equal only for values that are equal to a graph.

    Args:
        paths: modules and state of the model by identity: they are described once, and referred to by name.
        shapes_only: leave out the content of tensors.
    """

    def __init__(self, paths: Mapping[int, str], *, shapes_only: bool = False) -> None:
        self.paths = paths
        self.shapes_only = shapes_only
        self._classes: dict[type, list[Any]] = {}

    def kind(self, kind: type) -> list[Any]:
        """Describe a class, once."""
        if kind not in self._classes:
            self._classes[kind] = [f"{kind.__module__}.{kind.__qualname__}"]  # where it is met again inside
            self._classes[kind] = [*_class(kind), self._attributes(kind)]
        return self._classes[kind]

    def _attributes(self, kind: type) -> list[Any]:
        """Describe what the user's classes hold besides functions, as a table of factors."""
        held: list[Any] = []
        for base in kind.__mro__:
            if base.__module__.split(".")[0] not in _KNOWN_CODE and is_users(file_of(base)):
                values = ((k, v) for k, v in vars(base).items() if not k.startswith("_") and not _is_code(v))
                held += [[key, self.describe(value, 1)] for key, value in values]
        return held

    def module(self, path: str, module: nn.Module) -> list[Any]:
        """Describe one module of the model: class, attributes and the names of its children."""
        attributes = {key: value for key, value in vars(module).items() if key not in _STRUCTURE}
        # Hooks are numbered over the whole process; what they are and their order is what counts.
        plain = {
            k: list(v.values()) if k.endswith("_hooks") and isinstance(v, dict) else v for k, v in attributes.items()
        }
        names = [path, self.paths[id(module)], *module._modules]
        return [names, self.kind(type(module)), self.describe(plain)]

    def describe(self, value: Any, depth: int = 0) -> Any:
        """Describe any value.

        Raises:
            UnidentifiableError: if it is of an unknown kind, or nested too deeply.
        """
        if depth > _DEPTH:
            raise UnidentifiableError("nested too deeply")
        if value is None or type(value) in (bool, int, str):
            return [type(value).__name__, value]
        if isinstance(
            value, float | complex | bytes | Enum | torch.dtype | torch.device | torch.layout | range | slice
        ):
            return [type(value).__qualname__, repr(value)]
        if id(value) in self.paths:
            return ["part", type(value).__qualname__, self.paths[id(value)]]
        if isinstance(value, Tensor):
            return _shape("", value) if self.shapes_only else [_shape("", value), _content(value)]
        if isinstance(value, np.ndarray | np.generic):
            return ["array", str(value.dtype), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
        below = depth + 1
        if isinstance(value, Mapping):
            pairs = [[self.describe(key, below), self.describe(item, below)] for key, item in value.items()]
            return [type(value).__qualname__, pairs, self._rest(value, below)]
        if isinstance(value, list | tuple):
            return [type(value).__qualname__, [self.describe(item, below) for item in value]]
        if isinstance(value, set | frozenset):
            return ["set", sorted(json.dumps(self.describe(item, below)) for item in value)]
        return self._object(value, below)

    def _object(self, value: Any, depth: int) -> Any:
        """Describe a function, class or other object."""
        if isinstance(value, logging.Logger):
            return ["logger", value.name]
        if isinstance(value, weakref.ReferenceType):
            return ["reference", self.describe(value(), depth)]
        if isinstance(value, type):
            return ["class", self.kind(value)]
        if isinstance(value, types.BuiltinFunctionType | types.ModuleType | torch._ops.OpOverload | np.ufunc):
            return ["named", str(getattr(value, "__module__", "")), str(getattr(value, "__name__", value))]
        if isinstance(value, functools.partial):
            return ["partial", *(self.describe(part, depth) for part in (value.func, value.args, value.keywords))]
        if isinstance(value, types.MethodType):
            return ["method", *(self.describe(part, depth) for part in (value.__func__, value.__self__))]
        if isinstance(value, types.FunctionType):
            require_file(value)
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            parts = (cells, value.__defaults__, value.__kwdefaults__)
            return ["function", value.__qualname__, _code(value.__code__), *(self.describe(p, depth) for p in parts)]
        if type(value).__module__ == "builtins" or not hasattr(value, "__dict__"):
            raise UnidentifiableError(f"an attribute of type {type(value)}")
        return ["object", self.kind(type(value)), self._rest(value, depth)]

    def _rest(self, value: Any, depth: int) -> Any:
        """Describe the attributes of an object, those in slots included."""
        held = dict(getattr(value, "__dict__", {}))
        for base in type(value).__mro__:
            slots = vars(base).get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                    held[slot] = getattr(value, slot)
        return self.describe(held, depth) if held else []


def _shape(name: str, tensor: Tensor, first_name: str = "") -> list[Any]:
    """Describe a tensor without its content; a shared one has the name it was first met under."""
    return [name, first_name, list(tensor.shape), str(tensor.dtype), str(tensor.device), type(tensor).__qualname__]


def _content(tensor: Tensor) -> str:
    """Return the hash of a tensor's content."""
    if tensor.is_meta or tensor.layout is not torch.strided:
        raise UnidentifiableError("a tensor without readable content")
    return hashlib.sha256(bits(tensor).cpu().contiguous().numpy().tobytes()).hexdigest()


def _class(kind: type) -> list[Any]:
    """Describe a class and its bases by name, functions as they are now, and plain attributes.

    Raises:
        UnidentifiableError: if a function of it is not in a file, as in a notebook: what it calls is not known then.
    """
    described: list[Any] = []
    for base in kind.__mro__:
        name = f"{base.__module__}.{base.__qualname__}"
        functions = [(key, f) for key, f in vars(base).items() if isinstance(f, types.FunctionType)]
        if base.__module__.split(".")[0] in _KNOWN_CODE:  # but its forward may have been replaced
            described.append([name, [_code(f.__code__) for key, f in functions if key == "forward"]])
            continue
        for key, function in functions:
            if not key.startswith("__"):  # dataclasses write such functions themselves
                require_file(function)
        plain = [[key, repr(value)] for key, value in vars(base).items() if type(value) in _PLAIN and key != "__doc__"]
        described.append([name, [[key, _code(f.__code__)] for key, f in functions], plain])
    return described


def _is_code(value: Any) -> bool:
    """Tell whether an attribute of a class is code, which is described as such, or a place for values of instances."""
    descriptors = (types.MemberDescriptorType, types.GetSetDescriptorType, functools.cached_property)
    return isinstance(value, (types.FunctionType, classmethod, staticmethod, property, *descriptors))


def _code(code: types.CodeType) -> list[Any]:
    """Describe compiled code, functions inside it included."""
    constants = [_code(c) if isinstance(c, types.CodeType) else _constant(c) for c in code.co_consts]
    return [hashlib.sha256(code.co_code).hexdigest(), list(code.co_names), constants]


def _constant(value: Any) -> str:
    """Describe a constant of compiled code; the order of a set is not the same in every process."""
    return f"set {sorted(map(repr, value))}" if isinstance(value, frozenset) else repr(value)
