"""Run a graph: resolve its operations and execute them on tensors."""

import functools
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.core.errors import CaptureError
from normscope.graph.grouped_products import grouped_product
from normscope.graph.ir import SOURCES, Graph, Named, Node, Ref
from normscope.graph.schemas import normalizer_in_training
from normscope.graph.second_derivatives import hard_sigmoid, weight_normed

_PYTHON: dict[str, Callable[..., Any]] = {
    "sym_max": max,
    "sym_min": min,
    "sym_float": float,
    "sym_int": int,
    "sym_not": operator.not_,
    "sym_ite": lambda b, t, f: t if b else f,
}


def _first(value: Any, *others: Any) -> Any:
    """Return the first argument."""
    return value


#: What replaces operations, by name.
_INSTEAD: dict[str, Callable[..., Any]] = {
    # These require strides which values computed in another way may not have.
    "aten.view.default": torch.reshape,
    "aten._unsafe_view.default": torch.reshape,
    # Torch does not differentiate these, or not as what they compute: a graph's derivative is that of what it computes.
    "aten.detach.default": _first,
    "aten.detach_copy.default": _first,
    "aten.copy.default": lambda self, src, non_blocking=False: src.to(self.dtype).expand_as(self),
    # The other arguments of these two change torch's gradient, not the result.
    "aten.embedding.default": lambda weight, indices, *rest, **_: torch.ops.aten.embedding.default(weight, indices),
    "aten.gather.default": lambda self, dim, index, **_: torch.ops.aten.gather.default(self, dim, index),
    "aten._weight_norm.default": weight_normed,
    "transformers.grouped_mm_fallback.default": grouped_product,
    # Torch's own has no second derivative, which products with a Jacobian need.
    "aten.hardsigmoid.default": hard_sigmoid,
}


