"""A guard that restores everything that running a model changes: nothing a user passes in is changed."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _module_globals
from torch.nn.parameter import is_lazy

from normscope.core.environment import flags, restore_flags, restore_rng, rng_state, same_rng
from normscope.core.errors import StateChangedError, listed
from normscope.core.lazy import same_process
from normscope.graph.model_state import GeneratorState, ModelState

#: Parameters up to this many bytes in all are copied, so that even a forward that overwrites them is undone.
COPY_LIMIT = 128 * 2**20
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@contextlib.contextmanager
def ordinary() -> Iterator[None]:
    """Compute as if the caller had set nothing: gradients are recorded, and new tensors have values.

    Suspends ``torch.no_grad()``, ``torch.inference_mode()`` and ``torch.device("meta")`` of the caller for the block.

    >>> with torch.inference_mode(), torch.device("meta"), ordinary():
    ...     print(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.zeros(1).device)
    True False cpu
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if torch.get_default_device().type == "meta":
            stack.enter_context(torch.device("cpu"))
        yield


class StateGuard:
    """Context manager: everything that belongs to the user is bit-identical after the block, however the block ends.

    Kept: parameters, buffers and tensor attributes, ``.grad`` and ``requires_grad``, ``training`` and every other
    attribute of every submodule, what lies in its containers and plain objects (see
    :class:`normscope.graph.model_state.ModelState` for how deep), hooks, the random states of Python, numpy and torch,
    generators in the model, torch's global settings, environment variables and the warning filters.
    Inside the block every ``.grad`` is ``None``: a backward pass there fills a fresh one, never the user's; and the
    caller's settings for autograd and for new tensors are suspended, see :func:`ordinary`.

    Attributes:
        moved: after the block, names of the attributes, buffers and other tensors of the model that it had changed.
        drew: after the block, whether it had moved a random generator.

    Raises:
        StateChangedError: on entry if the model has uninitialized (lazy) parameters, which running it would replace;
            on exit if a parameter was overwritten in place. Models up to :data:`COPY_LIMIT` are restored even then.

    >>> norm = nn.BatchNorm1d(3)
    >>> with untouched(norm):
    ...     _ = norm.train()(torch.ones(4, 3))
    >>> norm.running_mean.tolist(), int(norm.num_batches_tracked)
    ([0.0, 0.0, 0.0], 0)
    """

    def __init__(self, model: nn.Module, *tensors: Tensor, parameters: bool = True) -> None:
        self.model, self.tensors, self.parameters = model, tensors, parameters
        self.moved: tuple[str, ...] = ()
        self.drew = False

    def __enter__(self) -> StateGuard:
        held = ModelState(self.model)
        lazy = [name for name, tensor in held.tensors if is_lazy(tensor)]
        if lazy:
            raise StateChangedError(
                f"Running the model would initialize its lazy parameters ({listed(lazy)}). Run it once on a "
                "batch of your own first."
            )
        with contextlib.ExitStack() as stack:
            stack.enter_context(same_process())
            stack.enter_context(ordinary())
            self._save(held)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._stack:
            changed = self._restore()
        if not changed:
            return
        lost = [state.name for state in changed if state.copy is None]
        outcome = f"{listed(lost)} could not be restored; load the weights again" if lost else "they were restored"
        message = (
            f"The model overwrote its parameters {listed([state.name for state in changed])} in place "
            f"when it was run; {outcome}. Move the update out of forward(), or make it a "
            "parametrization (torch.nn.utils.parametrize)."
        )
        if error is None:
            raise StateChangedError(message)
        error.add_note(message)

    def _save(self, held: ModelState) -> None:
        """Remember everything."""
        self._rng = rng_state()
        self._flags = flags()
        self._modules = [(module, type(module), module.training) for _, module in held.modules]
        self._containers = [(name, prefix, _ContainerState(value)) for name, prefix, value in held.containers]
        self._arrays = [(name, array, array.copy()) for name, array in held.arrays]
        self._generators = [GeneratorState(generator) for _, generator in held.generators]
        shared = [hooks for name, hooks in vars(_module_globals).items() if name.startswith("_global_")]
        self._hooks = [_ContainerState(hooks) for hooks in shared if isinstance(hooks, dict)]
        named = held.tensors
        size = sum(t.numel() * t.element_size() for _, t in named if isinstance(t, nn.Parameter))
        self._named = [
            _TensorState(name, tensor, copy=size <= COPY_LIMIT or not isinstance(tensor, nn.Parameter))
            for name, tensor in named
            if self.parameters or not isinstance(tensor, nn.Parameter)
        ]
        self._named += [_TensorState(f"input {i}", tensor, copy=True) for i, tensor in enumerate(self.tensors)]

    def _restore(self) -> list[_TensorState]:
        """Put everything back, and return the parameters whose content had changed."""
        for hooks in self._hooks:
            hooks.restore()
        for module, kind, training in self._modules:
            if type(module) is not kind:
                module.__class__ = kind
            module.training = training  # not an attribute of a scripted module
        names = []
        for name, prefix, container in self._containers:
            names += [name if prefix is None or not key else prefix + key for key in container.restore()]
        for name, array, copy in self._arrays:
            if array.shape == copy.shape and array.tobytes() != copy.tobytes():
                array[...] = copy
                names.append(name)
        written = [state for state in self._named if state.restore()]
        changed = [state for state in written if isinstance(state.tensor, nn.Parameter)]
        inputs = {id(tensor) for tensor in self.tensors}
        names += [state.name for state in written if id(state.tensor) not in inputs]
        self.moved = tuple(dict.fromkeys(names))
        drawn = [generator for generator in self._generators if not generator.same()]
        for generator in drawn:
            generator.restore()
        self.drew = bool(drawn) or not same_rng(self._rng)
        restore_flags(self._flags)
        restore_rng(self._rng)
        return changed


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of inputs: a model may overwrite them."""
    return [tensor.detach().clone() for tensor in tensors]


#: A context in which a model may be run; afterwards the model, further given tensors and the process are as before.
untouched = StateGuard


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors agree in shape, dtype and every bit; a NaN equals itself.

    >>> nan, zero = torch.tensor([float("nan")]), torch.zeros(1)
    >>> same_bits(nan, nan.clone()), same_bits(zero, -zero)
    (True, False)
    """
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout or a.device != b.device:
        return False
    if a.layout is not torch.strided:
        return torch.equal(a.detach().to_dense(), b.detach().to_dense())
    return a.is_meta or torch.equal(bits(a), bits(b))


