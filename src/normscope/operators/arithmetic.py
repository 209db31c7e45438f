"""Sums, products and quotients of two tensors."""

from typing import Any

import torch
from torch import Tensor

from normscope.core.value import log_of
from normscope.operators.expression import Expr
from normscope.operators.layout import add_terms, broadcast, scaled
from normscope.operators.nonlinear import INF, Context, Lip, Nonlinear, Range, outward, product
from normscope.operators.registry import Call, rule


def _constant(value: Any) -> Tensor:
    """Return a scalar or tensor constant in float64; a Python number must not be rounded to float32."""
    return torch.as_tensor(value, dtype=torch.float64).detach()


@rule("add", "sub", "subtract", "rsub", "__radd__")
def add(call: Call) -> Expr:
    """Add or subtract, with broadcasting and ``alpha``."""
    left, right = call["self"], call["other"]
    alpha = float(call.get("alpha", 1))
    name = call.name
    if name == "rsub":
        left, right = right, left
    return total(call, ((left, 1.0), (right, -alpha if name in ("sub", "subtract", "rsub") else alpha)))


def total(call: Call, parts: Any) -> Expr:
    """Return the sum of weighted expressions and constants, each given as (part, weight)."""
    terms: list[Expr] = []
    bias: Tensor | None = None
    for part, weight in parts:
        factor = _constant(weight)
        if isinstance(part, Expr):
            unit = factor.numel() == 1 and float(factor) == 1.0
            terms.append(broadcast(part, call.shape, call) if unit else scaled(call, part, factor))
        else:
            constant = _constant(part) * factor
            bias = constant if bias is None else bias + constant
    if len(terms) == 2 and terms[0].id == terms[1].id:
        terms = [scaled(call, terms[0], _constant(2.0))]
    return add_terms(call, terms, bias)


@rule("neg", "negative")
def negative(call: Call) -> Expr:
    """Change the sign."""
    return scaled(call, call.first, _constant(-1.0))


@rule("mul", "multiply")
def multiply(call: Call) -> Expr:
    """Multiply entrywise: by a constant it is linear, otherwise a product on a bounded domain."""
    return times(call, call["self"], call["other"])


def times(call: Call, left: Any, right: Any) -> Expr:
    """Return the product of two tensors, at least one of which depends on the input, in the shape of the call."""
    if not isinstance(right, Expr):
        return scaled(call, left, _constant(right))
    if not isinstance(left, Expr):
        return scaled(call, right, _constant(left))
    if left.id == right.id:
        return call.atom(Square(broadcast(left, call.shape, call)))
    return call.atom(Product(broadcast(left, call.shape, call), broadcast(right, call.shape, call)))


@rule("div", "divide", "true_divide")
def divide(call: Call) -> Expr:
    """Divide: by a constant it is linear, otherwise the divisor must stay away from zero."""
    if call.get("rounding_mode") is not None:
        return call.opaque("rounding is discontinuous", known=True)
    return over(call, call["self"], call["other"])


def over(call: Call, left: Any, right: Any) -> Expr:
    """Return the quotient of two tensors, at least one of which depends on the input, in the shape of the call."""
    if not isinstance(right, Expr):
        return scaled(call, left, 1.0 / _constant(right))
    below = broadcast(right, call.shape, call)
    if isinstance(left, Expr):
        return call.atom(Quotient(broadcast(left, call.shape, call), below, 0.0))
    return call.atom(Quotient(None, below, float(_constant(left).abs().max())))


@rule("addcmul", "addcdiv")
def addcmul(call: Call) -> Expr:
    """Return ``self + value * a * b`` or ``self + value * a / b``."""
    base, a, b = call["self"], call["tensor1"], call["tensor2"]
    value = float(call.get("value", 1))
    divides = "addcdiv" in call.node.op
    if isinstance(a, Expr) or isinstance(b, Expr):
        inner: Any = over(call, a, b) if divides else times(call, a, b)
    else:
        inner = _constant(a) / _constant(b) if divides else _constant(a) * _constant(b)
    return total(call, ((base, 1.0), (inner, value)))


