"""Values of every tensor of a network at one point, each with a bound on its rounding error."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF
from normscope.lipschitz.local.linear_steps import Steps, size_of
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Input


@dataclass(frozen=True)
class ValueAtPoint:
    """A tensor at the point."""

    value: Tensor  #: as computed in float64
    error: float  #: bound on the norm of its distance from the value in real arithmetic
    fresh: float = 0.0  #: the part of it that was made after the atoms it is linear in


#: Value of an atom at the values of its inputs, and the error of the result.
AtomEvaluation = Callable[[Expr, list[ValueAtPoint]], ValueAtPoint]


def values_at_point(
    order: Sequence[Expr], steps: Steps, point: Sequence[Tensor], evaluate: AtomEvaluation
) -> dict[int, ValueAtPoint]:
    """Return the value of every expression at a point, by its id.

    Args:
        order: the expressions, each after those it reads.
        steps: bounds of the linear operations.
        point: the value of each block of the input.
        evaluate: how a nonlinear operation is evaluated.
    """
    known: dict[int, ValueAtPoint] = {}
    for expr in order:
        if expr.op is not None:
            known[expr.id] = _linear(expr, steps, known)
        elif isinstance(expr.atom, Input):
            known[expr.id] = ValueAtPoint(point[expr.atom.block].reshape(expr.shape), 0.0)
        else:
            known[expr.id] = evaluate(expr, [known[i.id] for i in expr.atom.inputs])
    return known


def _linear(expr: Expr, steps: Steps, known: dict[int, ValueAtPoint]) -> ValueAtPoint:
    """Return the value of a linear operation."""
    op, step = expr.op, steps.of(expr)
    if op is None:
        raise ValueError("an atom is not an operation")
    below = [known[i.id] for i in expr.inputs]
    value = op.apply(*(b.value for b in below)).to(torch.float64)
    size = size_of(b.value for b in below)
    error = step.error(sum(b.error for b in below), size)
    fresh = step.error(sum(b.fresh for b in below), size)
    if op.bias is not None:
        value = value + op.bias.to(value)
        rounding = UNIT_ROUNDOFF * float(value.norm()) * 1.01
        error, fresh = error + rounding, fresh + rounding
    segment = steps.segment(expr)
    if segment is not None and segment.source.id in known:
        error = min(error, fresh + segment.step.norm * known[segment.source.id].error)
    return ValueAtPoint(value, error, fresh)