def bits(tensor: Tensor) -> Tensor:
    """Return a strided tensor's memory as integers, without a copy where its width is that of an integer."""
    raw = tensor.detach()
    if raw.is_complex():
        raw = torch.view_as_real(raw.resolve_conj())
    return raw.resolve_neg().view(_INTEGERS[raw.element_size()])


def checksum(tensor: Tensor) -> tuple[int, ...]:
    """Return sums of a tensor's bits, and its last bits, that change when an entry changes or entries swap places.

    >>> checksum(torch.tensor([1.0, 2.0])) == checksum(torch.tensor([2.0, 1.0]))
    False
    """
    if tensor.layout is not torch.strided or tensor.is_meta:
        return ()
    flat = bits(tensor).reshape(-1)
    if flat.element_size() * flat.numel() % 8 == 0 == flat.element_size() * flat.storage_offset() % 8:
        flat = flat.view(torch.int64)  # words of eight bytes are summed many times faster
    width = 4 * 61  # a prime, so that no usual stride preserves the columns, times four, which is summed faster
    whole = flat.numel() // width * width
    columns = flat[:whole].view(-1, width).sum(0, dtype=torch.int64)
    return (*columns.tolist(), *flat[whole:].tolist())


class _TensorState:
    """One tensor as it was: its memory, a copy or a checksum of the content, gradient, flags and hooks."""

    def __init__(self, name: str, tensor: Tensor, *, copy: bool) -> None:
        self.name = name
        self.tensor = tensor
        self.alias = tensor.detach()
        self.version = _version(tensor)
        self.copy = tensor.detach().clone() if copy else None
        self.checksum = None if copy else checksum(tensor)
        self.requires_grad = tensor.requires_grad
        self.hooks = [_ContainerState(h) for h in (tensor._backward_hooks,) if h is not None]
        self.leaf = tensor.is_leaf
        self.grad = tensor.grad if self.leaf else None
        if self.grad is not None:
            tensor.grad = None

    def restore(self) -> bool:
        """Put back everything possible, and return whether the content had changed in place."""
        tensor = self.tensor
        if not _same_memory(tensor, self.alias):
            tensor.data = self.alias
        changed = self._changed()
        if changed and self.copy is not None:
            _write(tensor, self.copy)
        if self.leaf and not tensor.is_leaf and not tensor._is_view():
            tensor.detach_()  # something with a gradient was written to it
        if self.leaf:
            if tensor.is_leaf and tensor.requires_grad != self.requires_grad:
                tensor.requires_grad_(self.requires_grad)
            if tensor.is_leaf and tensor.grad is not self.grad:
                tensor.grad = self.grad
        if self.hooks:
            self.hooks[0].restore()
        elif tensor._backward_hooks:
            tensor._backward_hooks.clear()
        return changed

    def _changed(self) -> bool:
        """Return whether the content differs; a write through ``.data`` does not move the version counter."""
        if self.copy is not None:
            return not same_bits(self.tensor, self.copy)
        return self.version != _version(self.tensor) or self.checksum != checksum(self.tensor)


