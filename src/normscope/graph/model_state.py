"""What a model holds: tensors, containers, arrays and generators in its attributes, at any depth that is sensible."""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.graph.generators import has_state

#: Containers whose content can be saved and put back: parameters, buffers, submodules, hooks, caches.
CONTAINERS = (dict, list, set, deque)
#: Holders between a module and what is looked at.
DEPTH = 8
#: Entries of containers below the first level that are looked into, in all: where there are more, they are data.
ENTRIES = 10_000
#: Entries of a tensor or all containers below the first level, or of an array, above which it is left alone.
LARGE = 1_000_000
#: Bytes of tensors below the first level and of arrays, in all, above which further ones are left alone.
ROOM = 16 * 2**20

_PLAIN = frozenset((
    type(None), bool, int, float, complex, str, bytes, range, slice, types.FunctionType, types.ModuleType, type,
    torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format,
))  # fmt: skip
#: Modules of the standard library with plain objects that people keep state in.
_NAMESPACES = {"argparse", "collections", "types"}
#: Packages whose objects are no state of a model: the standard library's, torch's, our own.
_NO_HELPERS = (frozenset(sys.stdlib_module_names) - _NAMESPACES) | {"torch", "normscope"}
#: Packages whose objects hold the whole of a training, or are written to by threads beside it.
_TRAINERS = frozenset((
    "accelerate", "aim", "clearml", "comet_ml", "dask", "deepspeed", "lightning", "lightning_fabric", "mlflow",
    "neptune", "pytorch_lightning", "ray", "tensorboard", "tensorboardX", "wandb",
))  # fmt: skip
#: Attributes whose entries are attributes of the module too.
_REGISTERED = ("_parameters", "_buffers", "_modules")
_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event, threading.Thread)
_CALLABLES = (types.MethodType, types.BuiltinMethodType, functools.partial)


