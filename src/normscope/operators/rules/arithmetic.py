"""Sums, products, quotients and reductions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from normscope.core.value import log_of
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import INF, Context, Lip, Nonlinear, Range, product
from normscope.operators.registry import Call, rule
from normscope.operators.rules.layout import _bound, _first, _kept, add_terms, broadcast, scaled


def _constant(value: Any) -> Tensor:
    """Return a scalar or tensor constant in float64; a Python number is one already, and must not pass float32."""
    return torch.as_tensor(value, dtype=torch.float64).detach()


@rule("add", "sub", "subtract", "rsub", "__radd__")
def add(call: Call) -> Expr:
    """Add or subtract, with broadcasting and ``alpha``."""
    left, right = call["self"], call["other"]
    alpha = float(call.get("alpha", 1))
    name = call.node.op.split(".")[1]
    if name == "rsub":
        left, right = right, left
    factor = -alpha if name in ("sub", "subtract", "rsub") else alpha
    terms: list[Expr] = []
    bias: Tensor | None = None
    for part, weight in ((left, 1.0), (right, factor)):
        if isinstance(part, Expr):
            wide = broadcast(part, call.shape, call)
            terms.append(wide if weight == 1.0 else scaled(call, wide, _constant(weight)))
        else:
            bias = _constant(part) * weight
    if bias is not None and not bool((bias != 0).any()):
        bias = None
    if len(terms) == 2 and terms[0].id == terms[1].id:
        return scaled(call, terms[0], _constant(2.0))
    return add_terms(call, terms, bias)


@rule("neg", "negative")
def negative(call: Call) -> Expr:
    """Change the sign."""
    return scaled(call, _first(call), _constant(-1.0))


@rule("mul", "multiply")
def multiply(call: Call) -> Expr:
    """Multiply entrywise: by a constant it is linear, otherwise a product on a bounded domain."""
    left, right = call["self"], call["other"]
    if not isinstance(right, Expr):
        return scaled(call, left, _constant(right))
    if not isinstance(left, Expr):
        return scaled(call, right, _constant(left))
    if left.id == right.id:
        return call.atom(Square(left))
    return call.atom(Product(broadcast(left, call.shape, call), broadcast(right, call.shape, call)))


@rule("div", "divide", "true_divide")
def divide(call: Call) -> Expr:
    """Divide: by a constant it is linear, otherwise the divisor must stay away from zero."""
    if call.get("rounding_mode") is not None:
        return call.opaque("rounding is discontinuous", known=True)
    left, right = call["self"], call["other"]
    if not isinstance(right, Expr):
        return scaled(call, left, 1.0 / _constant(right))
    if isinstance(left, Expr):
        wide = broadcast(left, call.shape, call)
    else:
        return call.atom(Quotient(None, broadcast(right, call.shape, call), float(_constant(left).abs().max())))
    return call.atom(Quotient(wide, broadcast(right, call.shape, call), 0.0))


@rule("addcmul")
def addcmul(call: Call) -> Expr:
    """Return ``self + value * a * b``."""
    parts = [call["self"], call["tensor1"], call["tensor2"]]
    exprs = [isinstance(p, Expr) for p in parts]
    if exprs[1] and exprs[2]:
        return call.opaque("addcmul of two input-dependent factors")
    value = float(call.get("value", 1))
    terms, bias = [], None
    if exprs[0]:
        terms.append(broadcast(parts[0], call.shape, call))
    else:
        bias = _constant(parts[0])
    if exprs[1] or exprs[2]:
        inner, factor = (parts[1], parts[2]) if exprs[1] else (parts[2], parts[1])
        terms.append(scaled(call, inner, _constant(factor) * value))
    else:
        rest = _constant(parts[1]) * _constant(parts[2]) * value
        bias = rest if bias is None else bias + rest
    return add_terms(call, terms, bias)


@rule("lerp")
def lerp(call: Call) -> Expr:
    """Return ``start + weight (end - start)`` for a constant weight."""
    weight = call["weight"]
    if isinstance(weight, Expr):
        return call.opaque("lerp with an input-dependent weight")
    weight = _constant(weight)
    terms, bias = [], None
    for part, factor in ((call["self"], 1 - weight), (call["end"], weight)):
        if isinstance(part, Expr):
            terms.append(scaled(call, part, factor))
        else:
            bias = _constant(part) * factor
    return add_terms(call, terms, bias)


@rule("mean", "sum", "cumsum")
def reduce(call: Call) -> Expr:
    """Add up or average along axes."""
    x = _first(call)
    dims = call.get("dim")
    if call.get("dtype") is not None and not torch.empty((), dtype=call.value.dtype).is_floating_point():
        return call.opaque("a sum cast to integers", known=True)
    rank = len(x.shape)
    if dims is None or dims == []:
        dims = list(range(rank))
    dims = [d % rank for d in (dims if isinstance(dims, list | tuple) else [dims])]
    name = call.node.op.split(".")[1]
    keep = bool(call.get("keepdim", False)) or name == "cumsum"

    def axes(axis: int) -> int | None:
        return None if axis in dims else axis - (0 if keep else sum(d < axis for d in dims))

    def apply(z: Tensor) -> Tensor:
        if name == "cumsum":
            return z.cumsum(dims[0])
        return z.mean(dims, keepdim=keep) if name == "mean" else z.sum(dims, keepdim=keep)

    return call.linear("nonnegative", apply, [x], axes=axes)


@rule("diff")
def difference(call: Call) -> Expr:
    """Subtract neighbours."""
    return call.linear("generic", _bound(call), [_first(call)], axes=_kept(_first(call), [int(call.get("dim", -1))]))


class Product(Nonlinear):
    """``f * g`` entrywise: ``||d(fg)|| <= sup|f| ||dg|| + sup|g| ||df||``, no convexity needed."""

    def __init__(self, left: Expr, right: Expr) -> None:
        self.inputs = (left, right)

    def constant(self, context: Context) -> Lip:
        """Return the product rule on the ranges of the factors."""
        f, g = self.inputs
        return _weighted(context.lipschitz(g), context.range(f).sup) + _weighted(
            context.lipschitz(f), context.range(g).sup
        )

    def image(self, context: Context) -> Range:
        """Return the products of the ends, and norms by the largest entry of the other factor."""
        range_f, range_g = (context.range(e) for e in self.inputs)
        corners = [product(a, b) for a in (range_f.low, range_f.high) for b in (range_g.low, range_g.high)]
        return Range(
            min(corners),
            max(corners),
            min(product(range_f.sup, range_g.row), product(range_g.sup, range_f.row)),
            min(product(range_f.sup, range_g.norm), product(range_g.sup, range_f.norm)),
        )


class Square(Nonlinear):
    """``f^2`` entrywise: slope ``2 sup|f|``."""

    def __init__(self, x: Expr) -> None:
        self.inputs = (x,)

    def constant(self, context: Context) -> Lip:
        """Return twice the largest entry times the constant of the input."""
        return _weighted(context.lipschitz(self.inputs[0]), 2 * context.range(self.inputs[0]).sup)

    def image(self, context: Context) -> Range:
        """Return zero to the square of the largest entry."""
        sup = context.range(self.inputs[0]).sup
        return Range(0.0, sup**2 if sup < 1e150 else INF)


class Quotient(Nonlinear):
    """``f / g`` where ``|g| >= m > 0``: ``||d(f/g)|| <= ||df||/m + sup|f| ||dg||/m^2``."""

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
        if least == 0.0:
            return Lip.constant(INF, context.blocks)
        lip = _weighted(context.lipschitz(self.inputs[0]), sup / least**2)
        return lip if len(self.inputs) == 1 else lip + context.lipschitz(self.inputs[1]).scaled(-math.log(least))

    def image(self, context: Context) -> Range:
        """Return the largest quotient."""
        least, sup = self._ends(context)
        return Range() if least == 0.0 else Range(-sup / least, sup / least)


def _weighted(lip: Lip, factor: float) -> Lip:
    """Return a constant times a factor that may be zero or infinite."""
    return lip.scaled(log_of(factor) if factor < INF else INF)


class Maximum(Nonlinear):
    """``max(f, g)`` or ``min(f, g)`` entrywise: ``|max(a,b)-max(c,d)| <= max(|a-c|, |b-d|)``."""

    def __init__(self, left: Expr, right: Expr, largest: bool) -> None:
        self.inputs, self.largest = (left, right), largest

    def constant(self, context: Context) -> Lip:
        """Return the root of the sum of squares of both constants."""
        return context.lipschitz(self.inputs[0]).root_sum_square(context.lipschitz(self.inputs[1]))

    def image(self, context: Context) -> Range:
        """Return the larger or smaller ends."""
        f, g = (context.range(e) for e in self.inputs)
        choose = max if self.largest else min
        return Range(choose(f.low, g.low), choose(f.high, g.high))


@rule("maximum", "minimum", "fmax", "fmin", "max.other", "min.other")
def maximum(call: Call) -> Expr:
    """Take the larger or smaller entry of two tensors."""
    from normscope.operators.rules.activation import clamped

    left, right = call["self"], call["other"]
    largest = "max" in call.node.op.split(".")[1]
    if isinstance(left, Expr) and isinstance(right, Expr):
        return call.atom(Maximum(broadcast(left, call.shape, call), broadcast(right, call.shape, call), largest))
    x, bound = (left, right) if isinstance(left, Expr) else (right, left)
    bound = _constant(bound)
    low, high = (float(bound.min()), INF) if largest else (-INF, float(bound.max()))
    return clamped(call, broadcast(x, call.shape, call), low, high, loose=bound.numel() > 1)


@rule("amax", "amin", "max.dim", "min.dim")
def extreme(call: Call) -> Any:
    """Take the largest or smallest entry along axes: 1-Lipschitz."""
    x = _first(call)
    atom = call.atom(Contraction(x), shape=call.shape)
    return [atom, None] if isinstance(call.value, tuple | list) else atom


class Contraction(Nonlinear):
    """A 1-Lipschitz map whose entries are among those of its input: max or min over disjoint sets, sorting."""

    def __init__(self, x: Expr) -> None:
        self.inputs = (x,)

    def constant(self, context: Context) -> Lip:
        """Return the constant of the input."""
        return context.lipschitz(self.inputs[0])

    def image(self, context: Context) -> Range:
        """Return the range of the input."""
        inside = context.range(self.inputs[0])
        return Range(inside.low, inside.high, inside.norm, inside.norm)


@rule("linalg_vector_norm", "norm")
def vector_norm(call: Call) -> Expr:
    """Return the l2 (or l1, l-inf) norm along axes: Lipschitz with constant one (l1: sqrt of the length)."""
    x = _first(call)
    order = call.get("ord", call.get("p", 2))
    order = 2.0 if order is None else float(order)
    length = math.prod(x.shape) // max(1, math.prod(call.shape))
    if order < 1:
        return call.opaque(f"the {order}-norm is not convex")
    return call.atom(VectorNorm(x, order, length))


class VectorNorm(Nonlinear):
    """``||x||_p`` over groups of n entries; in l2 its constant is ``max(1, n^(1/p - 1/2))``."""

    def __init__(self, x: Expr, order: float, length: int) -> None:
        self.inputs, self.factor = (x,), max(1.0, length ** (1 / order - 0.5))

    def constant(self, context: Context) -> Lip:
        """Return the constant above times that of the input."""
        return context.lipschitz(self.inputs[0]).scaled(log_of(self.factor))

    def image(self, context: Context) -> Range:
        """Return zero to the norm of the whole input."""
        return Range(0.0, product(context.range(self.inputs[0]).norm, self.factor))


@rule("var", "std", "var_mean", "std_mean", "prod", "argmax", "argmin", "topk", "sort", "round", "floor", "ceil",
      "sign", "fmod", "remainder", "gt", "lt", "ge", "le", "eq", "ne", "one_hot", "argsort", "searchsorted",
      "bucketize", "floor_divide", "trunc", "heaviside", "nonzero", "isnan", "isinf", "histc", "logical_not",
      "logical_and", "logical_or", "bitwise_not", "bitwise_and", "bitwise_or", "sgn", "frac", "any", "all",
      "count_nonzero", "multinomial", "bincount", "unique", "item", "_local_scalar_dense")  # fmt: skip
def steps(call: Call) -> Any:
    """Name what is not Lipschitz: steps and choices; variance is quadratic."""
    name = call.node.op.split(".")[1]
    if name in ("var", "std", "var_mean", "std_mean", "prod"):
        return call.opaque(f"{name} outside a normalizer has no rule yet")
    if name == "sort":
        atom = call.atom(Contraction(_first(call)))
        return [atom, call.opaque("the order of a sort is discontinuous", known=True)]
    opaque = call.opaque(f"{name} is discontinuous", known=True)
    return [opaque] * len(call.value) if isinstance(call.value, tuple | list) else opaque
