"""Skip the work of an export whose results are not needed here, which is most of its time."""

import contextlib
import functools
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from normscope.graph.guard import address

#: Types of arguments that are compared by value.
_PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))
#: What makes the result of an operation depend on more than the kinds of its arguments.
_TAGS = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
    torch.Tag.inplace_view,
)


class _NotPlainError(Exception):
    """An argument is not of a usual type: torch has to handle it."""


class RepeatedOperations:
    """The operations of one capture, each with an example of its results.

    Torch traces with values that have a shape and no entries. What it finds out about the result of an operation
    follows from the operation, its numbers, and the shapes, strides and types of its operands. When all of these occur
    again, as in every block of a deep network, a node is added to the graph and the earlier result is copied.

    Operations that return views, write, draw random numbers or read entries are traced as usual, and so are those on
    constants, under autocast and where gradients are recorded.

    Args:
        tracing: the module ``torch.fx.experimental.proxy_tensor``.
    """

    def __init__(self, tracing: Any) -> None:
        from torch._subclasses.fake_impls import fast_detach
        from torch._subclasses.fake_tensor import FakeTensor

        internal: Any = torch._C
        self._copy, self._fake, self._autocast = fast_detach, FakeTensor, internal._is_any_autocast_enabled
        self._usual, self._slot = tracing.proxy_call, tracing._ProxyTensor
        self._like: dict[Any, Any] = {}

    def call(self, mode: Any, function: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> Any:
        """Trace one operation; stands in for ``proxy_call`` of torch."""
        tracer = mode.tracer
        special = kwargs or torch.is_grad_enabled() or self._autocast()
        if special or not pre_dispatch or not _depends_on_kinds(function):
            return self._usual(mode, function, pre_dispatch, args, kwargs)
        try:
            given = self._nodes(args, tracer.tensor_tracker)
            key = tracer, function, torch.is_inference_mode_enabled(), torch.get_default_dtype(), self._kind(args)
        except _NotPlainError:
            return self._usual(mode, function, pre_dispatch, args, kwargs)
        like = self._like.get(key)
        if like is None:
            return self._first(key, mode, args)
        name = tracer.graph._target_to_str(function.overloadpacket.__name__)
        node = tracer.create_node("call_function", function, given, {}, name)
        node.meta["val"] = like
        value = self._copy(like.fake_mode, like)
        tracer.tensor_tracker[value] = self._slot(tracer.proxy(node), None)
        return value

    def _first(self, key: tuple[Any, ...], mode: Any, args: Any) -> Any:
        """Trace an operation the usual way, and remember its result if it is one new value of one new node."""
        tracer, function = key[:2]
        before = tracer.graph._root.prev
        value = self._usual(mode, function, True, args, {})
        node = tracer.graph._root.prev
        slot = tracer.tensor_tracker.get(value) if type(value) is self._fake else None
        if slot is None or slot.constant is not None or value.constant is not None:
            return value
        alone = node.prev is before and node.target is function and slot.proxy.node is node
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        if alone and not any(address(value) == address(other) for other in tensors):
            self._like[key] = node.meta["val"]
        return value

    def _kind(self, value: Any) -> Any:
        """Return those properties of an argument that the result of an operation may depend on."""
        if type(value) is self._fake:
            if value.constant is not None or value.layout is not torch.strided:
                raise _NotPlainError
            sizes = (*value.shape, *value.stride(), value.storage_offset())
            return (
                *(size if type(size) is int else size.node.expr for size in sizes),
                value.dtype,
                value.fake_device,
                value.requires_grad,
                value.is_conj(),
                value.is_neg(),
                value.is_inference(),
            )
        if type(value) in _PLAIN:
            return type(value), value
        if type(value) in (list, tuple):
            return type(value), *(self._kind(item) for item in value)
        raise _NotPlainError

    def _nodes(self, value: Any, slots: Any) -> Any:
        """Return an argument as it appears in the graph."""
        if type(value) is self._fake:
            slot = slots.get(value)
            if slot is None or slot.constant is not None:
                raise _NotPlainError
            return slot.proxy.node
        if type(value) in (list, tuple):
            return type(value)(self._nodes(item, slots) for item in value)
        return value


@functools.cache
def _depends_on_kinds(function: Any) -> bool:
    """Return whether the result of an operation is a new tensor whose kind follows from those of its arguments.

    >>> _depends_on_kinds(torch.ops.aten.linear.default), _depends_on_kinds(torch.ops.aten.view.default)
    (True, False)
    """
    schema = getattr(function, "_schema", None)
    if schema is None or getattr(function, "namespace", "") != "aten" or schema.is_mutable or len(schema.returns) != 1:
        return False
    return schema.returns[0].alias_info is None and not any(tag in function.tags for tag in _TAGS)


def _where_there_are_some(usual: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return the search for sizes that depend on data, restricted to graphs that have such sizes."""

    def replaced(module: Any) -> None:
        if any("unbacked_bindings" in node.meta for node in module.graph.nodes):
            usual(module)

    return replaced


def _outermost(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return the cached evaluation of operations, restricted to the outermost ones."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    nested, inside = FakeTensorMode._dispatch_impl, False

    def replaced(mode: Any, *call: Any) -> Any:
        nonlocal inside
        if inside:
            return nested(mode, *call)
        inside = True
        try:
            return usual(mode, *call)
        finally:
            inside = False

    return replaced


_TRACING = "torch.fx.experimental.proxy_tensor"
#: What is left out: where torch does it, under what name, and what replaces it.
SHORTCUTS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    # Torch records for every operation which lines of code led to it: a fifth of the time.
    "stack traces": ("torch.fx.config", "do_not_emit_stack_traces", lambda usual: True),
    # With a free batch size it asks a solver whether strides are contiguous: a seventh of the time. The result,
    # meta["tensor_meta"], is not needed: export and this package read meta["val"], which is still recorded.
    "memory formats": (_TRACING, "_extract_tensor_metadata", lambda usual: lambda *value, **options: None),
    # Every stage of the graph is written as Python code, which we never run: a tenth of the time.
    "generated code": (
        "torch.export.exported_program",
        "_create_graph_module_for_export",
        lambda usual: pkgutil.resolve_name("torch.fx._lazy_graph_module:_make_graph_module"),
    ),
    "code of modules": ("torch.fx._lazy_graph_module", "_use_lazy_graph_module_flag", lambda usual: True),
    "unknown sizes": ("torch.export._trace", "_replace_unbacked_bindings", _where_there_are_some),
    # Torch computes the shapes of an operation by running others, and caches each of them: a sixth of the time. When
    # the same layer occurs again, the cached result of the operation itself is used, and the steps are not needed.
    "nested caching": ("torch._subclasses.fake_tensor:FakeTensorMode", "_cached_dispatch_impl", _outermost),
    # The result of an operation is computed again for operands of the same kind: half of the time.
    "repeated operations": (
        _TRACING,
        "proxy_call",
        lambda usual: RepeatedOperations(pkgutil.resolve_name(_TRACING)).call,
    ),
}


@contextlib.contextmanager
def shortcuts() -> Iterator[None]:
    """Take every shortcut that this version of torch allows, and restore torch afterwards.

    >>> from torch.fx.experimental import proxy_tensor
    >>> usual = proxy_tensor.proxy_call
    >>> with shortcuts():
    ...     proxy_tensor.proxy_call is usual
    False
    >>> proxy_tensor.proxy_call is usual
    True
    """
    replaced: list[tuple[Any, str, Any]] = []
    try:
        for place, name, replacement in SHORTCUTS.values():
            with contextlib.suppress(ImportError, AttributeError):  # another version of torch
                holder = pkgutil.resolve_name(place)
                usual = getattr(holder, name)
                setattr(holder, name, replacement(usual))
                replaced.append((holder, name, usual))
        yield
    finally:
        for holder, name, usual in reversed(replaced):
            setattr(holder, name, usual)
