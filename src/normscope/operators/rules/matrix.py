"""Matrix products: by a constant they are linear, of two input-dependent tensors they need ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.operators.expression import Expr, LinearOp, linear
from normscope.operators.nonlinear import Context, Lip, Nonlinear, Range, product
from normscope.operators.registry import Call, rule
from normscope.operators.rules.arithmetic import _constant, _weighted
from normscope.operators.rules.layout import add_terms, broadcast, scaled


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

    op = LinearOp(
        "matrix",
        apply,
        None if bias is None else bias.detach(),
        {"weight": weight, "axis": axis},
        axes,
        call.node.owner,
        call.weight_name,
    )
    return linear(op, [x], shape)


@rule("linear")
def linear_layer(call: Call) -> Expr:
    """``x W^T + b``."""
    x, weight, bias = call["input"], call["weight"], call["bias"]
    if isinstance(weight, Expr) or isinstance(bias, Expr):
        return call.opaque("the weight of a linear layer depends on the input")
    return matrix(call, x, weight, bias=bias)


@rule("addmm", "baddbmm", "addmv", "addbmm")
def addmm(call: Call) -> Expr:
    """``beta self + alpha A B``."""
    names = list(call.arguments)
    base, left, right = (call[n] for n in names[:3])
    alpha, beta = float(call.get("alpha", 1)), float(call.get("beta", 1))
    if "addbmm" in call.node.op or "addmv" in call.node.op:
        return call.opaque("no rule for this matrix product")
    if not isinstance(left, Expr) and not isinstance(right, Expr):
        return scaled(call, broadcast(base, call.shape, call), _constant(beta))
    product = matmul_of(call, left, right)
    terms = [product if alpha == 1 else scaled(call, product, _constant(alpha))]
    bias = None
    if isinstance(base, Expr):
        wide = broadcast(base, call.shape, call)
        terms.append(wide if beta == 1 else scaled(call, wide, _constant(beta)))
    elif beta:
        bias = _constant(base) * beta
    return add_terms(call, terms, bias)


@rule("mm", "bmm", "matmul", "mv", "dot", "vdot", "__matmul__")
def matmul(call: Call) -> Expr:
    """Matrix product with broadcasting batch axes."""
    left, right = list(call.arguments.values())[:2]
    return matmul_of(call, left, right)


def matmul_of(call: Call, left: Any, right: Any) -> Expr:
    """Return the matrix product of two tensors, at least one of which depends on the input."""
    shape_l, shape_r = tuple(left.shape), tuple(right.shape)
    if len(shape_l) == 1 or len(shape_r) == 1:
        return _vector_product(call, left, right)
    batch = torch.broadcast_shapes(shape_l[:-2], shape_r[:-2])
    if not isinstance(right, Expr):
        if right.ndim == 2:
            return matrix(call, left, right.mT)
        wide = broadcast(left, (*batch, *shape_l[-2:]), call)
        return _batched(call, wide, right.expand(*batch, *shape_r[-2:]), left=False)
    if not isinstance(left, Expr):
        wide = broadcast(right, (*batch, *shape_r[-2:]), call)
        if left.ndim == 2:
            return matrix(call, wide, left, axis=-2)
        return _batched(call, wide, left.expand(*batch, *shape_l[-2:]), left=True)
    wide_l = broadcast(left, (*batch, *shape_l[-2:]), call)
    wide_r = broadcast(right, (*batch, *shape_r[-2:]), call)
    return call.atom(MatrixProduct(wide_l, wide_r), (*batch, shape_l[-2], shape_r[-1]))


def _batched(call: Call, x: Expr, constant: Tensor, *, left: bool) -> Expr:
    """Return ``constant @ x`` or ``x @ constant`` with one matrix per batch index."""
    if left:
        return matrix(call, x, constant, axis=-2)
    # x @ C with C per batch index: rows of x share C, so the matrix acts on the last axis, batch by batch.
    shape = (*x.shape[:-1], constant.shape[-1])
    op = LinearOp(
        "matrix",
        lambda z: torch.matmul(z, constant.to(z)),
        None,
        {"weight": constant.mT.detach(), "axis": -1},
        lambda a: a if a == len(x.shape) - 2 else None,
        call.node.owner,
        call.weight_name,
    )
    return linear(op, [x], shape)


def _vector_product(call: Call, left: Any, right: Any) -> Expr:
    """Return a product with a vector."""
    if isinstance(left, Expr) and isinstance(right, Expr):
        return call.opaque("a product of two input-dependent vectors has no rule")
    if isinstance(left, Expr):
        if right.ndim == 1:  # (..., k) . (k)
            row = matrix(call, left, right.unsqueeze(0))
            return _reshaped(call, row, call.shape)
        row = _reshaped(call, left, (1, *left.shape))
        return _reshaped(call, matmul_of(call, row, right), call.shape)
    if left.ndim == 1:
        return _reshaped(call, matmul_of(call, left.unsqueeze(0), _as_matrix(call, right)), call.shape)
    return _reshaped(call, matmul_of(call, left, _as_matrix(call, right)), call.shape)


def _as_matrix(call: Call, x: Expr) -> Expr:
    """Return a vector as a column."""
    return _reshaped(call, x, (*x.shape, 1)) if len(x.shape) == 1 else x


def _reshaped(call: Call, x: Expr, shape: Sequence[int]) -> Expr:
    """Return x under another shape."""
    shape = tuple(shape)
    op = LinearOp("isometry", lambda z: z.reshape(shape), None, {"reshape": True}, None, call.node.owner)
    return x if x.shape == shape else linear(op, [x], shape)


class MatrixProduct(Nonlinear):
    """``A B``: ``||d(AB)||_F <= sup||A||_2 ||dB||_F + sup||B||_2 ||dA||_F``, batch index by batch index."""

    def __init__(self, left: Expr, right: Expr) -> None:
        self.inputs = (left, right)

    def constant(self, context: Context) -> Lip:
        """Return the product rule with spectral norms bounded by the ranges of rows and entries."""
        a, b = self.inputs
        norm_a, norm_b = (_spectral(context.range(e), e.shape) for e in (a, b))
        return _weighted(context.lipschitz(b), norm_a) + _weighted(context.lipschitz(a), norm_b)

    def image(self, context: Context) -> Range:
        """Return bounds by rows of A and columns of B."""
        a, b = self.inputs
        range_a, range_b = context.range(a), context.range(b)
        norm_a, norm_b = (_spectral(r, e.shape) for r, e in ((range_a, a), (range_b, b)))
        columns = min(product(range_b.sup, math.sqrt(b.shape[-2])), norm_b)
        row = product(range_a.row, norm_b)
        sup = min(product(range_a.row, columns), row)
        return Range(-sup, sup, row, min(product(range_a.norm, norm_b), product(range_b.norm, norm_a)))


def _spectral(inside: Range, shape: Sequence[int]) -> float:
    """Bound the spectral norm of each matrix in a tensor of matrices."""
    rows = math.sqrt(shape[-2])
    return min(inside.norm, product(inside.row, rows), product(inside.sup, rows * math.sqrt(shape[-1])))


@rule("einsum")
def einsum(call: Call) -> Expr:
    """A contraction of two tensors, turned into one matrix product."""
    equation = call["equation"].replace(" ", "")
    operands = list(call["tensors"])
    plan = _plan(equation, [len(o.shape) for o in operands])
    if plan is None:
        return call.opaque(
            f"einsum {equation} has no rule (two operands, each label at most once in each, no ellipsis)"
        )
    left, right, out = plan
    shared = [c for c in left if c in right]
    batch = [c for c in shared if c in out]
    inner = [c for c in shared if c not in out]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    if any(c not in out for c in rows + columns):
        return call.opaque(f"einsum {equation} sums an operand alone: no rule")
    size = dict(zip(left, operands[0].shape, strict=True)) | dict(zip(right, operands[1].shape, strict=True))

    def total(labels: list[str]) -> int:
        return math.prod(size[c] for c in labels)

    a = _arranged(call, operands[0], [left.index(c) for c in batch + rows + inner])
    b = _arranged(call, operands[1], [right.index(c) for c in batch + inner + columns])
    a = _to_shape(call, a, (total(batch), total(rows), total(inner)))
    b = _to_shape(call, b, (total(batch), total(inner), total(columns)))
    flat = matmul_of(call, a, b)
    order = batch + rows + columns
    back = _to_shape(call, flat, tuple(size[c] for c in order))
    result: Expr = _arranged(call, back, [order.index(c) for c in out])
    return result


def _plan(equation: str, ranks: list[int]) -> tuple[str, str, str] | None:
    """Return the labels of both operands and of the result, or ``None`` if it is another kind of contraction."""
    if "." in equation or len(ranks) != 2:
        return None
    inputs, arrow, out = equation.partition("->")
    labels = inputs.split(",")
    if len(labels) != 2 or any(len(set(t)) != len(t) or len(t) != r for t, r in zip(labels, ranks, strict=True)):
        return None
    if not arrow:
        out = "".join(sorted(c for c in set(inputs) - {","} if inputs.count(c) == 1))
    return labels[0], labels[1], out


def _arranged(call: Call, x: Any, order: list[int]) -> Any:
    """Permute axes of an expression or a constant."""
    if isinstance(x, Tensor):
        return x.permute(order)
    if order == sorted(order):
        return x
    shape = tuple(x.shape[i] for i in order)
    op = LinearOp("isometry", lambda z: z.permute(order), None, {}, order.index, call.node.owner)
    return linear(op, [x], shape)


def _to_shape(call: Call, x: Any, shape: tuple[int, ...]) -> Any:
    """Reshape an expression or a constant."""
    return x.reshape(shape) if isinstance(x, Tensor) else _reshaped(call, x, shape)


@rule("cosine_similarity", "cdist", "bilinear", "_trilinear")
def bilinear_forms(call: Call) -> Expr:
    """Say that these have no rule."""
    return call.opaque("no rule for this bilinear form")