def _version(tensor: Tensor) -> int | None:
    """Return the counter of writes; a tensor made in inference mode has none."""
    return None if tensor.is_inference() else tensor._version


def _write(tensor: Tensor, content: Tensor) -> None:
    """Copy content into a tensor: through ``.data``, so that the version counter autograd relies on does not move."""
    target = tensor.data
    if target.is_inference():  # may be written only in inference mode
        with torch.inference_mode():
            target.copy_(content)
        return
    target.copy_(content)


def address(tensor: Tensor) -> int:
    """Return what identifies a tensor's memory."""
    return tensor.untyped_storage()._cdata


def place(tensor: Tensor) -> tuple[Any, ...]:
    """Return which memory a strided tensor lies in, and where its entries lie there."""
    return address(tensor), tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype


def _same_memory(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same view of the same memory."""
    if a.layout is not torch.strided or b.layout is not torch.strided:
        return a.layout == b.layout
    return place(a) == place(b)


class _ContainerState:
    """The content of a dict, list, set or deque, by identity."""

    __slots__ = ("by_key", "container", "keys", "values")
    keys: Sequence[Any]
    values: Sequence[Any]

    def __init__(self, container: Any) -> None:
        self.container = container
        self.by_key = isinstance(container, dict)
        self.keys, self.values = self._read() if container else ((), ())  # most are empty: hooks of each kind

    def _read(self) -> tuple[Sequence[Any], Sequence[Any]]:
        if not self.by_key:
            return (), tuple(self.container)
        return tuple(self.container), tuple(self.container.values())

    def restore(self) -> list[str]:
        """Put the content back if any of it is another object, or stands elsewhere; return the keys that differed."""
        if not self.values and not len(self.container):
            return []
        keys, values = self._read()
        if _identical(values, self.values) and _identical(keys, self.keys):
            return []
        self.container.clear()
        if not self.by_key:
            (self.container.update if isinstance(self.container, set) else self.container.extend)(self.values)
            return [""]
        self.container.update(zip(self.keys, self.values, strict=True))
        now, then = (
            {(str(k), id(v)) for k, v in zip(*pair, strict=True)} for pair in ((keys, values), (self.keys, self.values))
        )
        return sorted({key for key, _ in now ^ then}) or [""]


def _identical(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return whether two sequences have the same objects, in the same places."""
    return len(a) == len(b) and all(map(operator.is_, a, b))
