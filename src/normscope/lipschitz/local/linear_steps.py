"""Linear operations applied to many tangents at once, and bounds on their norm and rounding error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from normscope.core.environment import quiet_vmap
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF, gamma
from normscope.lipschitz.assembly_error import Forming, absolute, forming_error
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.convolution import convolved_stack
from normscope.operators.expression import Expr, between, evaluate
from normscope.operators.linear_map import LinearMap, batched

T = TypeVar("T")
#: Largest number of entries of the matrix of a segment between two nonlinear operations.
LARGEST_SEGMENT = 2**18
#: Roundings of a weight relative to that of the network, whose channels may have been balanced.
WEIGHT_ROUNDINGS = 3
#: Operations without weights.
WEIGHTLESS = ("isometry", "embedding", "contraction", "sum", "concat")


@dataclass(frozen=True)
class OperationBounds:
    """Bounds of one linear operation."""

    norm: float  #: bound on its spectral norm
    mass: float  #: bound on the spectral norm of its absolute coefficients
    roundings: int  #: largest number of roundings of an entry of the result

    def error(self, error: float, size: float) -> float:
        """Return the error of the result, from that of the operand and the operand's norm."""
        own = gamma(self.roundings) * self.mass * size if self.roundings else 0.0
        return (self.norm * error + own) * (1 + 8 * UNIT_ROUNDOFF)


@dataclass(frozen=True)
class SegmentMatrix:
    """A linear segment as one matrix."""

    source: Expr  #: the atom it starts from
    matrix: Tensor  #: (entries of the result, entries of the atom)
    step: OperationBounds  #: its bounds; the error of forming the matrix is part of its roundings


class Steps:
    """Bounds of every linear operation of a network, each found once.

    Args:
        norms: where certified norms come from.
    """

    def __init__(self, norms: SegmentNorms) -> None:
        self.norms = norms
        self._once: dict[tuple[str, int], Any] = {}
        self.probing = False  # set once products of norms turn out too coarse

    def once(self, what: str, expr: Expr, make: Callable[[], T]) -> T:
        """Return a quantity that depends on an operation alone, computed on first use.

        Args:
            what: its name.
            expr: the operation.
            make: makes it.
        """
        key = (what, expr.id)
        if key not in self._once:
            self._once[key] = make()
        found: T = self._once[key]
        return found

    def of(self, expr: Expr) -> OperationBounds:
        """Return the bounds of an operation on one operand, or of a sum or concatenation (norm one in each)."""
        return self.once("step", expr, lambda: self._measured(expr))

    def reach(self, expr: Expr) -> float:
        """Return a bound on the norm of the linear map to an expression from the one atom it depends on."""
        source = source_of(expr)
        return self.once("reach", expr, lambda: self._reach(source, expr, forming_error(source, expr)))

    def _reach(self, source: Expr, expr: Expr, forming: Forming) -> float:
        return _exp(self.norms.norm(source, expr).log_upper) + _weight_error(source, expr, forming)

    def segment(self, expr: Expr) -> SegmentMatrix | None:
        """Return the linear map to an expression from the one atom it depends on as a matrix, if that is small."""
        return self.once("segment", expr, lambda: self._formed(expr))

    def _formed(self, expr: Expr) -> SegmentMatrix | None:
        if expr.op is None or len(expr.atoms) != 1:
            return None
        source = source_of(expr)
        if source.numel * expr.numel > LARGEST_SEGMENT or any(not e.inputs for e in between(source, expr)):
            return None
        mapping = LinearMap.from_function(evaluate(source, expr), source.shape, expr.shape, dtype=torch.float64)
        forming = forming_error(source, expr, adjoint=True)
        slack = _exp(forming.log_total) + _weight_error(source, expr, forming)
        norm = self._reach(source, expr, forming)
        matrix = mapping.matrix().contiguous()
        mass = float(matrix.abs().sum(0).max() * matrix.abs().sum(1).max()) ** 0.5 if matrix.numel() else 0.0
        # One product with the matrix, and the matrix is not quite the segment: both are errors relative to a row.
        count = source.numel + 1
        own = gamma(count) * mass * 1.01 + slack
        return SegmentMatrix(source, matrix, OperationBounds(norm, own / gamma(count), count))

    def _measured(self, expr: Expr) -> OperationBounds:
        if expr.op is None or not expr.inputs:
            return OperationBounds(0.0, 0.0, 0)
        if len(expr.inputs) > 1:
            if expr.op.kind == "sum":
                return OperationBounds(1.0, 1.0, len(expr.inputs) - 1)
            return OperationBounds(1.0, 1.0, 0) if expr.op.kind == "concat" else OperationBounds(math.inf, math.inf, 0)
        log_mass, roundings = absolute(expr.op, expr)
        log_norm = log_mass  # all that is known about a constant, which depends on no atom
        if expr.atoms:
            log_norm = min(log_mass, self.norms.norm(expr.inputs[0], expr).log_upper)
        norm, mass = _exp(log_norm), _exp(log_mass)
        if expr.op.kind in WEIGHTLESS:
            return OperationBounds(norm, mass, roundings)
        return OperationBounds(norm + gamma(WEIGHT_ROUNDINGS) * mass, mass, roundings + WEIGHT_ROUNDINGS)


def source_of(expr: Expr) -> Expr:
    """Return the one atom that an expression depends on."""
    while expr.op is not None:
        expr = next(i for i in expr.inputs if i.atoms)
    return expr


def _weight_error(source: Expr, expr: Expr, forming: Forming) -> float:
    """Return a bound on the error of a segment by the rounding of its weights."""
    count = sum(e.op is not None and e.op.kind not in WEIGHTLESS for e in between(source, expr))
    return gamma(WEIGHT_ROUNDINGS * count) * 1.01 * _exp(forming.log_mass) if count else 0.0


def _exp(log: float) -> float:
    return math.inf if log > 700 else math.exp(log) * (1 + 1e-12)


def apply(expr: Expr, operands: list[Tensor]) -> Tensor:
    """Return a linear operation applied to stacks of tensors: one result for each place of the stacks.

    >>> from normscope.operators.expression import LinearOp, atom_expr, linear
    >>> x = atom_expr(None, (2,))
    >>> apply(linear(LinearOp("generic", lambda z: 2 * z), [x], (2,)), [torch.ones(3, 2)]).shape
    torch.Size([3, 2])
    """
    op, count = expr.op, len(operands[0]) if operands else 0
    if op is None:
        raise ValueError("an atom is not an operation")
    if len(operands) == 1:
        z = operands[0]
        if op.data.get("reshape"):
            return z.reshape(count, *expr.shape)
        if op.kind == "matrix" and op.data["axis"] == -1 and op.data["weight"].ndim == 2:
            return op.apply(z)
        if op.kind == "convolution" and len(expr.shape) == op.data["weight"].ndim:
            return convolved_stack(op.data, z.flatten(0, 1)).reshape(count, *expr.shape)
        if op.kind == "diagonal" and expr.inputs[0].shape == expr.shape:
            return op.apply(z)
        return batched(op.apply, None, z).reshape(count, *expr.shape)
    if op.kind == "sum":
        return op.apply(*operands)
    if not operands:
        raise ValueError("a constant has no tangents")
    with quiet_vmap():
        return torch.func.vmap(op.apply)(*operands).reshape(count, *expr.shape)


def size_of(tensors: Iterable[Tensor]) -> float:
    """Return the norm of several tensors together, rounded up."""
    return math.hypot(*(float(torch.linalg.vector_norm(t)) for t in tensors)) * (1 + 1e-9)