@rule("lerp")
def lerp(call: Call) -> Expr:
    """Return ``start + weight (end - start)``."""
    start, end, weight = call["self"], call["end"], call["weight"]
    if not isinstance(weight, Expr):
        weight = _constant(weight)
        return total(call, ((start, 1 - weight), (end, weight)))
    if isinstance(start, Expr) or isinstance(end, Expr):
        difference: Any = total(call, ((end, 1.0), (start, -1.0)))
    else:
        difference = _constant(end) - _constant(start)
    return total(call, ((start, 1.0), (times(call, weight, difference), 1.0)))


class Product(Nonlinear):
    """``f * g`` entrywise: ``||d(fg)|| <= sup|f| ||dg|| + sup|g| ||df||``, no convexity needed."""

    def __init__(self, left: Expr, right: Expr) -> None:
        self.inputs = (left, right)

    def constant(self, context: Context) -> Lip:
        """Return the product rule on the ranges of the factors."""
        f, g = self.inputs
        return context.lipschitz(g).times(context.range(f).sup) + context.lipschitz(f).times(context.range(g).sup)

    def image(self, context: Context) -> Range:
        """Return the products of the ends, and norms by the largest entry of the other factor."""
        range_f, range_g = (context.range(e) for e in self.inputs)
        corners = [product(a, b) for a in (range_f.low, range_f.high) for b in (range_g.low, range_g.high)]
        return Range(
            *outward(min(corners), max(corners)),
            outward(0.0, min(product(range_f.sup, range_g.row), product(range_g.sup, range_f.row)))[1],
            outward(0.0, min(product(range_f.sup, range_g.norm), product(range_g.sup, range_f.norm)))[1],
        )


class Square(Nonlinear):
    """``f^2`` entrywise: slope ``2 sup|f|``."""

    def __init__(self, x: Expr) -> None:
        self.inputs = (x,)

    def constant(self, context: Context) -> Lip:
        """Return twice the largest entry times the constant of the input."""
        return context.lipschitz(self.inputs[0]).times(2 * context.range(self.inputs[0]).sup)

    def image(self, context: Context) -> Range:
        """Return zero to the square of the largest entry."""
        sup = context.range(self.inputs[0]).sup
        return Range(*outward(0.0, sup**2 if sup < 1e150 else INF))


class Quotient(Nonlinear):
    """``f / g`` where ``|g| >= m > 0``: ``||d(f/g)|| <= ||df||/m + sup|f| ||dg||/m^2``, for g of one sign.

    ``f/g - f'/g' = (f - f')/g + f' (g' - g)/(g g')``: no convexity is needed.
    """

    def __init__(self, numerator: Expr | None, denominator: Expr, numerator_sup: float) -> None:
        self.inputs = (denominator,) if numerator is None else (denominator, numerator)
        self.numerator_sup = numerator_sup

    def _ends(self, context: Context) -> tuple[float, float]:
        """Return the least absolute denominator and the largest absolute numerator."""
        below = context.range(self.inputs[0])
        sup = self.numerator_sup if len(self.inputs) == 1 else context.range(self.inputs[1]).sup
        return max(below.low, -below.high, 0.0), sup

    def constant(self, context: Context) -> Lip:
        """Return the quotient rule where the denominator has one sign."""
        least, sup = self._ends(context)
        if least == 0.0 or least == INF:
            return Lip.constant(INF, context.blocks)
        log = log_of(least)
        lip = context.lipschitz(self.inputs[0]).scaled(log_of(sup) - 2 * log if sup < INF else INF)
        return lip if len(self.inputs) == 1 else lip + context.lipschitz(self.inputs[1]).scaled(-log)

    def image(self, context: Context) -> Range:
        """Return the largest quotient."""
        least, sup = self._ends(context)
        if least == 0.0 or least == INF or sup == INF or sup / least == INF:
            return Range()
        return Range(*outward(-sup / least, sup / least))
