"""The primary front end: ``torch.export`` (non-strict), translated into our own graph."""

import contextlib
import io
import logging
import operator
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import CaptureError
from normscope.graph.export_shortcuts import shortcuts
from normscope.graph.ir import Graph, Named, Node, Ref

_INPUT_KINDS = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant"}
#: A limit on the batch size of at least this means that torch allows any size.
UNLIMITED = 2**31
LIMIT_NOTE = "the model branches on the number of samples: the graph is valid for batches up to"
CONDITION_NOTE = "the model branches on the number of samples: the graph is valid where"
#: The number of samples, in our words and in the conditions that torch writes down.
BATCH_SIZE, _SIZE = "the batch size", re.compile(r"L\['\w+'\](?:\[\d+\])?\.size\(\)\[0\]")
#: Operations that return their argument itself, or a view of it, if there is nothing to do.
_MAY_BE_VIEWS = (
    "reshape", "contiguous", "to", "type_as", "flatten", "dropout", "feature_dropout", "alpha_dropout",
    "feature_alpha_dropout", "atleast_1d", "atleast_2d", "atleast_3d",
)  # fmt: skip
#: Operations that check shapes and types and return nothing we need.
_CHECKS = ("_assert_", "sym_constrain_range", "_guards_fn")


def export_graph(model: nn.Module, inputs: tuple[Any, ...], *, dynamic: bool) -> tuple[Graph, dict[str, Tensor]]:
    """Capture ``model(*inputs)`` with ``torch.export``."""
    shapes = tuple({0: torch.export.Dim.AUTO} if t.ndim else None for t in inputs) if dynamic else None
    with without_torch_output(), torch.no_grad(), shortcuts():
        # The model takes *inputs, so the specification of its one variadic argument is a tuple of tuples.
        program = torch.export.export(model, inputs, strict=False, dynamic_shapes=None if shapes is None else (shapes,))
        if _needs_functionalization(program.graph):
            program = program.run_decompositions({})
    return _translate(program, inputs, dynamic)


@contextlib.contextmanager
def without_torch_output() -> Iterator[None]:
    """Keep torch quiet about a failure: the caller has another front end, and reports the failure itself."""
    loggers = [
        logging.getLogger(name) for name in ("torch.fx.experimental.symbolic_shapes", "torch._export", "torch.export")
    ]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _needs_functionalization(graph: torch.fx.Graph) -> bool:
    """Return whether the graph mutates tensors or nests other graphs; both go away in one functional retrace."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.op == "get_attr":
            return True
        if node.op == "call_function":
            schema = getattr(node.target, "_schema", None)
            if schema is None and not _python_name(node.target):
                return True
            if schema is None or not schema.is_mutable or "batch_norm" in schema.name:
                continue
            if out_of_place(node.target) is None or not _unseen(node, order):
                return True
    return False


def out_of_place(target: Any) -> Any:
    """Return the out-of-place counterpart of an operation that works in place on its first argument, if there is one.

    >>> out_of_place(torch.ops.aten.relu_.default)
    <OpOverload(op='aten.relu', overload='default')>
    """
    schema = getattr(target, "_schema", None)
    if schema is None:
        return None
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    name = schema.name.partition("::")[2]
    if not schema.name.startswith("aten::") or not name.endswith("_") or written != schema.arguments[:1]:
        return None
    return getattr(getattr(torch.ops.aten, name[:-1], None), schema.overload_name or "default", None)


def _unseen(node: torch.fx.Node, order: dict[torch.fx.Node, int]) -> bool:
    """Return whether a write to the first argument has no other effect: a new tensor that is only read before it."""
    written = node.args[0]
    if not isinstance(written, torch.fx.Node) or written.op != "call_function":
        return False
    kinds = {v.dtype for a in node.all_input_nodes if isinstance(v := a.meta.get("val"), Tensor)}
    if len(kinds) != 1:  # in place, the first argument keeps its precision
        return False
    readers = [written, *(user for user in written.users if user is not node)]
    return all(order[user] < order[node] for user in readers) and not any(_may_alias(user) for user in readers)


def _may_alias(node: torch.fx.Node) -> bool:
    """Return whether the result of a node may share memory with others; that of an in-place operation counts as new."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return True
    if out_of_place(node.target) is not None:
        return False
    name = schema.name.partition("::")[2]
    return name in _MAY_BE_VIEWS or any(r.alias_info is not None for r in schema.returns)


def _python_name(target: Any) -> str:
    """Return the name of a Python-level integer operation, or the empty string."""
    name = getattr(target, "__name__", "")
    module = getattr(target, "__module__", "") or ""
    if hasattr(target, "_schema"):
        return ""
    known = target is operator.getitem or module in ("_operator", "math", "builtins") or name.startswith("sym_")
    return name if known else ""


