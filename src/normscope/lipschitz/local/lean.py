"""Walks of deep piecewise linear networks: rows are made in as few passes over them as possible."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.lipschitz.local.moving import Rows, deep
from normscope.lipschitz.local.point import Nominal
from normscope.lipschitz.local.steps import apply
from normscope.lipschitz.local.twofold import precise_values
from normscope.lipschitz.local.walk import Walk
from normscope.lipschitz.segments import channel_scale
from normscope.operators.convolution import convolved_stack
from normscope.operators.expression import Expr, operands

#: A convolution and the weight it has together with the scale behind it.
Folded = tuple[dict[str, Any], Tensor]


class Lean(Walk):
    """A walk of a piecewise linear network; what rounding did to the rows is for others to say.

    Args:
        *given, **settings: as of :class:`Walk`.
    """

    negligible = 0.0

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.sources = None
        self.folded = folded(self.order())

    def _values(self, order: list[Expr]) -> dict[int, Nominal]:
        return precise_values(order, self.steps, self.point)

    def _read(self, expr: Expr) -> Sequence[Expr]:
        return operands(expr)

    def _linear(self, expr: Expr) -> Rows:
        below = [self.known[i.id].rows for i in self._read(expr)]
        if not expr.atoms or not below:
            return Rows(torch.zeros(1 + self.along, *expr.shape, dtype=torch.float64), 0.0)
        return Rows(self._applied(expr, below), math.inf)

    def _applied(self, expr: Expr, stacks: list[Tensor]) -> Tensor:
        """Return an operation on rows."""
        if expr.id in self.folded:
            scaled = self.folded[expr.id]
            return stacks[0] if scaled is None else convolve(scaled, stacks[0], expr)
        if len(stacks) == 1:
            return apply(expr, stacks)
        most = max(len(s) for s in stacks)
        own = next((i for i, s in enumerate(stacks) if len(s) == most and self._is_own(expr, i)), None)
        if expr.op is None or expr.op.kind != "sum" or own is None:
            return apply(expr, [deep(s, most) for s in stacks])
        total = stacks[own]
        for i, other in enumerate(stacks):
            if i != own:
                total[: len(other)] += other
        return total

    def _is_own(self, expr: Expr, place: int) -> bool:
        """Return whether an operand was made for this operation alone, so that it may be written over."""
        item = expr.inputs[place]
        made = item.op is not None and (item.op.kind == "convolution" or self.folded.get(item.id) is not None)
        return made and self._last[item.id] == expr.id and sum(i is item for i in expr.inputs) == 1


def convolve(scaled: Folded, rows: Tensor, expr: Expr) -> Tensor:
    """Return a convolution with its scale of a stack of tensors."""
    data, weight = scaled
    return convolved_stack({**data, "weight": weight}, rows.flatten(0, 1)).reshape(len(rows), *expr.shape)


def folded(order: list[Expr]) -> dict[int, Folded | None]:
    """Return convolutions that are only scaled channel by channel: nothing for them, what to do instead for the scale.

    The rows before the scale are not needed: one convolution with scaled weights does both.
    """
    readers: dict[int, int] = {}
    for expr in order:
        for item in expr.inputs if expr.op is not None else expr.atom.inputs:
            readers[item.id] = readers.get(item.id, 0) + 1
    found: dict[int, Folded | None] = {}
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
