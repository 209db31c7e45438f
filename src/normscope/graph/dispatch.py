"""The fallback front end: run the model once and write down what it did.

It sees operations as ``torch.export`` does (``aten.linear``, ``aten.layer_norm``), with real tensors, and so survives
control flow that depends on data and side effects in Python. What it records holds for inputs that take the same path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher, no_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from normscope.core.errors import CaptureError
from normscope.graph.guard import same_bits, untouched
from normscope.graph.interpreter import run
from normscope.graph.ir import Graph, Ref
from normscope.graph.nested import tensors
from normscope.graph.recorder import Recorder
from normscope.graph.tape import UNKNOWN_ALIAS, UNKNOWN_SCALAR

BRANCH_NOTE = "control flow depends on integers of the input: the graph holds for inputs that take the same branches"
LEFT_NOTE = (
    "a value computed from the input left torch (an if, item(), numpy): what was done with it is not seen, and the "
    "outputs are marked unknown; first in"
)
ALIAS_NOTE = "memory was written in a way that could not be followed: what depends on it is marked unknown"
REPLAY_NOTE = "running the recorded graph does not give the model's outputs: they are marked unknown"
#: Methods by which the numbers in a tensor reach Python, or come from there, without an operation of torch.
_EXITS = (
    "numpy", "tolist", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage", "_typed_storage",
    "__deepcopy__", "__reduce_ex__", "apply_", "map_", "map2_",
)  # fmt: skip


def record_graph(
    model: nn.Module, inputs: tuple[Any, ...], *, notes: Sequence[str] = ()
) -> tuple[Graph, dict[str, Tensor]]:
    """Capture ``model(*inputs)`` by recording one run of it.

    As long as no number leaves torch, Python does the same on every input of these shapes, and the graph holds for all.
    Where one does (``if x.sum() > 0``, ``x.max().item()``, numpy), each output is followed by a node with the operation
    ``normscope.scalar.unknown``, which no rule understands.

    Args:
        model: a module in the mode it is to be captured in; its outputs must be tensors in a tuple, or one tensor.
        inputs: example tensors.
        notes: why this front end was chosen; kept in the graph.

    Returns:
        The graph, and its parameters, buffers and constants by name.

    Raises:
        CaptureError: if the model calls what cannot be recorded, or returns something other than tensors.
        StateChangedError: if running the model changes its parameters.

    >>> graph, _ = record_graph(nn.Linear(2, 3), (torch.zeros(1, 2),))
    >>> [node.op for node in graph.calls()]
    ['aten.linear.default']
    """
    first, outputs = _record(model, _own(inputs))
    batch = next((str(t.shape[0]) for t in inputs if isinstance(t, Tensor) and t.ndim), "0")
    graph = first.tape.graph(outputs.names, batch=batch)
    found = [*notes, *([ALIAS_NOTE] if any(node.op == UNKNOWN_ALIAS for node in graph) else [])]
    if first.left is not None:
        graph = with_unknown_outputs(graph)
        found.append(f"{LEFT_NOTE} {first.left or 'the model itself'}")
    elif first.branched:
        found.append(BRANCH_NOTE)
    if not _reproduces(graph, first.tape.tensors, model, inputs, outputs.values):
        graph = with_unknown_outputs(graph)
        found.append(REPLAY_NOTE)
    live = {node.target for node in graph if node.target}
    kept = {name: tensor for name, tensor in first.tape.tensors.items() if name in live}
    return Graph(graph.nodes, "dispatch", batch, graph.output_names, tuple(found)), kept


class _Outputs:
    """The outputs of a recorded run: their nodes and a copy of their values."""

    def __init__(self, recorder: Recorder, result: Any) -> None:
        results = result if isinstance(result, list | tuple) else (result,)
        other = [type(item).__name__ for item in results if not isinstance(item, Tensor)]
        if other:
            raise CaptureError(f"a recorded model returns tensors, not {', '.join(other)}: select the tensors first")
        self.names = [recorder.read(tensor) for tensor in results]
        self.values = [tensor.detach().clone() for tensor in results]


def _record(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Recorder, _Outputs]:
    """Run the model on tensors it may overwrite, and return what was recorded."""
    with untouched(model), torch.no_grad():
        torch.backends.mha.set_fastpath_enabled(False)  # a fused operation would hide attention and norms
        recorder = Recorder(model, inputs)
        with _owners(model, recorder), _mode(recorder), _Exits(recorder):
            result = model(*inputs)
        return recorder, _Outputs(recorder, result)


def _own(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs in memory of their own, each."""
    return tuple(value.detach().clone() if isinstance(value, Tensor) else value for value in inputs)


