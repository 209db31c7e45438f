"""Exact at a point: the norm of the Jacobian of the output in a weight, and in the output of its layer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.core.statement import statement
from normscope.graph.capture import Captured
from normscope.graph.interpreter import as_floating, run
from normscope.graph.ir import Node
from normscope.linalg.dense import EIGENVALUES_UP_TO
from normscope.linalg.lanczos import lanczos_norm
from normscope.lipschitz.cost import forward_cost
from normscope.lipschitz.lower import (
    Function,
    attained_at,
    euclidean,
    jacobian_map,
    jacobian_norm,
    kept_outputs,
    with_other_last_bits,
)
from normscope.lipschitz.weights.factors import factor
from normscope.lipschitz.weights.uses import Use, Weights
from normscope.operators.linear_map import LinearMap, pulled

#: Most numbers of all rows of the Jacobian that are kept at once.
LARGEST_ROWS = 2**25
#: Multiplications up to which each weight is measured by a Lanczos run of its own, and steps of one run for all.
AFFORDABLE, JOINT_STEPS = 3e11, 10
#: What cannot be distinguished from zero: this much of ``||dh/dy||``.
UNRESOLVED = 1e-12
#: About how many products with the Jacobian of one weight Lanczos takes, in backward passes.
PRODUCTS = 40
#: Kinds of uses whose results are tensors of the graph.
VISIBLE = {"matrix", "convolution", "diagonal"}
#: Backward passes made at once.
AT_ONCE = 64


@dataclass(frozen=True)
class Norms:
    """Norms of Jacobians at one input."""

    weights: tuple[float, ...]  #: ``||dh/dW||`` for each weight, less rounding
    #: ``||dh/dy||`` for each weight, y the stacked outputs of its uses; ``None`` where y is not a tensor of the graph
    outputs: tuple[float | None, ...]
    jointly: float | None  #: ``||dh/d(W_1, ..., W_n)||`` where all rows of the Jacobian were formed, else ``None``
    #: largest relative residual of a singular pair; infinite where all weights share one direction of the output, whose
    #: image is attained but need not be the largest
    residual: float


class Network:
    """The output of a network as a function of its weights, at one input, in float64; run once to see the weights.

    Attributes:
        leaves: the weights.
        shapes: the shape of the result of each operation that uses one.
        vectors: for each dense layer used once on one vector, that vector.
        visible: for each weight the operations that use it, or ``None`` where one is hidden inside a larger one.
        rows: the number of outputs.
    """

    def __init__(self, captured: Captured, weights: Weights, inputs: Sequence[Tensor]) -> None:
        self.captured, self.weights = captured, weights
        self.inputs = [as_floating(t, torch.float64) for t in inputs]
        self.tensors = captured.tensors_as(torch.float64)
        self._leaf = {node: i for i, leaf in enumerate(weights.leaves) for node in leaf.nodes}
        self._keep = kept_outputs(captured.graph, weights.program)
        own = [[weights.uses[i] for i in weights.of(leaf)] for leaf in range(len(weights.leaves))]
        dense = {i for i, uses in enumerate(own) if [(u.kind, u.copies) for u in uses] == [("matrix", 1.0)]}
        at: dict[str, list[Use]] = {}
        for use in (u for uses in own for u in uses):
            at.setdefault(use.node, []).append(use)
        self.visible = [
            tuple(dict.fromkeys(u.node for u in uses)) if {u.kind for u in uses} <= VISIBLE else None for uses in own
        ]
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.vectors: dict[int, Tensor] = {}
        found: dict[int, Tensor] = {}

        def visit(node: Node, value: Any, values: Mapping[str, Any]) -> None:
            if node.name in self._leaf:
                found.setdefault(self._leaf[node.name], value.detach())
            for use in at.get(node.name, ()):
                self.shapes[node.name] = tuple((value[0] if isinstance(value, tuple | list) else value).shape)
                met = factor(node, use, values) if use.leaf in dense else None
                if met is not None and met.blocks is not None and met.blocks.shape[:2] == (1, 1):
                    self.vectors[use.leaf] = met.blocks.flatten()

        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            outputs = run(captured.graph, self.tensors, self.inputs, visit, torch.float64)
        self.leaves = [found[i] for i in range(len(own))]
        self.rows = sum(outputs[i].numel() for i in self._keep)

    def __call__(self, leaves: Mapping[int, Tensor], shifts: Mapping[str, Tensor]) -> Tensor:
        """Run with some weights replaced, and shifts added to the outputs of some operations."""

        def visit(node: Node, value: Any, values: Mapping[str, Any]) -> Any:
            index = self._leaf.get(node.name)
            if index is not None and index in leaves:
                leaf = leaves[index]
                # What is computed from other weights must still move with them.
                return value + (leaf - leaf.detach()) if self.weights.leaves[index].effective else leaf
            shift = shifts.get(node.name)
            if shift is None:
                return None
            return [value[0] + shift, *value[1:]] if isinstance(value, tuple | list) else value + shift

        with sdpa_kernel(SDPBackend.MATH):
            outputs = run(self.captured.graph, self.tensors, self.inputs, visit, torch.float64)
        return torch.cat([outputs[i].flatten() for i in self._keep])


@statement("normscope", "Proposition W-1", holds="a dense layer used once, on one vector")
def dense_weight_norm(output_norm: float, activation: Tensor) -> float:
    """Return ``||dh/dW||_{F->2} = ||J_{y->h}||_2 ||h_{i-1}||_2`` for ``y = W h_{i-1}``.

    ``dh = J dW h_{i-1}`` has norm at most ``||J|| ||dW||_F ||h_{i-1}||``, with equality for
    ``dW = v h_{i-1}^T`` where v is the leading singular vector of J.

    Args:
        output_norm: ``||J_{y->h}||_2``.
        activation: ``h_{i-1}``, the vector the weight meets.

    >>> dense_weight_norm(2.0, torch.tensor([3.0, 4.0]))
    10.0
    """
    return output_norm * euclidean(activation.detach().to(torch.float64).flatten())


def norms_at(captured: Captured, weights: Weights, inputs: Sequence[Tensor], *, seed: int = 0) -> Norms:
    """Return the norms of the Jacobians in every weight, and in the output of every use, at one input.

    Where the output is small every row of the Jacobian is formed, one backward pass each for all weights at once, and
    the norms are those of its blocks. Otherwise each weight is measured matrix-free by Lanczos; and where that
    is too much work, one run for all weights together finds a direction u of the output, and each weight gets the
    ``||J_i^T u|| <= ||J_i||`` attained there.
    """
    network = Network(captured, weights, inputs)
    leaves, rows = network.leaves, network.rows
    size = sum(t.numel() for t in leaves) + sum(math.prod(s) for s in network.shapes.values())
    if rows <= PRODUCTS * max(1, len(leaves)) and rows * size <= LARGEST_ROWS:
        return _lowered(*(_by_rows(network, at) for at in (leaves, [with_other_last_bits(t, 1)[0] for t in leaves])))
    walked = next((b.shape[0] for b in weights.program.blocks if b.shape), 1)  # the batch size of the program
    samples = max([t.shape[0] for t in inputs if t.ndim] or [1]) / max(1, walked)
    work = forward_cost(weights.program) * samples * 6 * PRODUCTS * 1.5 * len(leaves)
    return _matrix_free(network, seed) if work <= AFFORDABLE else _together(network, seed)


def _by_rows(network: Network, leaves: list[Tensor]) -> Norms:
    """Form all rows of the Jacobian and take the norms of its blocks."""
    out, points, shifts = _traced(network, leaves)
    matrices = _jacobian_rows(out, [*points, *shifts.values()])
    by_name = dict(zip(shifts, matrices[len(points) :], strict=True))
    residuals: list[float] = []

    def norm(parts: Sequence[Tensor]) -> float:
        value, residual = _top(parts[0] if len(parts) == 1 else torch.cat(list(parts), 1))
        residuals.append(residual)
        return value

    weights = tuple(norm([m]) for m in matrices[: len(points)])
    memo = {names: norm([by_name[n] for n in names]) for names in dict.fromkeys(network.visible) if names}
    outputs = tuple(None if item is None else memo[item] for item in network.visible)
    jointly = norm(matrices[: len(points)]) if points else 0.0
    return Norms(weights, outputs, jointly, max(residuals, default=0.0))


def _traced(network: Network, leaves: list[Tensor]) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """Return the output as a function of the weights and of shifts of the results of their uses, and these two."""
    points = [t.detach().clone().requires_grad_(True) for t in leaves]
    names = sorted({name for item in network.visible if item is not None for name in item})
    shifts = {n: _zeros(network.shapes[n], leaves).requires_grad_(True) for n in names}
    with torch.enable_grad():
        return network(dict(enumerate(points)), shifts), points, shifts


def _zeros(shape: Sequence[int], leaves: list[Tensor]) -> Tensor:
    return torch.zeros(tuple(shape), dtype=torch.float64, device=leaves[0].device if leaves else None)


def _jacobian_rows(out: Tensor, targets: Sequence[Tensor]) -> list[Tensor]:
    """Return the Jacobian of a vector in each tensor, (entries, numbers), several backward passes at a time."""
    found = [target.detach().new_zeros(out.numel(), target.numel()) for target in targets]
    for start in range(0, out.numel() if out.requires_grad else 0, AT_ONCE):
        units = torch.eye(out.numel(), dtype=out.dtype, device=out.device)[start : start + AT_ONCE]
        for rows, piece in zip(found, pulled(out, targets, units), strict=True):
            rows[start : start + AT_ONCE] = piece
    return found


def _top(matrix: Tensor) -> tuple[float, float]:
    """Return the norm of a matrix and the relative residual of its leading singular pair."""
    if matrix.numel() == 0 or not bool(matrix.any()):
        return 0.0, 0.0
    if not bool(torch.isfinite(matrix).all()):
        return math.nan, math.inf
    small = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
    if small.shape[0] <= EIGENVALUES_UP_TO:
        vector = torch.linalg.eigh(small @ small.mT)[1][:, -1]
    else:
        run = lanczos_norm(LinearMap.from_matrix(matrix), tolerance=1e-13, max_steps=200, apply_error=0.0)
        vector = run.vector.reshape(-1)
    image = small.mT @ vector
    square = float(image.square().sum())
    residual = float((small @ image - square * vector).norm()) / square if square > 0 else 0.0
    return math.sqrt(square) / float(vector.norm()), residual


def _lowered(first: Norms, again: Norms) -> Norms:
    """Return norms less what rounding may have added, seen in the same computation with different last bits."""

    def lower(a: float, b: float, scale: float) -> float:
        if not math.isfinite(a) or not math.isfinite(b):
            return 0.0
        noise = abs(a - b) if abs(a - b) <= 1e-3 * max(a, b) else 0.0  # otherwise a kink lies between, not rounding
        return max(0.0, min(a, b) * (1 - 1e-10) - 4.0 * noise - UNRESOLVED * scale)

    pairs = list(zip(first.outputs, again.outputs, strict=True))
    outputs = tuple(None if a is None or b is None else lower(a, b, 0.0) for a, b in pairs)
    weights = tuple(
        lower(a, b, 0.0 if c is None else c)
        for a, b, c in zip(first.weights, again.weights, first.outputs, strict=True)
    )
    jointly = None if first.jointly is None or again.jointly is None else lower(first.jointly, again.jointly, 0.0)
    return Norms(weights, outputs, jointly, max(first.residual, again.residual))


def _matrix_free(network: Network, seed: int) -> Norms:
    """Measure each weight by Lanczos on products with its Jacobian, or by the closed form where it has one."""
    weights: list[float] = []
    outputs: list[float | None] = []
    residual = 0.0
    memo: dict[tuple[str, ...], tuple[float, float]] = {}
    for index, (leaf, names) in enumerate(zip(network.leaves, network.visible, strict=True)):
        output = None
        if names is not None:
            if names not in memo:  # a weight and its bias share their operation
                memo[names] = _lanczos(*_of_outputs(network, names), seed)
            output, error = memo[names]
            residual = max(residual, error)
        outputs.append(output)
        if output is not None and index in network.vectors:
            weights.append(dense_weight_norm(output, network.vectors[index]) * (1 - 1e-12))
            continue
        value, error = _lanczos(_of_weight(network, index, leaf), leaf.flatten(), seed)
        residual = max(residual, error)
        weights.append(max(0.0, value - UNRESOLVED * (output or 0.0)))
    return Norms(tuple(weights), tuple(outputs), None, residual)


def _together(network: Network, seed: int) -> Norms:
    """Measure all weights by one direction of the output, the one all weights together move most."""
    sizes = [t.numel() for t in network.leaves]

    def of_all(w: Tensor) -> Tensor:
        parts = [p.reshape(t.shape) for p, t in zip(torch.split(w, sizes), network.leaves, strict=True)]
        return network(dict(enumerate(parts)), {})

    point = torch.cat([t.flatten() for t in network.leaves])
    mapping = jacobian_map(of_all, point)
    try:
        found = lanczos_norm(mapping, tolerance=1e-3, max_steps=JOINT_STEPS, seed=seed, apply_error=0.0)
    except ValueError:  # beyond the float range
        return Norms((0.0,) * len(sizes), tuple(None if v is None else 0.0 for v in network.visible), None, math.inf)
    u = found.vector.reshape(mapping.range_shape if mapping.domain_dimension > mapping.range_dimension else -1)
    if mapping.domain_dimension <= mapping.range_dimension:
        u = mapping.apply(u)
    u = u / (euclidean(u) or 1.0)
    moved = [with_other_last_bits(t, 1)[0] for t in network.leaves]
    return _lowered(*(_pulled_back(network, leaves, u) for leaves in (network.leaves, moved)))


def _pulled_back(network: Network, leaves: list[Tensor], u: Tensor) -> Norms:
    """Return the norms of ``J_i^T u`` for one direction u of the output."""
    out, points, shifts = _traced(network, leaves)
    grads = torch.autograd.grad(out, [*points, *shifts.values()], u, allow_unused=True)
    norms = [0.0 if g is None else euclidean(g.detach()) for g in grads]
    by_name = dict(zip(shifts, norms[len(points) :], strict=True))
    outputs = tuple(None if v is None else math.hypot(*(by_name[n] for n in v)) for v in network.visible)
    return Norms(tuple(norms[: len(points)]), outputs, math.hypot(*norms[: len(points)]), math.inf)


def _of_weight(network: Network, index: int, leaf: Tensor) -> Function:
    """Return the output as a function of one weight, flattened."""
    return lambda w: network({index: w.reshape(leaf.shape)}, {})


def _of_outputs(network: Network, names: tuple[str, ...]) -> tuple[Function, Tensor]:
    """Return the output as a function of shifts of some operations' results, and the zero shift."""
    shapes = [network.shapes[n] for n in names]
    sizes = [math.prod(s) for s in shapes]

    def function(shift: Tensor) -> Tensor:
        parts = torch.split(shift, sizes)
        return network({}, {n: p.reshape(s) for n, p, s in zip(names, parts, shapes, strict=True)})

    return function, _zeros((sum(sizes),), network.leaves)


def _lanczos(function: Function, point: Tensor, seed: int) -> tuple[float, float]:
    """Return an attained value of the norm of a Jacobian and the relative residual of its singular pair."""
    if point.numel() == 0:
        return 0.0, 0.0
    value, vector = jacobian_norm(function, point, steps=40, tolerance=1e-6, seed=seed)
    if not 0.0 < value < math.inf:
        return 0.0, 0.0 if value == 0.0 else math.inf
    mapping = jacobian_map(function, point)
    image = mapping.apply(vector)
    square = euclidean(image) ** 2
    residual = euclidean(mapping.adjoint(image) - square * vector) / square if square > 0 else 0.0
    return attained_at(function, point, vector), residual
