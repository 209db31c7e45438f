"""The fallback front end: run the model once, write down the operations, and make them functional.

It sees operations as ``torch.export`` does (``aten.linear``, ``aten.layer_norm``), with real tensors, and so survives
control flow that depends on data and side effects in Python. The record is a program without branches; torch itself
turns its in-place writes and views into functional operations (``FunctionalTensorMode``), as ``torch.export`` does.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher, no_python_dispatcher
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from normscope.core.errors import CaptureError
from normscope.graph.export import describe, live_nodes, translate_call, without_torch_output
from normscope.graph.guard import address, copies, place, same_bits, untouched
from normscope.graph.interpreter import run
from normscope.graph.ir import UNKNOWN, Graph, Node, Ref
from normscope.graph.schemas import moves_shape, normalizer_in_training, written_arguments

BRANCH_NOTE = "control flow depends on integers of the input: the graph is valid for inputs that take the same branches"
LEFT_NOTE = (
    "a value computed from the input left torch (an if, item(), numpy), so what was done with "
    "it is unknown and the outputs are marked unknown; first in"
)
REPLAY_NOTE = "the recorded graph does not reproduce the model's outputs: they are marked unknown"
#: Methods by which numbers in a tensor reach Python, or are set from Python, without an operation of torch.
_EXITS = (
    "numpy", "tolist", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage", "_typed_storage",
    "__deepcopy__", "__reduce_ex__", "apply_", "map_", "map2_",
)  # fmt: skip
#: Lookups in a table: here token ids, which are kept fixed, become numbers, which vary.
_LOOKUPS = ("embedding", "index", "index_select", "gather")
#: Operations whose result is the same for all finite numbers.
_FINITE = ("isnan", "isinf", "isfinite", "isposinf", "isneginf")


def record_graph(model: nn.Module, inputs: Sequence[Tensor]) -> tuple[Graph, dict[str, Tensor]]:
    """Capture ``model(*inputs)`` by recording one run of it; return the graph and its tensors by name.

    As long as no number leaves torch, Python does the same on every input of these shapes, and the graph holds for all.
    Where one does (``if x.sum() > 0``, ``x.max().item()``, numpy), each output is followed by a node with the operation
    :data:`normscope.graph.ir.UNKNOWN`, which no rule understands.

    Args:
        model: a module in the mode it is to be captured in; its outputs must be tensors in a tuple, or one tensor.
        inputs: example tensors.

    Raises:
        CaptureError: if the model calls something that cannot be recorded.
        StateChangedError: if running the model changes its parameters.

    >>> graph, _ = record_graph(nn.Linear(2, 3), (torch.zeros(1, 2),))
    >>> [node.op for node in graph.calls()]
    ['aten.linear.default']
    """
    recorder, slots, values = recorded(model, inputs)
    with untouched(model), torch.no_grad():
        graph, tensors = _functional(recorder, slots)
    with untouched(model), torch.no_grad():
        reproduced = _reproduces(graph, tensors, inputs, values)
    found: list[str] = []
    if recorder.left is not None:
        graph = with_unknown_outputs(graph)
        found.append(f"{LEFT_NOTE} {recorder.left or 'the model itself'}")
    elif recorder.branched:
        found.append(BRANCH_NOTE)
    if not reproduced:
        graph = with_unknown_outputs(graph)
        found.append(REPLAY_NOTE)
    batch = next((str(t.shape[0]) for t in inputs if t.ndim), "0")
    return replace(graph, batch=batch, notes=tuple(found)), tensors


def recorded(
    model: nn.Module, inputs: Sequence[Tensor], watch: "type[Watch] | None" = None
) -> tuple["Recorder", list[int], list[Tensor]]:
    """Run a model once; return what was executed, the slots of the model's outputs, and the outputs."""
    with untouched(model), torch.no_grad():
        torch.backends.mha.set_fastpath_enabled(False)  # a fused operation would hide attention and norms
        recorder = Recorder(model, copies(inputs))
        with _owners(model, recorder), enable_python_dispatcher(), _Composite(recorder), (watch or Watch)(recorder):
            result = model(*recorder.inputs)
        outputs = [result] if isinstance(result, Tensor) else list(result)
        return recorder, [recorder.slot(tensor) for tensor in outputs], [t.detach().clone() for t in outputs]


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor in the arguments of a recorded operation."""

    index: int


@dataclass(frozen=True)
class Step:
    """One operation that was executed: its arguments, the slots of what it returned, and the module it ran in."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Slot | None]
    owner: tuple[str, str]


