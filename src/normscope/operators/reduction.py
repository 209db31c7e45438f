"""Sums, means, norms, distances, deviations and extremes along axes, and reductions that are not Lipschitz."""

import math
from typing import Any

import torch
from torch import Tensor

from normscope.operators.arithmetic import Square, total
from normscope.operators.expression import Expr
from normscope.operators.layout import kept_axes, reshaped, scaled
from normscope.operators.nonlinear import Context, Range, Stretch, outward, product
from normscope.operators.registry import Call, rule
from normscope.operators.spread_division import Spread, centered


def reduced_axes(call: Call, x: Expr) -> list[int]:
    """Return the axes an operation reduces; all of them where none is given."""
    dims = call.get("dim")
    rank = len(x.shape)
    if dims is None or dims == []:
        return list(range(rank))
    dims = dims if isinstance(dims, list | tuple) else [dims]
    return [d % rank for d in dims] if rank else []


@rule("mean", "sum", "cumsum")
def reduce(call: Call) -> Expr:
    """Add up or average along axes."""
    x = call.first
    if not call.value.dtype.is_floating_point:
        return call.opaque("a sum cast to integers", known=True)
    name = call.name
    return summed(call, x, reduced_axes(call, x), name, keep=bool(call.get("keepdim", False)) or name == "cumsum")


def summed(call: Call, x: Expr, dims: list[int], name: str, *, keep: bool) -> Expr:
    """Return the ``sum``, ``mean`` or ``cumsum`` along axes."""
    shape = tuple(1 if i in dims else n for i, n in enumerate(x.shape) if keep or i not in dims)

    def apply(z: Tensor) -> Tensor:
        if name == "cumsum":
            return z.cumsum(dims[0]) if dims else z
        if not dims:
            return z
        return z.mean(dims, keepdim=keep) if name == "mean" else z.sum(dims, keepdim=keep)

    axes = kept_axes(x, dims, drop=not keep)
    return call.linear("nonnegative", apply, [x], axes=axes, shape=x.shape if name == "cumsum" else shape)


@rule("diff")
def difference(call: Call) -> Expr:
    """Subtract neighbours."""
    if call.get("prepend") is not None or call.get("append") is not None:
        return call.opaque("differences with values prepended or appended have no rule")
    return call.linear("generic", call.bound(), [call.first], axes=kept_axes(call.first, [int(call.get("dim", -1))]))


class Contraction(Stretch):
    """A 1-Lipschitz map whose entries are among those of its input, each taken once.

    Max and min over disjoint sets, order statistics and sorting: ``|x_(k) - y_(k)| <= max |x_i - y_i|`` within each
    set, and sorting both vectors brings them no further apart.
    """

    def __init__(self, x: Expr) -> None:
        super().__init__(x, 1.0)

    def image(self, context: Context) -> Range:
        """Return the range of the input."""
        inside = context.range(self.inputs[0])
        return Range(inside.low, inside.high, inside.norm, inside.norm)


@rule("amax", "amin", "max", "min", "median", "nanmedian", "kthvalue", "sort", "msort", "topk", "aminmax")
def extreme(call: Call) -> Any:
    """Take the largest, smallest or k-th entry along axes, or sort: 1-Lipschitz; the position is discontinuous."""
    if call.get("sorted") is False:
        return call.opaque("sorting without a fixed order has no rule")
    if "aminmax" in call.node.op:
        return [call.atom(Contraction(call.first), tuple(v.shape)) for v in call.value]
    atom = call.atom(Contraction(call.first), call.shape)
    return call.with_rest(atom, "the rank of an entry is discontinuous")


