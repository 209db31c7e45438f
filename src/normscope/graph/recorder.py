"""Record operations on real tensors in functional form: no node of the tape changes the value of another.

A tensor is a handle on a memory. The memory knows the node of its base, the tensor it was first seen as; the handle
knows the chain of views that leads from the base to it. Writing to a tensor computes its new value, writes that back
through the chain into the base, and outdates every other handle, which is derived again from the base when next read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

from normscope.core.errors import CaptureError
from normscope.graph.alias import Geometry, place, write_back
from normscope.graph.functional import (
    functional_of,
    moves_shape,
    normalizer_in_training,
    twin_arguments,
    written_arguments,
)
from normscope.graph.ir import Ref
from normscope.graph.nested import flat, paths, substitute, tensors
from normscope.graph.tape import UNKNOWN_ALIAS, Tape

#: Operations whose result is true or false, whatever they are written to.
_TRUTHS = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not")


@dataclass(eq=False)
class _Memory:
    """A piece of memory: its base's geometry and current node, and how often it was written."""

    storage: StorageWeakRef
    geometry: Geometry
    node: str
    chains: dict[Geometry, tuple[_View, ...]]
    version: int = 0
    outdated_by: str | None = None


@dataclass(frozen=True)
class _View:
    """One step from a tensor to a view of it: an operation on ``parent`` and the path to its output."""

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    path: tuple[int, ...]
    parent: str
    outer: Geometry
    inner: Geometry


@dataclass(eq=False)
class _Handle:
    """A tensor: its memory, the views that lead to it, and its node as of some version of the memory."""

    memory: _Memory
    chain: tuple[_View, ...]
    geometry: Geometry
    node: str
    version: int


