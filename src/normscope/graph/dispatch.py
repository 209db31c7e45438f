"""The fallback front end: run the model once and write down what it did.

It sees operations as ``torch.export`` does (``aten.linear``, ``aten.layer_norm``), with real tensors, and so survives
control flow that depends on data and side effects in Python. What it records holds for inputs that take the same path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher, no_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from normscope.core.errors import CaptureError
from normscope.graph.guard import same_bits, untouched
from normscope.graph.interpreter import run
from normscope.graph.ir import Graph, Node, Ref
from normscope.graph.nested import substitute, tensors
from normscope.graph.recorder import Recorder
from normscope.graph.tape import UNKNOWN_ALIAS, UNKNOWN_SCALAR

BRANCH_NOTE = "control flow depended on the data: the graph holds for inputs that take the same branches"
SCALAR_NOTE = "a value computed from the input went through Python: what depends on it is marked unknown"
BORDER_NOTE = "inputs next to the example take other branches: the outputs are marked unknown"
ALIAS_NOTE = "memory was written in a way that could not be followed: what depends on it is marked unknown"
REPLAY_NOTE = "running the recorded graph does not give the model's outputs: they are marked unknown"
#: By how much, relatively, inputs are moved to see which literals of a recording depend on them.
_NUDGES = (1e-3, 1e-6)
#: By what they are stretched to see which do so only far away from the example.
_STRETCHES = (-1.0, 1e-3, 30.0, 1e3, -1e3)


def record_graph(
    model: nn.Module, inputs: tuple[Any, ...], *, notes: Sequence[str] = ()
) -> tuple[Graph, dict[str, Tensor]]:
    """Capture ``model(*inputs)`` by recording one run of it.

    The model is run again on inputs moved a little, and on some far away. A literal or constant that differs between
    two recordings of the same steps came from the input by a way the graph does not show (``x.max().item()``, numpy);
    the node that uses it is followed by one with the operation ``normscope.scalar.unknown``, which no rule understands.

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
    first, outputs = _record(model, _own(inputs), 0.0)
    batch = next((str(t.shape[0]) for t in inputs if isinstance(t, Tensor) and t.ndim), "0")
    found = list(notes) + ([BRANCH_NOTE] if first.branched and BRANCH_NOTE not in notes else [])
    graph = first.tape.graph(outputs.names, batch=batch)
    graph, extra = _mark_values_from_python(graph, first, model, inputs)
    found += extra + ([ALIAS_NOTE] if any(node.op == UNKNOWN_ALIAS for node in graph) else [])
    if not _reproduces(graph, first.tape.tensors, model, inputs, outputs.values):
        graph = _insert_unknown(graph, {ref.name for ref in graph["output"].args})
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


def _record(model: nn.Module, inputs: tuple[Any, ...], nudge: float) -> tuple[Recorder, _Outputs]:
    """Run the model on tensors it may overwrite, and return what was recorded."""
    with untouched(model), torch.no_grad():
        torch.backends.mha.set_fastpath_enabled(False)  # a fused operation would hide attention and norms
        recorder = Recorder(model, inputs, nudge=nudge)
        with _owners(model, recorder), _mode(recorder):
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


def _mark_values_from_python(
    graph: Graph, first: Recorder, model: nn.Module, inputs: tuple[Any, ...]
) -> tuple[Graph, list[str]]:
    """Find literals and constants that depend on the input, and mark what uses them."""
    near = (_moved_with(graph, first, model, _nudged(inputs, nudge), nudge) for nudge in _NUDGES)
    differ = next((found for found in near if found is not None), None)
    if differ is None:
        return _insert_unknown(graph, {ref.name for ref in graph["output"].args}), [BORDER_NOTE]
    for far in _far(inputs):  # a function may be flat around the example, as one that is cut off
        differ |= _moved_with(graph, first, model, far, 0.0) or set()
    return (_insert_unknown(graph, differ), [SCALAR_NOTE]) if differ else (graph, [])


def _moved_with(
    graph: Graph, first: Recorder, model: nn.Module, inputs: tuple[Any, ...], nudge: float
) -> set[str] | None:
    """Return the nodes whose literals, and the constants that, are others on other inputs; ``None`` on another path."""
    try:
        other, outputs = _record(model, inputs, nudge)
    except (RuntimeError, ValueError, IndexError, ArithmeticError):
        return None  # the moved input is not one the model takes
    moved = other.tape.graph(outputs.names, batch="")
    if len(moved.nodes) != len(graph.nodes) or not all(map(_same_step, graph, moved)):
        return None
    differ = {a.name for a, b in zip(graph, moved, strict=True) if (a.args, a.kwargs) != (b.args, b.kwargs)}
    users = graph.users()
    for node in graph:
        # A constant below an unknown alias is the value seen there; it moves with the input, and is marked.
        if node.op == "constant" and any(graph[user].op != UNKNOWN_ALIAS for user in users[node.name]):
            ours, theirs = first.tape.tensors[node.target], other.tape.tensors[node.target]
            if not same_bits(ours, theirs):
                differ.add(node.name)
    return differ


def _same_step(a: Node, b: Node) -> bool:
    """Tell whether two nodes are the same step, up to literals."""
    return (a.name, a.op, a.target, a.inputs()) == (b.name, b.op, b.target, b.inputs())


def _nudged(inputs: tuple[Any, ...], nudge: float) -> tuple[Any, ...]:
    """Return the inputs moved by a small random amount; what is not floating point stays."""
    generator = torch.Generator().manual_seed(0)

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.device)
        size = value.abs().to(torch.float64)
        return (value + nudge * noise * (size + size.mean() + torch.finfo(value.dtype).tiny)).to(value.dtype)

    return tuple(move(value) for value in _own(inputs))


def _far(inputs: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield inputs far from the example: stretched, shrunk, turned round; what is not floating point stays."""
    for factor in _STRETCHES:
        yield tuple(v * factor if isinstance(v, Tensor) and v.is_floating_point() else v for v in _own(inputs))


def _insert_unknown(graph: Graph, names: set[str]) -> Graph:
    """Follow each named node by one that holds its value and says that it depends on the input in an unknown way."""
    sources = tuple(Ref(node.name) for node in graph if node.op == "input")
    calls = [node for node in graph if node.op not in ("input", "parameter", "buffer", "constant")]
    leading = [node for node in graph if node not in calls]
    renamed: dict[str, str] = {}
    nodes: list[Node] = []

    def mark(node: Node) -> None:
        name = f"{node.name}_unknown"
        renamed[node.name] = name
        nodes.append(
            Node(
                name,
                UNKNOWN_SCALAR,
                (Ref(node.name), *sources),
                (),
                node.owner,
                node.owner_type,
                "",
                node.shape,
                node.dtype,
            )
        )

    for node in leading:
        if node.name in names:
            mark(node)
    for node in calls:
        args, kwargs = substitute((node.args, node.kwargs), lambda ref: Ref(renamed.get(ref.name, ref.name)))
        new = Node(node.name, node.op, args, kwargs, node.owner, node.owner_type, node.target, node.shape, node.dtype)
        nodes.append(new)
        if node.name in names:
            mark(new)
    return Graph((*leading, *nodes), graph.front_end, graph.batch, graph.output_names, graph.notes)


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