@rule("linalg_vector_norm", "norm", "frobenius_norm", "linalg_norm")
def vector_norm(call: Call) -> Expr:
    """Return the p-norm along axes."""
    x = call.first
    order = call.get("ord", call.get("p", 2))
    dims = call.get("dim", range(len(x.shape)))
    matrix = "linalg_norm" in call.node.op and not isinstance(dims, int) and len(dims) == 2
    if isinstance(order, str) or (matrix and call.get("ord") is not None) or float(order) < 1:
        return call.opaque(f"no rule for the norm of order {order}")
    return call.atom(VectorNorm(x, float(order), x.numel // max(1, math.prod(call.shape))))


class VectorNorm(Stretch):
    """``||x||_p`` over groups of n entries; in l2 its constant is ``max(1, n^(1/p - 1/2))``."""

    def __init__(self, x: Expr, order: float, length: int) -> None:
        super().__init__(x, max(1.0, max(length, 1) ** (1 / order - 0.5) * (1 + 1e-15) if order < 2 else 1.0))

    def image(self, context: Context) -> Range:
        """Return zero to the norm of the whole input; the norms of all groups together are no larger either."""
        largest = outward(0.0, product(context.range(self.inputs[0]).norm, self.factor))[1]
        return Range(0.0, largest, largest, largest)


@rule("std", "var", "std_mean", "var_mean")
def deviation(call: Call) -> Any:
    """Return the standard deviation ``||x - mean|| / sqrt(n - c)``, or its square."""
    x = call.first
    dims = reduced_axes(call, x)
    n = math.prod(x.shape[d] for d in dims)
    unbiased = call.get("unbiased", True)
    correction = float(call.get("correction", 1 if unbiased else 0))
    if n <= correction:
        return call.opaque("a variance of too few entries")
    around = centered(call, x, Spread(x.shape, tuple(sorted(dims)), 0.0, True))
    norm = call.atom(VectorNorm(around, 2.0, n), call.shape)
    std = scaled(call, norm, torch.tensor(1.0 / math.sqrt(n - correction), dtype=torch.float64))
    out = std if "std" in call.node.op else call.atom(Square(std), call.shape)
    if not isinstance(call.value, tuple | list):
        return out
    mean = summed(call, x, dims, "mean", keep=bool(call.get("keepdim", False)))
    return [out, reshaped(call, mean, call.value[1].shape)]


@rule("argmax", "argmin", "round", "floor", "ceil", "sign", "fmod", "remainder", "gt", "lt", "ge", "le", "eq", "ne",
      "one_hot", "argsort", "searchsorted", "bucketize", "floor_divide", "trunc", "heaviside", "nonzero", "isnan",
      "isinf", "histc", "logical_not", "logical_and", "logical_or", "bitwise_not", "bitwise_and", "bitwise_or", "sgn",
      "frac", "any", "all", "count_nonzero", "multinomial", "bincount", "unique", "item", "_local_scalar_dense",
      "greater", "greater_equal", "less", "less_equal", "not_equal", "isfinite", "isclose", "fix", "logical_xor",
      "signbit", "mode", "is_nonzero", "unique_consecutive", "nonzero_numpy", "argwhere")  # fmt: skip
def steps(call: Call) -> Any:
    """Mark steps and choices, which are not Lipschitz, as discontinuous."""
    return call.opaque(f"{call.name} is discontinuous", known=True)


def _norms(call: Call, left: Any, right: Any, shift: float = 0.0) -> Expr:
    """Return ``||left - right + shift||_p`` along the last axis, with broadcasting."""
    order = float(call.get("p", 2.0))
    if order < 1:
        return call.opaque(f"no rule for a distance of order {order}")
    shape = torch.broadcast_shapes(tuple(left.shape), tuple(right.shape))
    difference = total(call.shaped(shape), ((left, 1.0), (right, -1.0), (shift, 1.0)))
    return reshaped(call, call.atom(VectorNorm(difference, order, shape[-1]), tuple(shape[:-1])), call.shape)


@rule("cdist", "_cdist_forward", "_euclidean_dist")
def distances(call: Call) -> Expr:
    """All distances ``||x_i - y_j||_p``: differences of rows side by side, then a norm of each."""
    x, y = call["x1"], call["x2"]
    rows, columns = (*x.shape[:-1], 1, x.shape[-1]), (*y.shape[:-2], 1, *y.shape[-2:])
    return _norms(call, reshaped(call, x, rows), reshaped(call, y, columns))


@rule("pairwise_distance")
def paired_distances(call: Call) -> Expr:
    """Distances ``||x_i - y_i + eps||_p`` of corresponding rows."""
    return _norms(call, call["x1"], call["x2"], float(call.get("eps", 1e-6)))


@rule("pdist")
def own_distances(call: Call) -> Expr:
    """Distances between all pairs of rows of one matrix."""
    x = call["self"]
    i, j = torch.triu_indices(x.shape[0], x.shape[0], 1)
    difference = call.linear("generic", lambda z: z[i] - z[j], [x], shape=(len(i), x.shape[1]))
    return _norms(call, difference, torch.zeros(()))
