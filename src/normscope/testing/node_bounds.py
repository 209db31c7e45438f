"""Compare every tensor inside a network with the range and the constant that the analysis claims."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from normscope.graph.ir import Node
from normscope.lipschitz.composition import Composition
from normscope.lipschitz.lower import EndToEnd
from normscope.operators.expression import Expr
from normscope.operators.program import ProgramBuilder

#: Relative error of a value or quotient evaluated in float64.
EVALUATION = 1e-9


def tensors_inside(end: EndToEnd, points: Tensor) -> list[dict[str, Tensor]]:
    """Return the tensors of every node of a network at each point (flattened blocks, one per row)."""
    found: list[dict[str, Tensor]] = []
    for x in points:
        values: dict[str, Tensor] = {}

        def look(node: Node, value: object, before: object, values: dict[str, Tensor] = values) -> None:
            values |= dict(_parts(node.name, value))

        with torch.no_grad():
            end.watch(x, look)
        found.append(values)
    return found


def _parts(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the floating tensors of a node, numbered if there are several."""
    if isinstance(value, Tensor) and value.is_floating_point():
        yield name, value
    elif isinstance(value, tuple | list):
        for i, item in enumerate(value):
            yield from _parts(f"{name}[{i}]", item)


def node_violations(
    walk: ProgramBuilder, composition: Composition, points: Tensor, tensors: Sequence[dict[str, Tensor]]
) -> list[str]:
    """Return a sentence for every node whose values leave its range, or whose changes exceed its constant.

    ``tensors`` are what :func:`tensors_inside` gives for the points, which lie in the domain of the composition.
    """
    blocks = torch.split(points, [math.prod(b.shape) for b in walk.program.blocks], 1)
    distances = [(b[:, None] - b[None]).norm(dim=-1) for b in blocks]
    found = []
    for name, result in walk.exprs.items():
        for label, expr in _expressions(name, result):
            values = [t[label] for t in tensors if label in t]
            if len(values) != len(tensors) or not all(tuple(v.shape) == expr.shape for v in values):
                if values and tuple(values[0].shape) != expr.shape:
                    found.append(f"{label} has shape {tuple(values[0].shape)}, not {expr.shape}")
                continue
            stacked = torch.stack(values)
            if stacked.numel() and bool(stacked.isfinite().all()):
                found += [f"{label} ({_kind(expr)}): {text}" for text in _outside(composition, expr, stacked)]
                size = _largest_below(walk, name, tensors)
                faster = _faster(composition, expr, stacked, distances, size)
                found += [f"{label} ({_kind(expr)}): {text}" for text in faster]
    return found


def _expressions(name: str, result: object) -> Iterator[tuple[str, Expr]]:
    """Yield the expressions of a node, numbered like its values."""
    if isinstance(result, Expr):
        yield name, result
    elif isinstance(result, list):
        for i, item in enumerate(result):
            yield from _expressions(f"{name}[{i}]", item)


def _kind(expr: Expr) -> str:
    """Return what an expression is, for messages."""
    return type(expr.atom).__name__ if expr.op is None else expr.op.kind


def _outside(composition: Composition, expr: Expr, values: Tensor) -> Iterator[str]:
    """Yield where values leave the range of an expression."""
    inside = composition.range(expr)
    top = float(values.abs().max())
    slack = EVALUATION * top
    flat = values.reshape(len(values), -1)
    rows = float(values.norm(dim=-1).max()) if values.ndim > 1 else top
    if float(values.min()) < inside.low - slack:
        yield f"smallest entry {float(values.min())!r} below {inside.low!r}"
    if float(values.max()) > inside.high + slack:
        yield f"largest entry {float(values.max())!r} above {inside.high!r}"
    if rows > inside.row * (1 + EVALUATION):
        yield f"row norm {rows!r} above {inside.row!r}"
    if float(flat.norm(dim=1).max()) > inside.norm * (1 + EVALUATION):
        yield f"norm {float(flat.norm(dim=1).max())!r} above {inside.norm!r}"


def _largest_below(walk: ProgramBuilder, name: str, tensors: Sequence[dict[str, Tensor]]) -> float:
    """Return the largest norm of what a node reads: rounding errors may be relative to that."""
    read = [t[n] for n in walk.graph[name].inputs() for t in tensors if n in t]
    return max((float(v.norm()) for v in read if v.numel()), default=0.0)


def _faster(
    composition: Composition, expr: Expr, values: Tensor, distances: Sequence[Tensor], below: float
) -> Iterator[str]:
    """Yield where a pair of points changes an expression by more than its constants allow."""
    logs = composition.lipschitz(expr).certified
    if max(logs) == math.inf:
        return
    # ||dz|| <= sum_i L_i ||dx_i||
    allowed = torch.zeros_like(distances[0])
    for log, distance in zip(logs, distances, strict=False):
        allowed = allowed + math.exp(min(log, 700.0)) * distance
    flat = values.reshape(len(values), -1)
    change = (flat[:, None] - flat[None]).norm(dim=-1)
    size = flat.norm(dim=1)
    noise = 1e-13 * (size[:, None] + size[None] + below)
    excess = change * (1 - EVALUATION) - noise - allowed
    if bool((excess > 0).any()):
        i, j = divmod(int(excess.argmax()), len(flat))
        yield f"pair ({i}, {j}) changes it by {float(change[i, j])!r}, allowed {float(allowed[i, j])!r}"