class Recorder:
    """Executes operations and writes them to a tape.

    Args:
        model: whose parameters and buffers are sources under their names.
        inputs: the tensors that are the inputs of the graph.

    Attributes:
        left: the module in which a number that moves with the input first reached Python, or ``None`` if none did.
        branched: whether Python saw integers of the input, which are held fixed.
    """

    def __init__(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.tape = Tape()
        self.left: str | None = None
        self.branched = False
        self._handles: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._memories: dict[int, list[_Memory]] = {}
        self._state: dict[int, tuple[str, str, Tensor]] = {}
        self._state |= {id(t): ("parameter", name, t) for name, t in model.named_parameters()}
        self._state |= {id(t): ("buffer", name, t) for name, t in model.named_buffers()}
        for value in inputs:
            name = self.tape.input(value)
            if isinstance(value, Tensor):
                self._root(value, name)

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Execute one operation, record it, and return what it returned."""
        if not isinstance(func, torch._ops.OpOverload):
            raise CaptureError(f"{func} runs a function of its own and cannot be recorded")
        if func in (torch.ops.aten.lift_fresh.default, torch.ops.aten.detach_.default):
            return func(*args, **kwargs)  # neither moves a value
        refs = (self.refs(args), self.refs(kwargs))
        written = written_arguments(func, args, kwargs)
        if written:
            return self._mutate(func, args, kwargs, refs, written)
        given = list(tensors((args, kwargs)))
        moved = normalizer_in_training(func, args, kwargs)
        # In training mode the running statistics are written but not read: without them a replay writes nothing.
        hidden = {self.read(tensor) for tensor in moved}
        out = func(*args, **kwargs)
        if moves_shape(func, given):
            self._leave(flat(refs))  # a size is a number for Python
        op = str(func)
        if op == "aten.view.default" and self._handle(given[0]).memory.version:
            op = "aten.reshape.default"  # in the functional form the strides may be others
        if op == "aten.as_strided.default":
            self._adopt(out)  # says where entries lie in memory, which the functional form does not have
        else:
            self._bind(out, op, substitute(refs, lambda ref: None if ref.name in hidden else ref), given)
        for tensor in moved:
            self._write(tensor, self._unknown(tensor, refs))
        return out

    def leaves(self, tensor: Tensor) -> None:
        """Note that the numbers in a tensor reach Python, or are changed there."""
        self._leave((Ref(self.read(tensor)),))

    def _leave(self, refs: Any) -> None:
        """Note that what Python sees moves with the input, if it does."""
        if self.left is None and self.tape.moves(refs):
            self.left = self.tape.owner[0]
        self.branched = self.branched or self.tape.depends(refs)

    def refs(self, tree: Any) -> Any:
        """Return a nested argument with every tensor replaced by a reference to its node."""
        if isinstance(tree, Tensor):
            return Ref(self.read(tree))
        if isinstance(tree, list | tuple):
            return tuple(self.refs(item) for item in tree)
        if isinstance(tree, dict):
            return {key: self.refs(value) for key, value in tree.items()}
        return tree

    def read(self, tensor: Tensor) -> str:
        """Return the node of a tensor's current value."""
        handle = self._handle(tensor)
        memory = handle.memory
        if memory.outdated_by is not None:  # another piece of the same memory was written: what is here now is seen,
            node = self._unknown(tensor, (Ref(memory.outdated_by), Ref(memory.node)))  # where it came from is not
            handle = self._root(tensor, node)
        elif handle.version != memory.version:
            handle.node = self._replay(memory, handle.chain)
            handle.version = memory.version
        return handle.node

    def _handle(self, tensor: Tensor) -> _Handle:
        """Return the handle of a tensor, made now if it was not seen before or became a view of something else."""
        handle = self._handles.get(tensor)
        if handle is None or handle.memory.storage.cdata != _address(tensor) or handle.geometry != Geometry.of(tensor):
            return self._adopt(tensor)
        return handle

    def _adopt(self, tensor: Tensor) -> _Handle:
        """Make a handle of a tensor that no recorded operation returned: state, a constant, or ``x.data``."""
        if id(tensor) in self._state:
            kind, target, _ = self._state[id(tensor)]
            if target not in self.tape.tensors:
                return self._root(tensor, self.tape.source(kind, target, tensor))
        geometry = Geometry.of(tensor)
        memories = self._memories.get(_address(tensor), [])
        for memory in (m for m in memories if m.outdated_by is None):
            chain = memory.chains.get(geometry)
            if chain is None:
                index = place(geometry, memory.geometry)
                if index is None:
                    continue
                take = ("aten.take.default", (Ref(memory.node), Ref(self.tape.constant(index.to(tensor.device)))), ())
                chain = (_View(*take, (), memory.node, memory.geometry, geometry),)
            handle = _Handle(memory, chain, geometry, "", memory.version - 1)
            self._handles[tensor] = handle
            return handle
        if memories:
            return self._root(tensor, self._unknown(tensor, tuple(Ref(m.node) for m in memories)))
        return self._root(tensor, self.tape.constant(tensor))

    def _root(self, tensor: Tensor, node: str) -> _Handle:
        """Make a tensor the base of its memory, with this node as its value."""
        geometry = Geometry.of(tensor)
        memory = _Memory(StorageWeakRef(tensor.untyped_storage()), geometry, node, {geometry: ()})
        pieces = self._memories.setdefault(_address(tensor), [])
        pieces[:] = [m for m in pieces if m.outdated_by is None] + [memory]
        handle = _Handle(memory, (), geometry, node, 0)
        self._handles[tensor] = handle
        return handle

    def _unknown(self, tensor: Tensor, sources: Any) -> str:
        """Return a node that holds the value a tensor has now and says that its origin was not followed."""
        value = self.tape.constant(tensor)
        return self.tape.emit(UNKNOWN_ALIAS, (Ref(value), *flat(sources)), like=tensor)

    def _replay(self, memory: _Memory, chain: tuple[_View, ...]) -> str:
        """Derive a view from the memory's base as it is now."""
        node = memory.node
        for view in chain:
            op = "aten.reshape.default" if view.op == "aten.view.default" else view.op  # strides may differ by now
            parent = view.parent

            def moved(ref: Ref, parent: str = parent, node: str = node) -> Ref:
                return Ref(node) if ref.name == parent else ref

            args, kwargs = substitute(view.args, moved), substitute(dict(view.kwargs), moved)
            like = torch.empty(view.inner.shape, dtype=view.inner.dtype, device="meta")
            node = self.tape.emit(op, args, kwargs, like=like if not view.path else None)
            for depth, index in enumerate(view.path):
                last = depth == len(view.path) - 1
                node = self.tape.emit("getitem", (Ref(node), index), like=like if last else None)
        return node

    def _write(self, tensor: Tensor, node: str) -> None:
        """Make a node the value of a tensor, and of all that shares its memory."""
        handle = self._handle(tensor)
        memory, value = handle.memory, node
        for depth in range(len(handle.chain) - 1, -1, -1):
            view = handle.chain[depth]
            value = self._write_back(view, self._replay(memory, handle.chain[:depth]), value, tensor)
        memory.node = value
        memory.version += 1
        handle.node, handle.version = node, memory.version
        self._outdate(tensor, node, keep=memory)

    def _outdate(self, tensor: Tensor, node: str, keep: _Memory | None = None) -> None:
        """Note that what else lies in a tensor's memory was overwritten by a node."""
        for memory in self._memories.get(_address(tensor), []):
            if memory is not keep:
                memory.outdated_by = node

    def _write_back(self, view: _View, parent: str, value: str, tensor: Tensor) -> str:
        """Return the node of a view's parent after ``value`` was written through the view."""
        outer = view.outer
        like = torch.empty(outer.shape, dtype=outer.dtype, device="meta")
        found = write_back(view.inner, outer)
        if found is None:
            now = torch.empty(0, dtype=outer.dtype, device=tensor.device)
            now.set_(tensor.untyped_storage(), outer.offset, outer.shape, outer.stride)
            return self._unknown(now, (Ref(parent), Ref(value)))
        if found.kind == "none":
            return parent
        if found.kind == "reshape":
            same = view.inner.shape == outer.shape
            return value if same else self.tape.emit("aten.reshape.default", (Ref(value), outer.shape), like=like)
        if found.kind == "permute":
            return self.tape.emit("aten.permute.default", (Ref(value), found.numbers), like=like)
        if found.index is not None:
            args = (Ref(parent), Ref(self.tape.constant(found.index.to(tensor.device))), Ref(value))
            return self.tape.emit("aten.put.default", args, like=like)
        return self.tape.emit(
            f"aten.{found.kind}_scatter.default", (Ref(parent), Ref(value), *found.numbers), like=like
        )

    def _bind(self, out: Any, op: str, refs: tuple[Any, Any], inputs: list[Tensor]) -> None:
        """Add an operation to the tape and tie every tensor it returned to its node."""
        results = list(paths(out))
        if not results:  # a number for Python: what it does there, the graph does not see
            self._leave(flat(refs))
            return
        node = self.tape.emit(op, *refs, like=out)
        for path, tensor in results:
            name = node
            for depth, index in enumerate(path):
                name = self.tape.emit("getitem", (Ref(name), index), like=tensor if depth == len(path) - 1 else None)
            self._tie(tensor, name, partial(_View, op, refs[0], tuple(refs[1].items()), path), inputs)

    def _tie(self, tensor: Tensor, node: str, step: Callable[..., _View], inputs: list[Tensor]) -> None:
        """Tie one returned tensor to its node: it is an input itself, a view of one, or has memory of its own."""
        sharing = [t for t in inputs if _address(t) == _address(tensor)]
        for source in sharing:
            if source is tensor:
                handle = self._handle(source)
                handle.node, handle.version = node, handle.memory.version
                return
        if not sharing:
            self._root(tensor, node)
            return
        outer = self._handle(sharing[0])
        geometry = Geometry.of(tensor)
        chain = (*outer.chain, step(outer.node, outer.geometry, geometry))
        outer.memory.chains.setdefault(geometry, chain)
        self._handles[tensor] = _Handle(outer.memory, chain, geometry, node, outer.memory.version)

    def _mutate(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], refs: tuple[Any, Any], written: list[Tensor]
    ) -> Any:
        """Execute an operation that writes to its arguments, and record its functional form."""
        twin = functional_of(func)
        if torch.Tag.inplace_view in func.tags:
            return self._reshape_in_place(func, twin, args, kwargs, refs, written[0])
        before = [Geometry.of(tensor) for tensor in written]
        nodes: list[str] = []
        if twin is None:
            clones = {self.read(t): self.tape.emit("aten.clone.default", (Ref(self.read(t)),), like=t) for t in written}
        out = func(*args, **kwargs)
        if twin is None:
            refs = substitute(refs, lambda ref: Ref(clones.get(ref.name, ref.name)))
            nodes = self._replay_in_place(func, refs, out, written, clones)
        elif func.overloadpacket.__name__ in ("copy_", "fill_", "zero_"):
            nodes = [self._overwrite(func, refs[0], written[0])]
        else:
            given = twin_arguments(func, twin, *refs)
            node = self.tape.emit(str(twin), *given, like=written[0] if len(written) == 1 else None)
            many = len(written) > 1
            nodes = [self.tape.emit("getitem", (Ref(node), i), like=t) if many else node for i, t in enumerate(written)]
            kept = written[0].dtype
            others = any(torch.promote_types(kept, t.dtype) != kept for t in tensors((args, kwargs)))
            if others or twin.overloadpacket.__name__ in _TRUTHS:  # the original keeps the dtype of what it writes to
                pairs = zip(nodes, written, strict=True)
                nodes = [self.tape.emit("aten.to.dtype", (Ref(node), t.dtype), like=t) for node, t in pairs]
        for tensor, geometry, node in zip(written, before, nodes, strict=True):
            if Geometry.of(tensor) == geometry:
                self._write(tensor, node)
            else:  # resized to hold the result
                self._outdate(tensor, node)
                self._root(tensor, node)
        return out

    def _reshape_in_place(
        self, func: Any, twin: Any, args: tuple[Any, ...], kwargs: dict[str, Any], refs: tuple[Any, Any], tensor: Tensor
    ) -> Any:
        """Execute an operation that makes a tensor another view of its memory (``squeeze_``, ``t_``, ``set_``)."""
        handle = self._handle(tensor)
        out = func(*args, **kwargs)
        views = twin is not None and any(r.alias_info is not None for r in twin._schema.returns)
        if not views:
            self._root(tensor, self._unknown(tensor, refs))
            return out
        geometry = Geometry.of(tensor)
        node = self.tape.emit(str(twin), refs[0], refs[1], like=tensor)
        view = _View(str(twin), refs[0], tuple(refs[1].items()), (), handle.node, handle.geometry, geometry)
        self._handles[tensor] = _Handle(handle.memory, (*handle.chain, view), geometry, node, handle.memory.version)
        return out

    def _overwrite(self, func: Any, args: tuple[Any, ...], tensor: Tensor) -> str:
        """Return the value after ``copy_``, ``fill_`` or ``zero_``: it does not depend on the one before."""
        if len(args) == 1 or not isinstance(args[1], Ref):
            kwargs = {"dtype": tensor.dtype, "device": tensor.device}
            fill = args[1] if len(args) > 1 else 0
            return self.tape.emit("aten.full.default", (tuple(tensor.shape), fill), kwargs, like=tensor)
        source = self.tape.node(args[1].name)
        node = source.name
        if source.dtype != str(tensor.dtype).removeprefix("torch."):
            node = self.tape.emit("aten.to.dtype", (Ref(node), tensor.dtype), like=tensor)
        if source.shape != tuple(tensor.shape):
            node = self.tape.emit("aten.expand.default", (Ref(node), tuple(tensor.shape)), like=tensor)
            if not self._handle(tensor).chain:  # entries of their own, as in memory: sums round alike
                node = self.tape.emit("aten.clone.default", (Ref(node),), like=tensor)
        return node

    def _replay_in_place(
        self, func: Any, refs: tuple[Any, Any], out: Any, written: list[Tensor], clones: dict[str, str]
    ) -> list[str]:
        """Record an operation without functional twin as itself, writing to clones nobody else sees."""
        node = self.tape.emit(str(func), *refs, like=out)
        own = {id(tensor) for tensor in written}
        returned: dict[int, str] = {}
        for path, tensor in paths(out):
            name = node
            for index in path:
                name = self.tape.emit("getitem", (Ref(name), index), like=tensor)
            if id(tensor) in own:
                returned[id(tensor)] = name
            else:
                self._root(tensor, name)
        results = []
        for tensor, clone in zip(written, clones.values(), strict=True):
            name = returned.get(id(tensor), "")
            unseen = (Ref(clone), Ref(node), *flat(refs))
            results.append(name or self.tape.emit(UNKNOWN_ALIAS, unseen, like=tensor))
        return results


def _address(tensor: Tensor) -> int:
    """Return what identifies a tensor's memory."""
    return tensor.untyped_storage()._cdata