class Held:
    """Everything a model holds, each thing once, what lies nearer to its modules first.

    Attributes of modules are followed through dicts, lists, tuples, deques, plain objects, bound methods and partial
    functions, in cycles as well. Sets are containers, but what lies in them is not looked into.

    Args:
        model: the model; nothing of it is changed.

    Attributes:
        modules: by path; those that lie in a plain list or object, and are therefore not registered, come last.
        tensors: parameters, buffers and others, by name; without quantized and nested ones.
        containers: dicts, lists, sets, deques and the attributes of objects, each with the name of what holds it and
            the prefix of the names of its entries, ``None`` if they have none of their own.
        arrays: of numpy.
        generators: of random numbers; see :data:`normscope.graph.generators.KINDS`.

    >>> model = nn.Linear(1, 1)
    >>> model.cache = {"a": [torch.zeros(1), torch.Generator()]}
    >>> held = Held(model)
    >>> [name for name, _ in held.tensors], [name for name, _ in held.generators]
    (['weight', 'bias', 'cache.a.0'], ['cache.a.1'])
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules: list[tuple[str, nn.Module]] = []
        self.tensors: list[tuple[str, Tensor]] = []
        self.containers: list[tuple[str, str | None, Any]] = []
        self.arrays: list[tuple[str, np.ndarray]] = []
        self.generators: list[tuple[str, Any]] = []
        self._seen: set[int] = set()
        self._later: deque[tuple[str, Any, int]] = deque()
        self._room, self._entries, self._length = ROOM, ENTRIES, LARGE
        self._add_modules("", model)
        while self._later:
            self._look_into(*self._later.popleft())

    def _add_modules(self, start: str, root: nn.Module) -> None:
        """Take a module with those below it."""
        new = [(path, module) for path, module in root.named_modules() if id(module) not in self._seen]
        self._seen.update(id(module) for _, module in new)
        for path, module in new:
            name = ".".join(filter(None, (start, path)))
            self.modules.append((name, module))
            self._add_attributes(name, module)

    def _add_attributes(self, path: str, module: nn.Module) -> None:
        """Take the attributes of a module, and what lies in its containers."""
        start = f"{path}." if path else ""
        if isinstance(module, torch.jit.ScriptModule):  # its state is not in __dict__
            for key, tensor in chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False)):
                self._meet(start + key, tensor, 0)
            return
        self.containers.append((path, start, vars(module)))
        for key, value in list(vars(module).items()):
            if type(value) in _PLAIN:
                continue
            if isinstance(value, CONTAINERS) and not len(value):  # most are empty: hooks of each kind
                self.containers.append((start + key, start if key in _REGISTERED else None, value))
            elif key in _REGISTERED:
                self.containers.append((start + key, start, value))
                for inner, item in list(value.items()) if key != "_modules" else ():
                    self._meet(start + inner, item, 0)
            else:
                self._meet(start + key, value, 0)

    def _meet(self, name: str, value: Any, depth: int) -> None:
        """Take one thing, with ``depth`` holders between it and the module."""
        if type(value) in _PLAIN or id(value) in self._seen:
            return
        if isinstance(value, Tensor):
            if value.is_quantized or value.is_nested:  # torch cannot compare them, nor copy all of them
                return
            if depth <= 1 or self._fits(value.numel(), value.element_size()):
                self._seen.add(id(value))
                self.tensors.append((name, value))
        elif isinstance(value, nn.Module):
            self._add_modules(name, value)
        elif isinstance(value, np.ndarray):
            if not value.dtype.hasobject and value.flags.writeable and self._fits(value.size, value.itemsize):
                self._seen.add(id(value))
                self.arrays.append((name, value))
        elif has_state(value):
            self._seen.add(id(value))
            self.generators.append((name, value))
        elif depth == 0:
            self._look_into(name, value, depth)
        elif depth < DEPTH:
            self._later.append((name, value, depth))

    def _fits(self, entries: int, width: int) -> bool:
        """Tell whether something is small enough to be copied beside the rest, and if so, count it."""
        if entries > LARGE or entries * width > self._room:
            return False
        self._room -= entries * width
        return True

    def _look_into(self, name: str, value: Any, depth: int) -> None:
        """Take a holder and what lies in it."""
        if id(value) in self._seen:
            return
        length = len(value) if isinstance(value, (*CONTAINERS, tuple)) else 1
        if depth and length > self._length:
            return
        inside = self._inside(name, value, depth)
        if inside is None:
            return
        self._seen.add(id(value))
        long = length > (self._entries if depth else ENTRIES)
        if depth:
            self._length -= length
            self._entries -= 0 if long else 1 + length
        for inner, item in inside if not depth or not long else ():
            if not long or isinstance(item, Tensor):
                key = inner if isinstance(inner, str | int) else type(inner).__name__
                self._meet(f"{name}.{key}", item, depth + 1)

    def _inside(self, name: str, value: Any, depth: int) -> Iterable[tuple[Any, Any]] | None:
        """Take a holder, and return what lies in it by key; ``None`` if it is no holder."""
        if isinstance(value, CONTAINERS):
            self.containers.append((name, None, value))
            if isinstance(value, dict):
                return list(value.items())
            return () if isinstance(value, set) else enumerate(list(value))
        if isinstance(value, tuple):
            return enumerate(value)
        if isinstance(value, _CALLABLES):
            return _called(value)
        # A plain object of somebody's class keeps tables and counts too. A trainer or logger holds a whole training,
        # and what has a lock is shared by threads: their attributes are put back, and no more.
        root = str(type(value).__module__).partition(".")[0]
        held_in = [] if isinstance(value, type) or root in _NO_HELPERS else _attributes(value)
        entries = [item for container in held_in for item in list(container.items())]
        followed = root not in _TRAINERS and not any(isinstance(item, _LOCKS) for _, item in entries)
        if not held_in or (depth and not followed):
            return None
        self.containers += [(name, f"{name}.", container) for container in held_in]
        return [(key, item) for key, item in entries if followed or isinstance(item, Tensor)]


class Slots:
    """The attributes that an object keeps in slots, read and written as a dictionary is.

    Args:
        owner: the object.

    Attributes:
        names: of all its slots, set or not.

    >>> class Meter:
    ...     __slots__ = ("count",)
    >>> meter = Meter()
    >>> meter.count = 3
    >>> Slots(meter).items()
    [('count', 3)]
    """

    def __init__(self, owner: object) -> None:
        self.owner = owner
        kind: Any = type(owner)
        self.names: tuple[str, ...] = _slot_names(kind)

    def __len__(self) -> int:
        return len(self.items())

    def items(self) -> list[tuple[str, Any]]:
        """Return names and values of those that are set."""
        return [(name, getattr(self.owner, name)) for name in self.names if hasattr(self.owner, name)]

    def clear(self) -> None:
        """Unset all."""
        for name, _ in self.items():
            object.__delattr__(self.owner, name)

    def update(self, items: Iterable[tuple[str, Any]]) -> None:
        """Set some, on an object that refuses as well."""
        for name, value in items:
            object.__setattr__(self.owner, name, value)


@functools.lru_cache(maxsize=1024)
def _slot_names(kind: Any) -> tuple[str, ...]:
    """Return the names of the slots of a class, private ones as they are stored."""
    kinds = [vars(base) for base in kind.__mro__ if "__slots__" in vars(base)]
    return tuple(k for base in kinds for k, v in base.items() if isinstance(v, types.MemberDescriptorType))


def _called(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a bound method or partial function holds."""
    if isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    else:
        yield "self", value.__self__


def _attributes(value: object) -> list[Any]:
    """Return what an object keeps its attributes in: a dictionary, slots, both or neither."""
    inside: Any = getattr(value, "__dict__", None)
    found: list[Any] = [inside] if isinstance(inside, dict) else []
    slots = Slots(value)
    return [*found, slots] if slots.names else found