@functools.cache
def resolve(op: str) -> Callable[..., Any]:
    """Return the function behind an operation's name.

    >>> resolve("aten.relu.default")(torch.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    if op == "getitem":
        return operator.getitem
    if op.startswith("normscope."):  # a value whose dependence on the other arguments was not followed
        return _first
    if op.startswith("python."):
        name = op.removeprefix("python.")
        found = _PYTHON.get(name) or getattr(operator, name, None) or getattr(math, name, None)
        if found is not None:
            return found
    else:
        namespace, name, overload = op.split(".", 2)
        packet = getattr(getattr(torch.ops, namespace), name, None)
        if packet is not None and hasattr(packet, overload):
            return getattr(packet, overload)
    raise CaptureError(f"The graph uses {op}, which torch {torch.__version__} does not have. Capture it again.")


def literal(value: Any, dtype: torch.dtype | None = None) -> Any:
    """Turn a :class:`Named` literal back into the torch object it stands for.

    >>> literal(Named("dtype", "float32")), literal(Named("dtype", "float32"), torch.float64)
    (torch.float32, torch.float64)
    """
    if not isinstance(value, Named):
        return value
    found = torch.device(value.name) if value.type == "device" else getattr(torch, value.name)
    return dtype if dtype is not None and isinstance(found, torch.dtype) and found.is_floating_point else found


def literals(tree: Any, dtype: torch.dtype | None = None) -> Any:
    """Turn every :class:`Named` in a nested list into its torch object."""
    return filled(tree, {}, dtype)


def as_floating(value: Any, dtype: torch.dtype | None) -> Any:
    """Return floating tensors in a precision, also those in tuples, lists and dicts, and anything else as it is.

    Without a precision, or with one that is not floating, nothing is changed.

    >>> [t.dtype for t in as_floating([torch.ones(1), torch.tensor(1)], torch.float64)]
    [torch.float64, torch.int64]
    """
    if isinstance(value, dict):
        return {key: as_floating(item, dtype) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(as_floating(item, dtype) for item in value)
    floating = isinstance(value, Tensor) and value.is_floating_point() and dtype is not None and dtype.is_floating_point
    return value.to(dtype) if floating else value


def filled(tree: Any, values: Mapping[str, Any], dtype: torch.dtype | None = None) -> Any:
    """Return a nested argument with the values it refers to, and literals turned into torch objects."""
    if isinstance(tree, Ref):
        return values[tree.name]
    if isinstance(tree, tuple | list):
        return [filled(item, values, dtype) for item in tree]
    return literal(tree, dtype)


#: Types of literals that stand for themselves.
_PLAIN = frozenset((int, float, bool, str, type(None)))


def call(
    node: Node,
    values: Mapping[str, Any],
    dtype: torch.dtype | None = None,
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> Any:
    """Execute one node on the values of its inputs; see :func:`run` for ``dtype`` and ``functions``."""
    # References to tensors and plain numbers, which nearly all arguments are, without a call each.
    args = [
        values[a.name] if type(a) is Ref else a if type(a) in _PLAIN else filled(a, values, dtype) for a in node.args
    ]
    kwargs = {key: filled(value, values, dtype) for key, value in node.kwargs} if node.kwargs else {}
    function = (functions and functions.get(node.op)) or _INSTEAD.get(node.op) or resolve(node.op)
    if ("batch_norm" in node.op or "instance_norm" in node.op) and isinstance(function, torch._ops.OpOverload):
        # In training mode the running statistics are written but not read: a graph must not change them.
        moved = {id(tensor) for tensor in normalizer_in_training(function, tuple(args), kwargs)}
        args = [None if id(value) in moved else value for value in args]
    value = function(*args, **kwargs)
    # What is created without a dtype has torch's default one.
    wrong = dtype is not None and isinstance(value, Tensor) and value.is_floating_point() and value.dtype != dtype
    return value.to(dtype) if wrong else value


def rounded(node: Node, value: Any) -> Any:
    """Return the result of a cast to few bits rounded to these bits, in the precision in which it was computed.

    >>> rounded(Node("w", "aten.to.dtype", dtype="bfloat16"), torch.tensor(1.001))
    tensor(1.)
    """
    short = getattr(torch, node.dtype, None) if node.op.split(".")[1:2] in (["to"], ["_to_copy"], ["type_as"]) else None
    if short is None or not isinstance(value, Tensor) or not short.is_floating_point or short.itemsize > 2:
        return value
    return value.to(short).to(value.dtype)


def run(
    graph: Graph,
    tensors: Mapping[str, Tensor],
    inputs: Sequence[Any],
    visit: Callable[[Node, Any, Mapping[str, Any]], Any] | None = None,
    dtype: torch.dtype | None = None,
    known: Mapping[str, Any] | None = None,
    moved: Collection[str] = (),
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> list[Any]:
    """Run the graph and return its outputs.

    Args:
        graph: what to run.
        tensors: parameters, buffers and constants by target name.
        inputs: the values of the input nodes, in order.
        visit: called as ``visit(node, value, values)`` after each computed node; what it returns, unless ``None``,
            replaces the value.
        dtype: run in this precision: takes the place of every floating dtype named in the graph.
        known: values of an earlier run on the same inputs, by node: what does not depend on a moved tensor is not
            computed again, nor what depends only on nodes for which ``visit`` returned their known value.
        moved: names of the tensors that differ from those of that run.
        functions: what replaces operations, by name.
    """
    values: dict[str, Any] = {}
    kept, changed = known or {}, set[str]()
    moving = graph.moving  # a weight that is cast to few bits is the rounded one
    supply = iter(inputs)
    dying = graph.last_uses
    outputs: list[Any] = []
    for node in graph:
        name = node.name
        if kept and (node.target in moved or not changed.isdisjoint(node.inputs())):
            changed.add(name)
        if name in kept and name not in changed:
            values[name] = kept[name]
        elif node.op == "input":
            values[name] = next(supply)
        elif node.op in SOURCES:
            values[name] = tensors[node.target]
        elif node.op == "output":
            outputs = [values[ref.name] for ref in node.args]
        else:
            value = call(node, values, dtype, functions)
            values[name] = value if dtype is None or name in moving else rounded(node, value)
        if visit is not None and node.op != "output" and not (name in kept and name not in changed):
            replaced = visit(node, values[name], values)
            if replaced is not None:
                values[name] = replaced
                changed.discard(name if replaced is kept.get(name) else "")
        for last in dying[name]:
            values.pop(last, None)
    return outputs
