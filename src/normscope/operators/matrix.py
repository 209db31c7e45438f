"""Matrix products: by a constant they are linear, of two input-dependent tensors they need ranges."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.operators.arithmetic import Product, total
from normscope.operators.expression import Expr, as_expr
from normscope.operators.layout import broadcast, permuted, reshaped
from normscope.operators.nonlinear import Context, Lip, Nonlinear, Range, outward, product
from normscope.operators.normalization import Division, Spread
from normscope.operators.reduction import summed
from normscope.operators.registry import Call, rule


def matrix(call: Call, x: Expr, weight: Tensor, axis: int = -1, bias: Tensor | None = None) -> Expr:
    """Return ``weight`` acting on one axis of x.

    Args:
        call: where it happens.
        x: the input, shape (..., k) or, for ``axis=-2``, (..., k, p).
        weight: shape (m, k), or (..., m, k) with batch axes equal to the leading axes of x (each its own matrix).
        axis: -1 or -2.
        bias: added to the result.
    """
    weight = weight.detach()
    rank = len(x.shape)
    where = rank + axis
    shape = (*x.shape[:where], weight.shape[-2], *x.shape[where + 1 :])
    batched = weight.ndim > 2

    def apply(z: Tensor) -> Tensor:
        w = weight.to(z)
        if axis == -1:
            return torch.matmul(z, w.mT) if not batched else torch.matmul(z.unsqueeze(-2), w.mT).squeeze(-2)
        return torch.matmul(w, z)

    def axes(a: int) -> int | None:
        return None if a == where or (batched and a < where) else a

    bias = None if bias is None else bias.detach()
    return call.linear("matrix", apply, [x], shape=shape, bias=bias, axes=axes, weight=weight, axis=axis)


@rule("linear")
def linear_layer(call: Call) -> Expr:
    """``x W^T + b``, the weight perhaps a function of the input too."""
    x, weight, bias = call["input"], call["weight"], call["bias"]
    if isinstance(x, Expr) and not isinstance(weight, Expr) and not isinstance(bias, Expr):
        return matrix(call, x, weight, bias=bias)
    if len(weight.shape) != 2:
        return call.opaque("a linear layer whose weight is a vector that depends on the input")
    product = matmul_of(call, x, permuted(call, weight, [1, 0]))
    return total(call, ((product, 1.0), (0.0 if bias is None else bias, 1.0)))


@rule("addmm", "baddbmm", "addmv")
def addmm(call: Call) -> Expr:
    """``beta self + alpha A B``."""
    base, left, right = (call[n] for n in list(call.arguments)[:3])
    alpha, beta = float(call.get("alpha", 1)), float(call.get("beta", 1))
    return total(call, ((matmul_of(call, left, right), alpha), (base, beta) if beta else (0.0, 1.0)))


@rule("mm", "bmm", "matmul", "mv", "dot", "vdot", "__matmul__", "linalg_matmul")
def matmul(call: Call) -> Expr:
    """Matrix product with broadcasting batch axes."""
    left, right = list(call.arguments.values())[:2]
    return matmul_of(call, left, right)


@rule("inner", "linalg_vecdot", "outer", "ger")
def vector_products(call: Call) -> Expr:
    """Products of vectors as matrix products."""
    left, right = list(call.arguments.values())[:2]
    if len(left.shape) != 1 or len(right.shape) != 1:
        return call.opaque("no rule for this product of tensors")
    if "outer" in call.node.op or "ger" in call.node.op:
        left, right = reshaped(call, left, (*left.shape, 1)), reshaped(call, right, (1, *right.shape))
    return matmul_of(call, left, right)


def matmul_of(call: Call, left: Any, right: Any) -> Any:
    """Return the matrix product of two tensors, each an expression or a constant."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return torch.matmul(left, right)
    shape_l, shape_r = tuple(left.shape), tuple(right.shape)
    if len(shape_l) == 1 or len(shape_r) == 1:
        return _vector_product(call, left, right)
    batch = torch.broadcast_shapes(shape_l[:-2], shape_r[:-2])
    if not isinstance(right, Expr):
        if right.ndim == 2:
            return matrix(call, left, right.mT)
        return _times_each(call, broadcast(left, (*batch, *shape_l[-2:]), call), right)
    if not isinstance(left, Expr):
        return matrix(call, broadcast(right, (*batch, *shape_r[-2:]), call), left, axis=-2)
    wide_l = broadcast(left, (*batch, *shape_l[-2:]), call)
    wide_r = broadcast(right, (*batch, *shape_r[-2:]), call)
    return call.atom(MatrixProduct(wide_l, wide_r), (*batch, shape_l[-2], shape_r[-1]))


