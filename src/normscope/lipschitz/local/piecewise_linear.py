"""Tangents of deep piecewise linear networks, computed in as few passes over memory as possible."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.lipschitz.local.linear_steps import apply
from normscope.lipschitz.local.precise_values import precise_values
from normscope.lipschitz.local.tangent_propagation import TangentPropagation
from normscope.lipschitz.local.tangents import TangentRows, padded_rows
from normscope.lipschitz.local.values_at_point import ValueAtPoint
from normscope.lipschitz.segments import channel_scale
from normscope.operators.convolution import convolved_stack
from normscope.operators.expression import Expr, operands

#: The data of a convolution, and its weight multiplied by the channel scale that follows.
ScaledConvolution = tuple[dict[str, Any], Tensor]


class PiecewiseLinearPropagation(TangentPropagation):
    """Propagate tangents through a piecewise linear network; subclasses bound the rounding error."""

    negligible = 0.0

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.sources = None
        self.scaled_convolutions = scaled_convolutions(self.order())

    def _values(self, order: list[Expr]) -> dict[int, ValueAtPoint]:
        return precise_values(order, self.steps, self.point)

    def _read(self, expr: Expr) -> Sequence[Expr]:
        return operands(expr)

    def _linear(self, expr: Expr) -> TangentRows:
        below = [self.rows_by_id[i.id].rows for i in self._read(expr)]
        if not expr.atoms or not below:
            return TangentRows(torch.zeros(1 + self.along, *expr.shape, dtype=torch.float64), 0.0)
        return TangentRows(self._applied(expr, below), math.inf)

    def _applied(self, expr: Expr, stacks: list[Tensor]) -> Tensor:
        """Apply a linear operation to rows."""
        if expr.id in self.scaled_convolutions:
            scaled = self.scaled_convolutions[expr.id]
            return stacks[0] if scaled is None else convolve_scaled(scaled, stacks[0], expr)
        if len(stacks) == 1:
            return apply(expr, stacks)
        most = max(len(s) for s in stacks)
        own = next((i for i, s in enumerate(stacks) if len(s) == most and self._is_own(expr, i)), None)
        if expr.op is None or expr.op.kind != "sum" or own is None:
            return apply(expr, [padded_rows(s, most) for s in stacks])
        total = stacks[own]
        for i, other in enumerate(stacks):
            if i != own:
                total[: len(other)] += other
        return total

    def _is_own(self, expr: Expr, place: int) -> bool:
        """Return whether an operand is used by this operation alone, so that it may be overwritten."""
        item = expr.inputs[place]
        made = item.op is not None and (
            item.op.kind == "convolution" or self.scaled_convolutions.get(item.id) is not None
        )
        return made and self._last[item.id] == expr.id and sum(i is item for i in expr.inputs) == 1


def convolve_scaled(scaled: ScaledConvolution, rows: Tensor, expr: Expr) -> Tensor:
    """Apply a convolution, with the channel scale that follows, to a stack of tensors."""
    data, weight = scaled
    return convolved_stack({**data, "weight": weight}, rows.flatten(0, 1)).reshape(len(rows), *expr.shape)


def scaled_convolutions(order: list[Expr]) -> dict[int, ScaledConvolution | None]:
    """Find convolutions followed only by a channel scale: ``None`` for the convolution, the scaled one for the scale.

    One convolution with scaled weights does both, so that the rows between them are not computed.
    """
    readers: dict[int, int] = {}
    for expr in order:
        for item in expr.inputs if expr.op is not None else expr.atom.inputs:
            readers[item.id] = readers.get(item.id, 0) + 1
    found: dict[int, ScaledConvolution | None] = {}
    for expr in order:
        if expr.op is None or expr.op.kind != "diagonal" or len(expr.inputs) != 1:
            continue
        inner = expr.inputs[0]
        if inner.op is None or inner.op.kind != "convolution" or readers[inner.id] > 1 or inner.shape != expr.shape:
            continue
        data = inner.op.data
        rank = data["weight"].ndim
        if data["transposed"] or len(expr.shape) != rank:
            continue
        scale = channel_scale(expr.op.data["scale"], expr.shape, 1)
        if scale is not None:
            weight = data["weight"].to(torch.float64) * scale.reshape(-1, *(1,) * (rank - 1))
            found[expr.id], found[inner.id] = (data, weight), None
    return found
