"""Tensors with tangents at a point, and operations on them: linear maps, sums, entrywise functions, products."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF
from normscope.lipschitz.local.linear_steps import OperationBounds, size_of
from normscope.lipschitz.local.slopes import MonotoneSlope, ScalarFunction
from normscope.lipschitz.local.values_at_point import ValueAtPoint
from normscope.operators.linear_map import batched
from normscope.operators.spread_division import Spread


class UnboundedError(Exception):
    """No constant on the ball: the message says why."""


@dataclass(frozen=True)
class TangentRows:
    """Derivatives of a tensor by the input and by the remainders of earlier units."""

    rows: Tensor  #: (1 + inputs + remainders, *shape): the middle of the zonotope, then one tangent per generator
    error: float  #: bound on the Frobenius norm of the error of all rows
    fresh: float = 0.0  #: the part of it that was made after the atoms it is linear in
    #: how it moves with each entry of every earlier atom, in small networks; so that an error made there is not
    #: multiplied by the norms of all layers between, but by the norm of their product
    carried: Tensor | None = None


@dataclass(frozen=True)
class TensorWithTangents:
    """A tensor at the point, and its tangents where they are propagated."""

    at: ValueAtPoint
    rows: TangentRows | None = None


#: Computes the rows of an entrywise function.
EntrywiseRule = Callable[[ValueAtPoint, TangentRows, ScalarFunction], TangentRows]
#: The square: its derivative is monotone.
SQUARE = MonotoneSlope(torch.square)


class TangentAlgebra:
    """Operations on tensors with tangents.

    Args:
        passing: computes the rows of an entrywise function; without it only values are computed.
    """

    def __init__(self, passing: EntrywiseRule | None = None) -> None:
        self.passing = passing

    def mapped(
        self, x: TensorWithTangents, function: Callable[[Tensor], Tensor], step: OperationBounds
    ) -> TensorWithTangents:
        """Return a linear function of a tensor, with the bounds of its step."""
        value = function(x.at.value)
        at = ValueAtPoint(value, step.error(x.at.error, size_of([x.at.value])))
        if x.rows is None:
            return TensorWithTangents(at)
        rows, size = batched(function, None, x.rows.rows), size_of([x.rows.rows])
        return TensorWithTangents(at, TangentRows(rows, step.error(x.rows.error, size), step.error(x.rows.fresh, size)))

    def plus(self, a: TensorWithTangents, b: TensorWithTangents, sign: float = 1.0) -> TensorWithTangents:
        """Return the sum, or with a sign of -1 the difference, of two tensors of one shape."""
        value = a.at.value + sign * b.at.value
        at = ValueAtPoint(value, a.at.error + b.at.error + 2 * UNIT_ROUNDOFF * size_of([value]))
        if a.rows is None or b.rows is None:
            return TensorWithTangents(at)
        most = max(len(a.rows.rows), len(b.rows.rows))
        rows = padded_rows(a.rows.rows, most) + sign * padded_rows(b.rows.rows, most)
        noise = 2 * UNIT_ROUNDOFF * size_of([rows])
        return TensorWithTangents(
            at, TangentRows(rows, a.rows.error + b.rows.error + noise, a.rows.fresh + b.rows.fresh + noise)
        )

    def shifted(self, x: TensorWithTangents, constant: Tensor | float) -> TensorWithTangents:
        """Return a tensor plus a constant."""
        value = x.at.value + constant
        return TensorWithTangents(ValueAtPoint(value, x.at.error + UNIT_ROUNDOFF * size_of([value])), x.rows)

    def scalar(self, x: TensorWithTangents, function: ScalarFunction) -> TensorWithTangents:
        """Return a function of single entries."""
        at = scalar_value(x.at, function)
        if x.rows is None or self.passing is None:
            return TensorWithTangents(at)
        return TensorWithTangents(at, self.passing(x.at, x.rows, function))

    @statement("normscope", "LOCAL-6", holds="operations made of linear maps and functions of one variable")
    def product(self, f: TensorWithTangents, g: TensorWithTangents) -> TensorWithTangents:
        r"""Return the product entry by entry, :math:`fg = ((\alpha f + g/\alpha)^2 - (\alpha f - g/\alpha)^2)/4`.

        The power of two :math:`\alpha` makes both move about as much.
        """
        value = f.at.value * g.at.value
        sup_f, sup_g = (float(m.at.value.abs().max()) if value.numel() else 0.0 for m in (f, g))
        error = sup_f * g.at.error + sup_g * f.at.error + f.at.error * g.at.error
        at = ValueAtPoint(value, error + 2 * UNIT_ROUNDOFF * size_of([value]))
        if f.rows is None or g.rows is None:
            return TensorWithTangents(at)
        moved = float(f.rows.rows[1:].norm()) + 1e-300, float(g.rows.rows[1:].norm()) + 1e-300
        alpha = 2.0 ** round(max(-20.0, min(20.0, math.log2(moved[1] / moved[0]) / 2)))
        f, g = self.times(f, alpha), self.times(g, 1 / alpha)
        squares = [self.scalar(self.plus(f, g, sign), SQUARE) for sign in (1.0, -1.0)]
        return TensorWithTangents(at, self.times(self.plus(squares[0], squares[1], -1.0), 0.25).rows)

    def matrix_product(self, left: TensorWithTangents, right: TensorWithTangents) -> TensorWithTangents | None:
        """Return ``A B`` where it is known as a whole; else it is written as products of entries."""
        return None

    def distribution(self, x: TensorWithTangents, axis: int, keep: Tensor | None) -> TensorWithTangents | None:
        """Return the softmax along an axis where it is known as a whole; what is not kept is zero."""
        return None

    def division(self, x: TensorWithTangents, spread: Spread) -> TensorWithTangents | None:
        """Return a tensor divided by the spread of its groups where that is known as a whole."""
        return None

    def times(self, x: TensorWithTangents, factor: float) -> TensorWithTangents:
        """Return a multiple."""
        size = abs(factor)
        exact = math.frexp(size)[0] == 0.5
        return self.mapped(x, lambda z: z * factor, OperationBounds(size, size, 0 if exact else 1))


def scalar_value(z: ValueAtPoint, function: ScalarFunction) -> ValueAtPoint:
    """Return the value of a function of single entries, with its error."""
    least, most = function.tangents(z.value - z.error, z.value + z.error)
    slope = float(torch.maximum(least.abs(), most.abs()).max()) if z.value.numel() else 0.0
    value = function.function(z.value)
    return ValueAtPoint(value, slope * z.error + value_rounding(z.value, value))


def value_rounding(z: Tensor, value: Tensor) -> float:
    """Return a bound on the rounding error of a function of single entries, given its arguments and its values.

    It is relative to the values, and to the arguments where terms cancel, as in GELU far below zero.
    """
    return 2.0**-46 * float(value.norm()) + 2.0**-50 * float(z.norm())


def padded_rows(rows: Tensor, count: int) -> Tensor:
    """Return rows with zero rows appended up to a count."""
    missing = count - len(rows)
    return rows if not missing else torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