def _translate(program: Any, inputs: tuple[Any, ...], dynamic: bool) -> tuple[Graph, dict[str, Tensor]]:
    """Turn an exported program into a :class:`Graph` and its tensors."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    held = program.constants | program.state_dict
    tensors: dict[str, Tensor] = {}
    nodes: list[Node] = []
    for fx_node in program.graph.nodes:
        if fx_node.op == "placeholder":
            spec = specs[fx_node.name]
            kind = _INPUT_KINDS.get(spec.kind.name, "input")
            target = spec.target or ""
            if kind != "input":
                tensors[target] = held[target]
            nodes.append(Node(fx_node.name, kind, target=target, **describe(fx_node.meta.get("val"))))
        elif fx_node.op == "output":
            outputs = [a for a in fx_node.args[0] if isinstance(a, torch.fx.Node)]
            nodes.append(Node("output", "output", tuple(Ref(a.name) for a in outputs)))
        elif not str(getattr(fx_node.target, "__name__", "")).startswith(_CHECKS):
            nodes.append(translate_call(fx_node))
    keep = live_nodes(nodes)
    batch = "dynamic" if dynamic else str(inputs[0].shape[0] if inputs and inputs[0].ndim else 0)
    notes = _limits(program) if dynamic else ()
    return Graph(tuple(n for n in nodes if n.name in keep), "export", batch, notes=notes), tensors


def _limits(program: Any) -> tuple[str, ...]:
    """Say for which sizes of the batch an exported program holds, if the model behaves differently at others."""
    conditions = [_SIZE.sub(BATCH_SIZE, code) for code in getattr(program, "_guards_code", ())]
    if any(".size()" in code or re.fullmatch(rf"{BATCH_SIZE} == \d+", code) for code in conditions):
        raise CaptureError("The model accepts inputs of one size only.")
    upper = [int(r.upper) for s, r in program.range_constraints.items() if str(s)[0] == "s" and r.upper.is_Integer]
    # A size of which only one value is left, the example's, has no range any more.
    for code in conditions:
        bounded = re.fullmatch(rf"{BATCH_SIZE} <(=?) (\d+)", code)
        upper += [int(bounded[2]) - (not bounded[1])] if bounded else []
    least = min(upper, default=sys.maxsize)
    plain = rf"{BATCH_SIZE} (<=? \d+|[=<>]= {BATCH_SIZE})"
    exact = " and ".join(dict.fromkeys(code for code in conditions if not re.fullmatch(plain, code)))
    found = [] if least >= UNLIMITED else [f"{LIMIT_NOTE} {least}"]
    return (*found, f"{CONDITION_NOTE} {exact}") if exact else tuple(found)


def translate_call(fx_node: Any) -> Node:
    """Translate one call."""
    target = fx_node.target
    python = _python_name(target)
    if target is operator.getitem:
        op = "getitem"
    elif python:
        op = f"python.{python}"
    else:
        op = str(out_of_place(target) or target)  # aten.conv2d.default
    kwargs = tuple(sorted((key, argument(value)) for key, value in fx_node.kwargs.items()))
    stack = fx_node.meta.get("nn_module_stack") or {}
    owner, owner_type = list(stack.values())[-1] if stack else ("", "")
    if "metadata_hook" in owner:
        owner, owner_type = "", ""
    owner_name = owner_type if isinstance(owner_type, str) else owner_type.__qualname__
    return Node(
        fx_node.name,
        op,
        tuple(argument(a) for a in fx_node.args),
        kwargs,
        owner=owner,
        owner_type=owner_name.rsplit(".", 1)[-1],
        **describe(fx_node.meta.get("val")),
    )


def argument(value: Any) -> Any:
    """Translate one argument."""
    if isinstance(value, torch.fx.Node):
        return Ref(value.name)
    if isinstance(value, list | tuple):
        return tuple(argument(item) for item in value)
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return Named(type(value).__name__, str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return Named("device", str(value))
    return None if isinstance(value, torch.Generator) else value


def describe(value: Any) -> dict[str, Any]:
    """Return shape and dtype of a value; a symbolic size shows as -1."""
    if not isinstance(value, Tensor):
        return {}
    shape = tuple(s if isinstance(s, int) else -1 for s in value.shape)
    return {"shape": shape, "dtype": str(value.dtype).removeprefix("torch.")}


def live_nodes(nodes: list[Node]) -> set[str]:
    """Return the names of the nodes an output depends on, and of all inputs."""
    live = {"output"} | {n.name for n in nodes if n.op == "input"}
    for node in reversed(nodes):
        if node.name in live:
            live.update(node.inputs())
    return live
