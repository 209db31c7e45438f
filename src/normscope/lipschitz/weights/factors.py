"""How far a change of a weight moves the output of its own layer: the norm of ``dW -> dy`` at given inputs.

They are measured in one pass in float64, with room for its own rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.core.statement import statement
from normscope.graph.capture import Captured
from normscope.graph.interpreter import as_floating, run
from normscope.graph.interpreter import call as execute
from normscope.graph.ir import Graph, Node, Ref
from normscope.graph.recognise import name_of
from normscope.linalg.dense import largest_matrix_norm
from normscope.lipschitz.lower import euclidean, with_other_last_bits
from normscope.lipschitz.weights.uses import Use, Weights
from normscope.operators.normalizer import couples_samples
from normscope.operators.registry import bind


@dataclass(frozen=True, eq=False)
class Factor:
    """The linear map ``dc -> dy``, up to isometries: block matrices, or a diagonal."""

    blocks: Tensor | None = None  #: (groups, rows, columns): ``dy_g = blocks_g dc_g^T``; norm ``max_g ||blocks_g||_2``
    #: squared norms of the columns of a map whose columns are orthogonal; norm ``sqrt(max)``
    squares: Tensor | None = None

    def stacked(self, others: Sequence[Factor]) -> Factor:
        """Return the map of several samples stacked: rows one below the other."""
        items = (self, *others)
        if self.blocks is not None:
            return Factor(torch.cat([f.blocks for f in items if f.blocks is not None], 1))
        return Factor(None, torch.stack([f.squares for f in items if f.squares is not None]).sum(0))

    def centred(self) -> Factor:
        """Return the map followed by centring over rows: what batch statistics directly after it leave of it.

        The mean over rows of ``H dc^T`` is the mean row of H times ``dc^T``; of a bias nothing is left.
        """
        if self.blocks is not None:
            return Factor(self.blocks - self.blocks.mean(1, keepdim=True))
        return self if self.squares is None else Factor(None, torch.zeros_like(self.squares))

    def distance(self, other: Factor) -> float:
        """Return a bound on the norm of the difference of two maps of one shape."""
        if self.blocks is not None and other.blocks is not None:
            return euclidean(self.blocks - other.blocks)
        if self.squares is not None and other.squares is not None:
            return euclidean(self.squares.sqrt() - other.squares.sqrt())
        return math.inf

    @statement("normscope", "Proposition W-2", holds="the activations as given; the layer is affine in its weight")
    def norm(self) -> float:
        """Return the norm of the map, rounded up.

        ``||dW H||_F <= ||dW||_F ||H||_2`` with equality for a suitable ``dW`` of rank one; for a convolution H is the
        matrix of unfolded patches of each group.

        >>> h = torch.tensor([[[3.0, 0.0], [0.0, 4.0]]])
        >>> round(Factor(h).norm(), 9), round(Factor(None, torch.tensor([9.0, 16.0])).norm(), 9)
        (4.0, 4.0)
        """
        if self.squares is not None:
            top = float(self.squares.max()) if self.squares.numel() else 0.0
            return math.sqrt(max(top, 0.0)) * (1 + 1e-12)
        if self.blocks is None or self.blocks.numel() == 0:
            return 0.0
        return largest_matrix_norm(self.blocks).upper


def factor(node: Node, use: Use, values: Mapping[str, Any]) -> Factor | None:
    """Return the map from a change of ``c(W)`` to a change of ``y`` at one operation.

    Returns:
        The map, or ``None`` where the operation is not known to be affine in the argument.
    """
    if use.kind == "matrix":
        return _matrix(node, use, values)
    if use.kind == "convolution":
        return _convolution(node, use, values)
    return _diagonal(node, use, values) if use.kind == "diagonal" else None


def _bound(node: Node, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operation by name, references replaced by values."""
    arguments = bind(node.op, list(node.args), dict(node.kwargs))
    return {k: values[v.name] if isinstance(v, Ref) else v for k, v in arguments.items()}


def _matrix(node: Node, use: Use, values: Mapping[str, Any]) -> Factor | None:
    """Return the activations a matrix meets, one row for each vector."""
    arguments = _bound(node, values)
    op = name_of(node)
    if op == "linear":
        return Factor(_rows(arguments["input"]).unsqueeze(0)) if use.argument == "weight" else None
    names = list(arguments)
    names = names[1:3] if op in ("addmm", "baddbmm") else names[:2]
    if use.argument not in names:
        return None
    other = arguments[names[1 - names.index(use.argument)]]
    weight = arguments[use.argument]
    scale = abs(float(arguments.get("alpha") or 1.0)) if op in ("addmm", "baddbmm") else 1.0
    left = use.argument == names[0]  # W h: the columns of h are the vectors
    if weight.ndim < 2 or other.ndim < 2:  # W h and h W have one row; a vector W has one for each row of h
        return Factor(_rows(other.mT if left and other.ndim > 1 else other).unsqueeze(0))
    rows = other.mT if left else other
    return Factor(_grouped(rows, tuple(weight.shape[:-2])) * scale)