class Recorder:
    """Executes operations and writes them down.

    All tensors are kept alive while it records, so that an ``id`` or an address in memory means one tensor only.

    Attributes:
        steps: what was executed.
        sources: kind, name and value of every tensor that no operation returned, by its slot.
        owner: path and class of the module that is running.
        left: the module in which a number that varies with the input first reached Python, or ``None`` if none did.
        branched: whether Python saw integers of the input, which are kept fixed.
    """

    def __init__(self, model: nn.Module, inputs: Sequence[Tensor]) -> None:
        self.inputs = inputs
        self.steps: list[Step] = []
        self.sources: dict[int, tuple[str, str, Tensor]] = {}
        self.owner = ("", "")
        self.left: str | None = None
        self.branched = False
        self._tensors: list[Tensor] = []
        self._slots: dict[int, int] = {}
        self._places: list[tuple[Any, ...]] = []
        self._depending: set[int] = set()  # addresses of memory that holds what was computed from the input
        self._lost: set[int] = set()  # addresses of memory whose content is not followed
        self._moving: set[int] = set()  # the same without what comes from its integers alone (token ids, masks)
        for name, parameter in model.named_parameters():
            self._add_source("parameter", name, parameter)
        for name, buffer in model.named_buffers():
            self._add_source("buffer", name, buffer)
        for position, value in enumerate(inputs):
            self._add_source("input", f"args_{position}", value)
            self._depending.add(address(value))
            if value.is_floating_point():
                self._moving.add(address(value))

    def record(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Execute one operation, write it down, and return what it returned."""
        if not isinstance(function, torch._ops.OpOverload):
            raise CaptureError(f"{function} runs a function of its own and cannot be recorded.")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        written = written_arguments(function, args, kwargs)
        # In training mode the running statistics are written but not read: without them a replay writes nothing.
        moved = {id(tensor): tensor for tensor in normalizer_in_training(function, args, kwargs)}
        filled = tree_map_only(
            Tensor, lambda tensor: None if id(tensor) in moved else Slot(self.slot(tensor)), (args, kwargs)
        )
        if any(isinstance(leaf, torch.UntypedStorage) for leaf in tree_leaves((args, kwargs))):
            self._lost |= {address(tensor) for tensor in given}
            return function(*args, **kwargs)
        out = function(*args, **kwargs)
        results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if not (results or written) or moves_shape(function, given):  # a number or a size for Python
            self.leaves(given)
        self._follow(str(function), given, [*results, *written])
        for tensor in written:
            self._written(tensor)
        self._lost |= {address(tensor) for tensor in moved.values()}
        if results or written:
            slots = [Slot(self._bind(leaf)) if isinstance(leaf, Tensor) else None for leaf in tree_leaves(out)]
            self.steps.append(Step(function, filled[0], filled[1], slots, self.owner))
        return out

    def leaves(self, tensors: Sequence[Tensor]) -> None:
        """Note that the numbers in some tensors reach Python, or are changed there."""
        addresses = {address(tensor) for tensor in tensors}
        if self.left is None and addresses & self._moving:
            self.left = self.owner[0]
        self.branched = self.branched or bool(addresses & self._depending)

    def slot(self, tensor: Tensor) -> int:
        """Return the slot of a tensor."""
        if address(tensor) in self._lost:
            self.left = self.left or self.owner[0]
        known = self._slots.get(id(tensor))
        return known if known is not None and self._places[known] == place(tensor) else self._adopt(tensor)

    def tensor(self, slot: int) -> Tensor:
        """Return what lies in a slot at the end of the run."""
        return self._tensors[slot]

    def memory(self, slot: int) -> int:
        """Return what identifies the memory that a slot lies in."""
        return int(self._places[slot][0])

    def _follow(self, operation: str, given: list[Tensor], results: list[Tensor]) -> None:
        """Note which memory now holds what was computed from the input."""
        base = operation.split(".")[1]
        read = {address(tensor) for tensor in given}
        if base in _FINITE or not read & self._depending:
            return
        for tensor in results:
            self._depending.add(address(tensor))
            looked_up = base in _LOOKUPS and tensor.is_floating_point()
            if looked_up or read & self._moving:
                self._moving.add(address(tensor))

    def _written(self, tensor: Tensor) -> None:
        """Note a write; one to memory of two sources at once, such as overlapping buffers, cannot be followed."""
        here = place(tensor)
        if sum(self._places[slot][0] == here[0] for slot in self.sources) > 1:
            self._lost.add(here[0])
        self._places[self._slots[id(tensor)]] = here

    def _bind(self, tensor: Tensor) -> int:
        """Return the slot of a tensor that an operation returned: a new one, or that of the argument it wrote to."""
        known = self._slots.get(id(tensor))
        return self._new(tensor) if known is None else known

    def _adopt(self, tensor: Tensor) -> int:
        """Return a slot for a tensor that no operation returned: a view of a known tensor, or a constant."""
        here = place(tensor)
        sharing = [slot for slot, other in enumerate(self._places) if other[0] == here[0]]
        same = [slot for slot in sharing if self._places[slot] == here]
        if sharing and (same or self._places[sharing[0]][-1] == here[-1]):
            slot = self._new(tensor)
            alias, strided = torch.ops.aten.alias.default, torch.ops.aten.as_strided.default
            step = (alias, (Slot(same[0]),)) if same else (strided, (Slot(sharing[0]), *here[1:4]))
            self.steps.append(Step(*step, {}, [Slot(slot)], self.owner))
            return slot
        if sharing:  # memory read as another dtype
            self.left = self.left or self.owner[0]
        return self._add_source("constant", f"constant_{len(self.sources)}", tensor)

    def _new(self, tensor: Tensor) -> int:
        """Return a new slot for a tensor."""
        self._tensors.append(tensor)
        self._places.append(place(tensor))
        self._slots[id(tensor)] = len(self._tensors) - 1
        return len(self._tensors) - 1

    def _add_source(self, kind: str, name: str, tensor: Tensor) -> int:
        """Return a new slot for a tensor that no operation returned; a constant is copied as it is now."""
        slot = self._new(tensor)
        self.sources[slot] = (kind, name, tensor.detach().clone() if kind == "constant" else tensor)
        return slot


class _Functional(FunctionalTensorMode):
    """Replaces writes and views, and leaves other composite operations whole."""

    def _can_decompose(self, func: Any, args: Any, kwargs: Any) -> bool:
        aliases = any(argument.alias_info for argument in func._schema.arguments)
        return aliases or torch.Tag.maybe_aliasing_or_mutating in func.tags


def _functional(recorder: Recorder, outputs: list[int]) -> tuple[Graph, dict[str, Tensor]]:
    """Return the recorded program as a graph without writes, and its tensors."""
    inputs = [slot for slot, source in recorder.sources.items() if source[0] == "input"]
    read = {s.index for step in recorder.steps for s in tree_leaves((step.args, step.kwargs)) if isinstance(s, Slot)}
    used = [slot for slot in recorder.sources if slot in inputs or slot in read or slot in outputs]

    def program(*values: Tensor) -> list[Tensor]:
        held = dict(zip(used, values, strict=True))

        def value(slot: Slot) -> Tensor:
            return held[slot.index]

        for step in recorder.steps:
            args, kwargs = tree_map_only(Slot, value, (step.args, step.kwargs))
            with fx_traceback.annotate({"owner": step.owner}):
                leaves = tree_leaves(step.function(*args, **kwargs))
            held.update((s.index, leaf) for s, leaf in zip(step.results, leaves, strict=True) if s is not None)
        return [held[slot] for slot in outputs]

    values = [recorder.sources[slot][2].detach().clone() for slot in used]
    with without_torch_output(), fx_traceback.preserve_node_meta():
        functional = dispatch_functionalize(program, mode=_Functional(pre_dispatch=True))
        traced = make_fx(functional, pre_dispatch=True)(*values)
    return _translate(traced, [recorder.sources[slot] for slot in used])


def _translate(traced: Any, sources: list[tuple[str, str, Tensor]]) -> tuple[Graph, dict[str, Tensor]]:
    """Turn the traced program into a :class:`Graph` and its tensors."""
    tensors = {name: tensor for kind, name, tensor in sources if kind != "input"}
    nodes: list[Node] = []
    supply = iter(sources)
    for fx_node in traced.graph.nodes:
        if fx_node.op == "placeholder":
            kind, name, tensor = next(supply)
            fx_node.name = name.replace(".", "_") if kind == "input" else f"{kind[0]}_{name.replace('.', '_')}"
            nodes.append(Node(fx_node.name, kind, target="" if kind == "input" else name, **describe(tensor)))
        elif fx_node.op == "get_attr":
            tensors[fx_node.target] = getattr(traced, fx_node.target)
            held = tensors[fx_node.target]
            nodes.append(Node(fx_node.name, "constant", target=fx_node.target, **describe(held)))
        elif fx_node.op == "output":
            nodes.append(Node("output", "output", tuple(Ref(a.name) for a in fx_node.args[0])))
        else:
            owner, owner_type = fx_node.meta.get("custom", {}).get("owner", ("", ""))
            nodes.append(replace(translate_call(fx_node), owner=owner, owner_type=owner_type))
    keep = live_nodes(nodes)
    graph = Graph(tuple(n for n in nodes if n.name in keep), "dispatch")
    return graph, {name: tensor for name, tensor in tensors.items() if name in {n.target for n in graph}}


class _Composite(SchemaCheckMode):
    """Sees operations before they are decomposed; torch allows this only for a few kinds of modes, such as this one."""

    def __init__(self, recorder: Recorder) -> None:
        TorchDispatchMode.__init__(self, _dispatch_key=torch._C.DispatchKey.PreDispatch)
        self.recorder = recorder

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch loads its compiler at the first operation, for a second

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
        mode.recorder.leaves([pred])
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


class Watch(TorchFunctionMode):
    """Sees calls of methods that hand numbers to Python without an operation."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note the tensors such a method is called on."""
        if getattr(func, "__name__", "") in _EXITS:
            self.recorder.leaves([leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)])
        return func(*args, **(kwargs or {}))