class _Composite(SchemaCheckMode):
    """Sees operations before they are decomposed; torch lets only a few kinds of modes do so, this is one."""

    def __init__(self, recorder: Recorder) -> None:
        TorchDispatchMode.__init__(self, _dispatch_key=torch._C.DispatchKey.PreDispatch)
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record one operation, or what it becomes after autocast and function transforms have changed it."""
        with no_python_dispatcher():
            if _transformed(args, kwargs or {}):
                with _Plain(self.recorder):
                    return func(*args, **(kwargs or {}))
            return self.recorder.record(func, args, kwargs or {})


@torch.ops.higher_order.cond.py_impl(_Composite)
def _cond(mode: _Composite, pred: Any, true: Any, false: Any, operands: Sequence[Any]) -> Any:
    """Record the branch that ``torch.cond`` takes."""
    if isinstance(pred, Tensor):
        mode.recorder.leaves(pred)
    with mode:
        return (true if pred else false)(*operands)


class _Plain(TorchDispatchMode):
    """Sees operations after autocast, autograd, function transforms and decomposition."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record one operation."""
        return self.recorder.record(func, args, kwargs or {})


class _Exits(TorchFunctionMode):
    """Sees calls of methods that hand numbers to Python without an operation."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note the tensors such a method is called on."""
        if getattr(func, "__name__", "") in _EXITS:
            for tensor in tensors(args):
                self.recorder.leaves(tensor)
        return func(*args, **(kwargs or {}))


def _transformed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether an operation on these arguments is changed below the level of composite operations."""
    given = list(tensors((args, kwargs)))
    if any(torch.is_autocast_enabled(kind) for kind in {t.device.type for t in given} or {"cpu"}):
        return True
    return any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in given)


@contextlib.contextmanager
def _mode(recorder: Recorder) -> Iterator[None]:
    """Switch the recording on, at the level of composite operations if this torch lets us."""
    with contextlib.ExitStack() as stack:
        try:
            mode = _Composite(recorder)
            stack.enter_context(enable_python_dispatcher())
            stack.enter_context(mode)
        except (AssertionError, AttributeError, TypeError):  # not a public interface: exact without it too, only longer
            stack.pop_all().close()
            stack.enter_context(_Plain(recorder))
        yield


@contextlib.contextmanager
def _owners(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Keep the tape's owner at the innermost module that is running."""
    paths = {id(module): path for path, module in model.named_modules()}
    stack: list[tuple[str, str]] = []

    def enter(module: nn.Module, args: Any) -> None:
        stack.append(recorder.tape.owner)
        path = paths.get(id(module), recorder.tape.owner[0])
        recorder.tape.owner = (path, type(module).__qualname__.rsplit(".", 1)[-1])

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        recorder.tape.owner = stack.pop()

    handles = [
        module_hooks.register_module_forward_pre_hook(enter),
        module_hooks.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def with_unknown_outputs(graph: Graph) -> Graph:
    """Follow each output by a node that holds its value and says that it depends on the input in an unknown way."""
    sources = tuple(Ref(node.name) for node in graph if node.op == "input")
    *nodes, end = graph.nodes
    for name in dict.fromkeys(ref.name for ref in end.args):
        nodes.append(
            replace(
                graph[name], name=f"{name}_unknown", op=UNKNOWN_SCALAR, args=(Ref(name), *sources), kwargs=(), target=""
            )
        )
    renamed = replace(end, args=tuple(Ref(f"{ref.name}_unknown") for ref in end.args))
    return replace(graph, nodes=(*nodes, renamed), _index={})


def _reproduces(
    graph: Graph, state: dict[str, Tensor], model: nn.Module, inputs: tuple[Any, ...], outputs: list[Tensor]
) -> bool:
    """Tell whether running the graph gives what the model gave, up to the rounding of unordered sums."""
    with untouched(model), torch.no_grad():
        replayed = run(graph, state, _own(inputs))
    for ours, theirs in zip(replayed, outputs, strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return False
        if not same_bits(ours, theirs) and not torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7, equal_nan=True):
            return False
    return True