def _times_each(call: Call, x: Expr, constant: Tensor) -> Expr:
    """Return ``x @ C`` with one matrix per batch index: rows of x share C, which acts on the last axis."""
    shape = (*x.shape[:-1], constant.shape[-1])
    rows = len(x.shape) - 2
    known: dict[str, Any] = {"axes": lambda a: a if a == rows else None, "weight": constant.mT.detach(), "axis": -1}
    return call.linear("matrix", lambda z: torch.matmul(z, constant.to(z)), [x], shape=shape, **known)


def _vector_product(call: Call, left: Any, right: Any) -> Expr:
    """Return a product with a vector: a row on the left, a column on the right."""
    if len(left.shape) == 1:
        left = reshaped(call, left, (1, *left.shape))
    if len(right.shape) == 1:
        right = reshaped(call, right, (*right.shape, 1))
    return reshaped(call, matmul_of(call, left, right), call.shape)


class MatrixProduct(Nonlinear):
    """``A B``: ``||d(AB)||_F <= sup||A||_2 ||dB||_F + sup||B||_2 ||dA||_F``, batch index by batch index."""

    def __init__(self, left: Expr, right: Expr) -> None:
        self.inputs = (left, right)

    def constant(self, context: Context) -> Lip:
        """Return the product rule with spectral norms bounded by the ranges of rows and entries."""
        a, b = self.inputs
        norm_a, norm_b = (_spectral(context.range(e), e.shape) for e in (a, b))
        return context.lipschitz(b).times(norm_a) + context.lipschitz(a).times(norm_b)

    def image(self, context: Context) -> Range:
        """Return bounds by rows of A and columns of B."""
        a, b = self.inputs
        range_a, range_b = context.range(a), context.range(b)
        norm_a, norm_b = (_spectral(r, e.shape) for r, e in ((range_a, a), (range_b, b)))
        columns = min(product(range_b.sup, math.sqrt(b.shape[-2])), norm_b)
        row = product(range_a.row, norm_b)
        sup = min(product(range_a.row, columns), row)
        norm = min(product(range_a.norm, norm_b), product(range_b.norm, norm_a))
        return Range(*outward(-sup, sup), outward(0.0, row)[1], outward(0.0, norm)[1])


def _spectral(inside: Range, shape: Sequence[int]) -> float:
    """Bound the spectral norm of each matrix in a tensor of matrices."""
    rows = math.sqrt(shape[-2])
    return min(inside.norm, product(inside.row, rows), product(inside.sup, rows * math.sqrt(shape[-1])))


@rule("cosine_similarity")
def cosine_similarity(call: Call) -> Expr:
    """``<x, y> / (max(|x|, eps) max(|y|, eps))``: each is divided by its norm, then they are multiplied and summed."""
    parts = [as_expr(call[name]) for name in ("x1", "x2")]
    shape = tuple(torch.broadcast_shapes(*(p.shape for p in parts)))
    dim = int(call.get("dim", 1)) % len(shape)
    spread = Spread(shape, (dim,), float(call.get("eps", 1e-8)), False, float(shape[dim]), "max")
    units = [call.atom(Division(broadcast(p, shape, call), spread, "l2_norm"), shape) for p in parts]
    return summed(call, call.atom(Product(*units), shape), [dim], "sum", keep=False)


@rule("_trilinear", "kron")
def bilinear_forms(call: Call) -> Expr:
    """Say that these have no rule."""
    return call.opaque("no rule for this product of tensors")