def _transformed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an operation on these arguments is changed below the level of composite operations."""
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if any(torch.is_autocast_enabled(kind) for kind in {t.device.type for t in given} or {"cpu"}):
        return True
    return any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in given)


@contextlib.contextmanager
def _owners(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Keep the recorder's owner at the innermost module that is running."""
    paths = {id(module): path for path, module in model.named_modules()}
    stack: list[tuple[str, str]] = []

    def enter(module: nn.Module, args: Any) -> None:
        stack.append(recorder.owner)
        path = paths.get(id(module), recorder.owner[0])
        recorder.owner = (path, type(module).__qualname__.rsplit(".", 1)[-1])

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        recorder.owner = stack.pop()

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
        unknown = {"name": f"{name}_unknown", "op": UNKNOWN, "args": (Ref(name), *sources), "kwargs": (), "target": ""}
        nodes.append(replace(graph[name], **unknown))  # type: ignore[arg-type]
    renamed = replace(end, args=tuple(Ref(f"{ref.name}_unknown") for ref in end.args))
    return replace(graph, nodes=(*nodes, renamed))


def _reproduces(graph: Graph, state: dict[str, Tensor], inputs: Sequence[Tensor], outputs: list[Tensor]) -> bool:
    """Return whether the graph reproduces the model's outputs, up to the rounding of unordered sums."""
    replayed = run(graph, state, copies(inputs))
    for ours, theirs in zip(replayed, outputs, strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return False
        if not same_bits(ours, theirs) and not torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7, equal_nan=True):
            return False
    return True