def _rows(x: Tensor) -> Tensor:
    """Return the slices along the last axis as rows of a matrix."""
    return x.detach().to(torch.float64).reshape(-1, x.shape[-1])


def _grouped(rows: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Return (groups, rows, columns): one group for each matrix of a batch, samples that share one put together."""
    full = torch.broadcast_shapes(rows.shape[:-2], batch)
    x = rows.detach().to(torch.float64).expand(*full, *rows.shape[-2:])
    padded = (1,) * (len(full) - len(batch)) + batch
    own = [i for i, n in enumerate(padded) if n > 1]
    shared = [i for i, n in enumerate(padded) if n == 1]
    x = x.permute(*own, *shared, len(full), len(full) + 1)
    return x.reshape(math.prod(padded), -1, rows.shape[-1])


def _convolution(node: Node, use: Use, values: Mapping[str, Any]) -> Factor:
    """Return the unfolded patches of each group: (groups, positions, channels x kernel)."""
    arguments = _bound(node, values)
    x, weight = arguments["input"].detach().to(torch.float64), arguments["weight"]
    dims, groups = weight.ndim - 2, int(arguments.get("groups") or 1)
    x = x.unsqueeze(0) if x.ndim == dims + 1 else x
    transposed = "transpose" in name_of(node) or bool(arguments.get("transposed"))
    parts = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    parts = parts.transpose(0, 1).reshape(groups * x.shape[0], -1, *x.shape[2:])
    patches = _patches(node, parts, weight, arguments, transposed)
    columns = patches.shape[1]
    return Factor(patches.reshape(groups, x.shape[0], columns, -1).transpose(2, 3).reshape(groups, -1, columns))


def _patches(node: Node, x: Tensor, weight: Tensor, arguments: dict[str, Any], transposed: bool) -> Tensor:
    """Return (samples, channels x kernel, positions): what every position of the output reads."""
    kernel, channels = tuple(weight.shape[2:]), x.shape[1]
    padding = arguments.get("padding")
    if len(kernel) == 2 and not transposed and not isinstance(padding, str):
        settings = {k: _pair(arguments.get(k), d) for k, d in (("dilation", 1), ("padding", 0), ("stride", 1))}
        return torch.nn.functional.unfold(x, kernel, **settings)
    size = channels * math.prod(kernel)
    unit = torch.eye(size, dtype=torch.float64, device=x.device).reshape(size, channels, *kernel)
    if transposed:
        unit = unit.transpose(0, 1)  # the weight of a transposed convolution has its input channels first
    given = arguments | {"input": x, "weight": unit.contiguous(), "bias": None, "groups": 1}
    plain = Node(node.name, node.op, tuple(given[name] for name in bind(node.op, [], {})))
    return execute(plain, {}, torch.float64).flatten(2)


def _pair(value: Any, default: int) -> tuple[int, int]:
    """Return a setting of two axes."""
    items = [default] if value is None else (list(value) if isinstance(value, list | tuple) else [value])
    return (items[0], items[-1])


def _diagonal(node: Node, use: Use, values: Mapping[str, Any]) -> Factor:
    """Return the squares of an argument each of whose entries moves outputs of its own.

    ``J^T J`` is diagonal then, so that ``J^T J 1`` holds the squares.
    """
    constant = values[use.constant]

    def function(c: Tensor) -> Tensor:
        given = {n: values[n].detach() if isinstance(values[n], Tensor) else values[n] for n in node.inputs()}
        out = execute(node, given | {use.constant: c}, torch.float64)
        return out[0] if isinstance(out, tuple | list) else out

    zero = torch.zeros(constant.shape, dtype=torch.float64, device=constant.device)
    with torch.no_grad():
        coefficients = function(torch.ones_like(zero)) - function(zero)
    with torch.enable_grad():
        point = zero.requires_grad_(True)
        (squares,) = torch.autograd.grad(function(point), point, coefficients, allow_unused=True)
    return Factor(None, torch.zeros(constant.shape, dtype=torch.float64) if squares is None else squares.detach())


def activation(node: Node, use: Use, values: Mapping[str, Any]) -> float | None:
    """Return ``||h_{i-1}||_2``, the norm of the whole tensor a matrix or kernel meets, or ``None`` for other uses."""
    if use.kind not in ("matrix", "convolution"):
        return None
    arguments = _bound(node, values)
    names = [n for n, v in arguments.items() if isinstance(v, Tensor) and v.is_floating_point() and n != use.argument]
    name = "input" if "input" in names else next(iter([n for n in names if n not in ("bias", "self")] or names))
    return euclidean(arguments[name].detach().to(torch.float64).flatten())


#: Most numbers of the stacked map of one use that are kept.
LARGEST_STACK = 2**24
#: Factor of the change under different last bits that bounds the rounding.
ROOM = 8.0


@dataclass(eq=False)
class Met:
    """What one use of a weight met at one input."""

    factor: Factor  #: the map from a change of the weight to a change of the result
    norm: float = math.inf  #: its norm, rounded up; filled in when it is measured
    rounding: float = 0.0  #: how far the map in exact arithmetic may be from it
    activation: float | None = None  #: ``||h_{i-1}||`` of the tensor a matrix or kernel meets


@dataclass(eq=False)
class Sample:
    """What every use met at one input, and the norm of that input."""

    met: dict[int, Met] = field(default_factory=dict)
    input_norm: float = 0.0


def meet(captured: Captured, weights: Weights, inputs: Sequence[Tensor]) -> Sample:
    """Return what every use of a weight meets at one input."""
    tensors = captured.tensors_as(torch.float64)
    given = [as_floating(t, torch.float64) for t in inputs]
    at: dict[str, list[int]] = {}
    for index, use in enumerate(weights.uses):
        if use.kind in ("matrix", "convolution", "diagonal"):
            at.setdefault(use.node, []).append(index)
    blocks = {b.name for b in weights.program.blocks}
    sample, squares = Sample(), [0.0]

    def first(node: Node, value: Any, values: Mapping[str, Any]) -> None:
        if node.name in blocks:
            squares.append(float(value.square().sum()))
        for index in at.get(node.name, ()):
            found = factor(node, weights.uses[index], values)
            if found is not None:
                sample.met[index] = Met(found, activation=activation(node, weights.uses[index], values))

    def again(node: Node, value: Any, values: Mapping[str, Any]) -> Any:
        for index in at.get(node.name, ()):
            found = factor(node, weights.uses[index], values)
            if found is not None and index in sample.met:
                met = sample.met[index]
                met.rounding = ROOM * met.factor.distance(found)
        return with_other_last_bits(value, 1)[0] if node.name in blocks else None

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        run(captured.graph, tensors, given, first, torch.float64)
        run(captured.graph, tensors, given, again, torch.float64)
    for met in sample.met.values():
        met.norm = (met.factor.norm() + met.rounding) * (1 + 1e-12)
    sample.input_norm = math.sqrt(sum(squares)) * (1 + 1e-12)
    return sample


def stacked_norm(samples: Sequence[Met], *, centred: bool = False) -> float:
    """Return the norm of the map of several samples stacked into one input, rounded up.

    ``||H||_2`` of all rows together where they are few enough, otherwise the root of the sum of squares.

    >>> one = Met(Factor(torch.tensor([[[3.0, 4.0]]])))
    >>> round(stacked_norm([one, one]), 9), stacked_norm([one, one], centred=True)
    (7.071067812, 0.0)
    """
    first, rest = samples[0].factor, [s.factor for s in samples[1:]]
    size = sum(s.factor.blocks.numel() for s in samples if s.factor.blocks is not None)
    if size > LARGEST_STACK:
        return math.sqrt(sum(s.norm**2 for s in samples)) * (1 + 1e-12)
    whole = first.stacked(rest)
    rounding = math.sqrt(sum(s.rounding**2 for s in samples))
    return ((whole.centred() if centred else whole).norm() + rounding) * (1 + 1e-12)


def before_batch_statistics(graph: Graph, weights: Weights, use: Use) -> bool:
    """Return whether nothing but a normalizer by batch statistics, channel by channel, reads the result of a use."""
    node, users = graph[use.node], graph.users()[use.node]
    channels_last = node.shape is None or len(node.shape) != 2
    if use.kind == "matrix" and channels_last:
        return False
    for site in weights.program.sites:
        direct = site.source == use.node and users == [site.node] and not site.written_out
        if direct and couples_samples(site.kind) and site.spread is not None and 0 in site.spread.axes:
            return use.kind in ("matrix", "convolution", "diagonal")
    return False
