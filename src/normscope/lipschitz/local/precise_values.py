"""Values of a piecewise linear network in double-double arithmetic, about twice the precision of float64."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.linalg.double_double import DoubleDouble, product, two_product, two_sum, weight_slices
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF, gamma
from normscope.lipschitz.local.linear_steps import LARGEST_SEGMENT, Steps, apply, size_of
from normscope.lipschitz.local.slopes import scalar_of
from normscope.lipschitz.local.tangents import UnboundedError
from normscope.lipschitz.local.values_at_point import ValueAtPoint
from normscope.operators.convolution import convolved_stack
from normscope.operators.expression import Expr, LinearOp
from normscope.operators.nonlinear import Input
from normscope.operators.program import Program

#: Relative error of values at the point above which a network counts as deep.
TOO_LARGE = 1e-8


@dataclass(frozen=True)
class DoubleDoubleValue:
    """Values in double-double arithmetic."""

    pair: DoubleDouble  #: the values, one for each probe, or one
    error: float = 0.0  #: bound on the norm of their error
    fresh: float = 0.0  #: the part of it that was made after the atoms they are linear in


def is_piecewise_linear(program: Program) -> bool:
    """Return whether all nonlinear operations are functions of single entries with straight pieces."""
    scalars = [scalar_of(a.atom) for a in program.atoms if not isinstance(a.atom, Input)]
    return bool(scalars) and all(s is not None and s.room == 0.0 for s in scalars)


def is_deep(program: Program, nominal: dict[int, ValueAtPoint]) -> bool:
    """Return whether a piecewise linear network is so deep that bounding errors by layer norms is too coarse."""
    read = [nominal[e.id] for a in program.atoms for e in a.atom.inputs if e.id in nominal]
    return any(n.error * math.sqrt(n.value.numel()) > TOO_LARGE * float(n.value.norm()) for n in read)


def apply_linear(
    expr: Expr, steps: Steps, below: list[DoubleDoubleValue], *, sources: dict[int, float], given: bool = True
) -> DoubleDoubleValue:
    """Apply a linear operation, without its bias, to double-double values.

    Args:
        expr: the operation.
        steps: bounds of all operations.
        below: what it reads.
        sources: errors of the atoms so far, by id.
        given: whether the factors of normalizers are taken as in float64; otherwise their rounding counts.
    """
    op, step = expr.op, steps.of(expr)
    if op is None:
        raise ValueError("an atom is not an operation")
    size = size_of(flow.pair.high for flow in below)
    own = 2.0**-98 * step.mass * size
    first = below[0].pair
    if op.kind == "sum":
        pair = first
        for flow in below[1:]:
            pair = pair.plus(flow.pair)
    elif op.kind == "diagonal" and expr.inputs[0].shape == expr.shape:
        factor = op.data["scale"].to(torch.float64).expand(expr.shape)
        pair = first.times(factor)
        exact = None if given else steps.once("factors", expr, lambda: exact_factors(op))
        if exact is not None:
            pair = pair.plus(DoubleDouble.of(first.high * exact[0].low.expand(expr.shape)))
        elif not given:
            own += gamma(step.roundings) * size_of([pair.high])
    elif len(below) == 1 and (op.kind in ("isometry", "embedding") or op.data.get("coordinate")):
        pair = first.mapped(lambda z: apply(expr, [z]))
    elif op.kind == "convolution" and not op.data["transposed"]:
        weight, cut = _cut_weight(expr, op, steps)
        pair, each = product(weight, first, lambda w, z: _convolved(op.data, w, z, expr), weight[0].numel(), cut)
        own = each * math.sqrt(pair.high.numel())
    elif op.kind == "matrix" and op.data["axis"] == -1 and op.data["weight"].ndim == 2:
        weight, cut = _cut_weight(expr, op, steps)
        pair, each = product(weight, first, lambda w, z: torch.matmul(z, w.mT), weight.shape[1], cut)
        own = each * math.sqrt(pair.high.numel())
    else:
        pair = DoubleDouble(*(apply(expr, [getattr(f.pair, part) for f in below]) for part in ("high", "low")))
        own = step.error(0.0, size)
    fresh = step.norm * sum(f.fresh for f in below) + own
    error = step.norm * sum(f.error for f in below) + own
    if len(expr.atoms) == 1:
        (key,) = expr.atoms
        error = min(error, fresh + steps.reach(expr) * sources.get(key, 0.0))
    return DoubleDoubleValue(pair, error, fresh)


def _cut_weight(expr: Expr, op: LinearOp, steps: Steps) -> tuple[Tensor, list[Tensor] | None]:
    """Return the weight of an operation in float64, and its slices where they are small enough to be kept."""

    def cut() -> tuple[Tensor, list[Tensor]]:
        weight = op.data["weight"].to(torch.float64)
        return weight, weight_slices(weight)

    if op.data["weight"].numel() > LARGEST_SEGMENT:
        return op.data["weight"].to(torch.float64), None
    return steps.once("slices", expr, cut)


def exact_factors(op: LinearOp) -> tuple[DoubleDouble, DoubleDouble, Tensor] | None:
    r"""Return the factor and the shift of normalization by fixed statistics, up to ``2^-98``, and what the shift sums.

    With y the factor in float64, :math:`s = \gamma / \sqrt{v + \epsilon}` is
    :math:`y + (\gamma^2 - y^2 (v + \epsilon)) / (2 y (v + \epsilon))` up to a part :math:`(1 - y/s)^2` of it.

    Args:
        op: a factor for each channel.

    Returns:
        The factor, the shift, and the magnitudes of its terms; ``None`` where there are no statistics.
    """
    if "statistics" not in op.data:
        return None
    mean, var, eps, gamma_, beta = op.data["statistics"]
    y = op.data["scale"].to(torch.float64)
    weight = torch.ones_like(y) if gamma_ is None else gamma_.to(torch.float64).expand(y.shape)
    total = DoubleDouble(*two_sum(var, torch.full_like(var, eps)))
    square, wanted = DoubleDouble(*two_product(y, y)), DoubleDouble(*two_product(weight, weight))
    made = DoubleDouble(*two_product(square.high, total.high))
    rest = (wanted.high - made.high) + (wanted.low - made.low - square.low * total.high - square.high * total.low)
    low = torch.where(y == 0, 0.0, rest / (2 * y * total.high))
    near = low.abs() <= 2.0**-48 * y.abs()
    usual = (y.abs() > 1e-100) & (y.abs() < 1e100) | (weight == 0)
    if not bool((near & usual).all()):
        return None
    taken = DoubleDouble(*two_product(-mean.expand_as(y), y)).plus(DoubleDouble.of(-mean * low))
    added = torch.zeros_like(y) if beta is None else beta.to(torch.float64).expand(y.shape)
    return DoubleDouble(y, low), taken.plus(DoubleDouble.of(added)), (mean * y).abs() + added.abs()


def _bias(expr: Expr, op: LinearOp, steps: Steps, *, given: bool) -> tuple[DoubleDouble, float]:
    """Return the bias of an operation and a bound on its error, which normalizers have unless it is given."""
    shape = expr.shape
    found = DoubleDouble.of(op.bias.to(torch.float64))  # type: ignore[union-attr]
    exact = None
    if not given and op.kind == "diagonal":
        exact = steps.once("factors", expr, lambda: exact_factors(op))
    if exact is not None:
        found = exact[1]
    found = DoubleDouble(found.high.expand(shape).unsqueeze(0), found.low.expand(shape).unsqueeze(0))
    if exact is not None:
        return found, 2.0**-98 * size_of([exact[2].expand(shape)])
    return found, 0.0 if given or op.kind != "diagonal" else gamma(8) * size_of([found.high])


def _convolved(data: dict[str, Any], weight: Tensor, z: Tensor, expr: Expr) -> Tensor:
    return convolved_stack({**data, "weight": weight}, z.flatten(0, 1)).reshape(len(z), *expr.shape)


def precise_values(
    order: list[Expr], steps: Steps, point: list[Tensor], *, given: bool = True
) -> dict[int, ValueAtPoint]:
    """Return the value of every expression of a piecewise linear network at a point, with tiny errors.

    Args:
        order: the expressions, each after those it reads.
        steps: bounds of the linear operations.
        point: the value of each block of the input.
        given: whether factors and shifts of normalizers are taken as in float64; otherwise their rounding counts.
    """
    flows: dict[int, DoubleDoubleValue] = {}
    sources: dict[int, float] = {}
    known: dict[int, ValueAtPoint] = {}
    for expr in order:
        if expr.op is not None and not expr.inputs:
            flow = DoubleDoubleValue(DoubleDouble.of(torch.zeros(1, *expr.shape, dtype=torch.float64)))
        elif expr.op is not None:
            flow = apply_linear(expr, steps, [flows[i.id] for i in expr.inputs], sources=sources, given=given)
        elif isinstance(expr.atom, Input):
            flow = DoubleDoubleValue(DoubleDouble.of(point[expr.atom.block].reshape(1, *expr.shape)))
        else:
            flow = _activated(expr, flows[expr.atom.inputs[0].id])
            sources[expr.id] = flow.error
        if expr.op is not None and expr.op.bias is not None:
            bias, made = _bias(expr, expr.op, steps, given=given)
            flow = replace(flow, pair=flow.pair.plus(bias), error=flow.error + made, fresh=flow.fresh + made)
        flows[expr.id] = flow
        value = flow.pair.high[0]
        known[expr.id] = ValueAtPoint(value, flow.error + 2 * UNIT_ROUNDOFF * float(value.norm()))
    return known


def _activated(expr: Expr, z: DoubleDoubleValue) -> DoubleDoubleValue:
    """Return a piecewise linear function of single entries; entries within the error of a kink may take either side."""
    scalar = scalar_of(expr.atom)
    if scalar is None:
        raise UnboundedError("no function of single entries")
    slope = scalar.derivative(z.pair.high)
    steepest = float(slope.abs().max()) if slope.numel() else 0.0
    start = scalar.function(z.pair.high) - slope * z.pair.high  # the piece is start + slope z; zero for ReLU
    pair = z.pair.times(slope)
    made = 0.0
    if bool(start.any()):
        pair = pair.plus(DoubleDouble.of(start))
        made = 4 * UNIT_ROUNDOFF * float(start.norm() + pair.high.norm())
    largest = max((abs(s) for _, low, high in scalar.marks for s in (low, high)), default=1.0)
    return DoubleDoubleValue(pair, max(steepest, largest) * z.error + made)
