"""The state of a model: tensors, containers, arrays and random generators in the attributes of its modules."""

import random
import sys
import threading
import types
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.core.environment import same_state

#: Containers whose content can be saved and put back: parameters, buffers, submodules, hooks, caches.
CONTAINERS = (dict, list, set, deque)
#: How many containers or objects deep the attributes of a module are followed.
DEPTH = 8
#: A container below the first level with more entries than this counts as data, and its content is not followed.
ENTRIES = 10_000
#: Total bytes of arrays and of tensors below the first level beyond which further ones are ignored.
ROOM = 16 * 2**20

_PLAIN = frozenset((
    type(None), bool, int, float, complex, str, bytes, range, slice, types.FunctionType, types.ModuleType, type,
    torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format,
))  # fmt: skip
#: Packages whose objects are not the state of a model: the standard library's, torch's, our own.
_LIBRARIES = (frozenset(sys.stdlib_module_names) - {"argparse", "collections", "types"}) | {"torch", "normscope"}
#: Attributes whose entries are attributes of the module too.
_REGISTERED = ("_parameters", "_buffers", "_modules")
#: An object with one of these is shared by threads (a trainer, a logger), and its content is not followed.
_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event, threading.Thread)
#: How to read and set the state of a random generator, by its kind.
_GENERATORS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    torch.Generator: (lambda g: g.get_state(), lambda g, state: g.set_state(state)),
    np.random.Generator: (lambda g: g.bit_generator.state, lambda g, state: setattr(g.bit_generator, "state", state)),
    np.random.RandomState: (lambda g: g.get_state(legacy=False), lambda g, state: g.set_state(state)),
    random.Random: (lambda g: g.getstate(), lambda g, state: g.setstate(state)),
}


class ModelState:
    """The whole state of a model, each part once.

    Attributes of modules are followed through dicts, lists, tuples, deques and plain objects, in cycles as well. Sets
    are containers, but their content is not followed.

    Attributes:
        modules: by path; those that lie in a plain list or object, and are therefore not registered, come last.
        tensors: parameters, buffers and others, by name; without quantized and nested ones.
        containers: dicts, lists, sets, deques and the attributes of objects, each with the name of what holds it and
            the prefix of the names of its entries, ``None`` if they have none of their own.
        arrays: of numpy.
        generators: of random numbers.

    >>> model = nn.Linear(1, 1)
    >>> model.cache = {"a": [torch.zeros(1), torch.Generator()]}
    >>> state = ModelState(model)
    >>> [name for name, _ in state.tensors], [name for name, _ in state.generators]
    (['weight', 'bias', 'cache.a.0'], ['cache.a.1'])
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules: list[tuple[str, nn.Module]] = []
        self.tensors: list[tuple[str, Tensor]] = []
        self.containers: list[tuple[str, str | None, Any]] = []
        self.arrays: list[tuple[str, np.ndarray]] = []
        self.generators: list[tuple[str, Any]] = []
        self._seen: set[int] = set()
        self._room = ROOM
        self._queue: deque[tuple[str, Any, int]] = deque()  # what lies nearer to the modules comes first
        self._add_modules("", model)
        while self._queue:
            self._look_into(*self._queue.popleft())

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
                self._add(start + key, tensor, 0)
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
                    self._add(start + inner, item, 0)
            else:
                self._add(start + key, value, 0)

    def _add(self, name: str, value: Any, depth: int) -> None:
        """Take one thing, with ``depth`` holders between it and the module."""
        if type(value) in _PLAIN or id(value) in self._seen:
            return
        if isinstance(value, nn.Module):
            self._add_modules(name, value)
            return
        self._seen.add(id(value))
        if isinstance(value, Tensor):
            usable = not (value.is_quantized or value.is_nested)  # torch cannot compare them, nor copy all of them
            if usable and (depth <= 1 or self._fits(value.numel() * value.element_size())):
                self.tensors.append((name, value))
        elif isinstance(value, np.ndarray):
            if not value.dtype.hasobject and value.flags.writeable and self._fits(value.nbytes):
                self.arrays.append((name, value))
        elif isinstance(value, tuple(_GENERATORS)) and not isinstance(value, random.SystemRandom):
            self.generators.append((name, value))
        elif depth < DEPTH:
            self._queue.append((name, value, depth))

    def _fits(self, size: int) -> bool:
        """Return whether something is small enough to be copied in addition to the rest, and if so, count it."""
        if size > self._room:
            return False
        self._room -= size
        return True

    def _look_into(self, name: str, value: Any, depth: int) -> None:
        """Take a container or object and what lies in it."""
        if isinstance(value, CONTAINERS):
            self.containers.append((name, None, value))
        if isinstance(value, dict):
            inside = list(value.items())
        elif isinstance(value, tuple | list | deque):
            inside = list(enumerate(value))
        else:
            inside = self._attributes(name, value)
        if depth and len(inside) > ENTRIES:
            return
        for key, item in inside:
            self._add(f"{name}.{key if isinstance(key, str | int) else type(key).__name__}", item, depth + 1)

    def _attributes(self, name: str, value: Any) -> list[tuple[Any, Any]]:
        """Add the attributes of an object of a user's class, which may keep tables and counts too, and return them."""
        attributes = getattr(value, "__dict__", None)
        library = str(type(value).__module__).partition(".")[0] in _LIBRARIES
        if library or isinstance(value, type) or not isinstance(attributes, dict):
            return []
        self.containers.append((name, f"{name}.", attributes))
        inside = list(attributes.items())
        return [] if any(isinstance(item, _LOCKS) for _, item in inside) else inside


class GeneratorState:
    """The state of a random generator of torch, numpy or Python.

    >>> generator = random.Random(0)
    >>> state = GeneratorState(generator)
    >>> first, moved = generator.random(), not state.same()
    >>> state.restore()
    >>> moved, generator.random() == first
    (True, True)
    """

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self._read, self._write = next(pair for kind, pair in _GENERATORS.items() if isinstance(generator, kind))
        self.state = self._read(generator)

    def same(self) -> bool:
        """Return whether the generator is in the same state."""
        return same_state(self._read(self.generator), self.state)

    def restore(self) -> None:
        """Set it back."""
        self._write(self.generator, self.state)
