"""Products of matrices and other bilinear maps: linear if one factor is constant, else bounded by the ranges."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.operators.arithmetic import Product, total
from normscope.operators.expression import Expr, as_expr
from normscope.operators.layout import broadcast, permuted, reshaped
from normscope.operators.nonlinear import Context, Lip, Nonlinear, Range, outward, product
from normscope.operators.reduction import summed
from normscope.operators.registry import Call, rule
from normscope.operators.spread_division import Division, Spread


def matrix(call: Call, x: Expr, weight: Tensor, axis: int = -1, bias: Tensor | None = None) -> Expr:
    """Return ``weight`` acting on one axis of x.

    Args:
        call: the call it belongs to.
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


@rule("addmm", "baddbmm", "addmv", "addbmm")
def addmm(call: Call) -> Expr:
    """``beta self + alpha A B``, for ``addbmm`` summed over the batch."""
    base, left, right = (call[n] for n in list(call.arguments)[:3])
    alpha, beta = float(call.get("alpha", 1)), float(call.get("beta", 1))
    product = matmul_of(call, left, right)
    if call.name == "addbmm":
        product = product.sum(0) if isinstance(product, Tensor) else summed(call, product, [0], "sum", keep=False)
    return total(call, ((product, alpha), (base, beta) if beta else (0.0, 1.0)))


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
    """Mark products without a rule as opaque."""
    return call.opaque("no rule for this product of tensors")


@statement("normscope", "BIL-1", holds="any weight of three axes")
def bilinear_norm(weight: Tensor) -> float:
    r"""Return a bound on the norm of a bilinear form ``y_k = sum_ij W_kij u_i v_j``.

    .. math:: \|B(u, v)\| \le \min_a \sigma_{\max}(W_{(a)})\, \|u\| \|v\|

    with ``W_(a)`` the three ways to write W as a matrix with one of its axes as rows.

    >>> bilinear_norm(torch.eye(2, dtype=torch.float64).reshape(1, 2, 2)) >= 1.0
    True
    """
    wide = weight.detach().to(torch.float64)
    sizes = []
    for axis in range(3):
        flat = wide.movedim(axis, 0).flatten(1)
        gram = flat @ flat.mT if flat.shape[0] <= flat.shape[1] else flat.mT @ flat
        # The eigenvalues of a computed Gram matrix are off by at most its rounding, a multiple of its trace.
        slack = 2.0**-50 * max(flat.shape) * float(gram.trace())
        sizes.append(math.sqrt(max(float(torch.linalg.eigvalsh(gram)[-1]), 0.0) + slack) * (1 + 1e-12))
    return min(sizes)


class Bilinear(Nonlinear):
    """``B(u, v)`` row by row: ``||dB|| <= b (R_u ||dv|| + R_v ||du||)`` with b its norm and R the largest rows."""

    def __init__(self, left: Expr, right: Expr, norm: float) -> None:
        self.inputs, self.norm = (left, right), norm

    def constant(self, context: Context) -> Lip:
        """Return the product rule on the largest rows."""
        u, v = self.inputs
        rows = [product(self.norm, context.range(e).row) for e in (v, u)]
        return context.lipschitz(u).times(rows[0]) + context.lipschitz(v).times(rows[1])

    def image(self, context: Context) -> Range:
        """Return the norm times the largest rows."""
        rows = [context.range(e).row for e in self.inputs]
        row = outward(0.0, product(self.norm, product(*rows)))[1]
        return Range(-row, row, row)


@rule("bilinear")
def bilinear(call: Call) -> Expr:
    """``x1^T W_k x2 + b_k``: linear if one of the two is constant."""
    left, right, weight, bias = call["input1"], call["input2"], call["weight"], call["bias"]
    if isinstance(weight, Expr) or isinstance(bias, Expr):
        return call.opaque("a bilinear layer whose weight depends on the input")
    if isinstance(left, Expr) and isinstance(right, Expr):
        form: Any = call.atom(Bilinear(left, right, bilinear_norm(weight)), call.shape)
    else:
        x, other = (left, right) if isinstance(left, Expr) else (right, left)
        equation = "kij,...j->...ki" if x is left else "kij,...i->...kj"
        each = torch.einsum(equation, weight.detach().to(torch.float64), other.detach().to(torch.float64))
        form = matrix(call, x, each)
    return total(call, ((form, 1.0), (0.0 if bias is None else bias, 1.0)))


@rule("tensordot")
def tensordot(call: Call) -> Expr:
    """A sum over some axes of each tensor: a matrix product after they are put last and first."""
    left, right = call["self"], call["other"]
    ours = [d % len(left.shape) for d in call["dims_self"]]
    theirs = [d % len(right.shape) for d in call["dims_other"]]
    kept = [[d for d in range(len(t.shape)) if d not in dims] for t, dims in ((left, ours), (right, theirs))]
    inner = math.prod(left.shape[d] for d in ours)
    rows, columns = (math.prod(t.shape[d] for d in dims) for t, dims in zip((left, right), kept, strict=True))
    a = reshaped(call, permuted(call, left, [*kept[0], *ours]), (rows, inner))
    b = reshaped(call, permuted(call, right, [*theirs, *kept[1]]), (inner, columns))
    return reshaped(call, matmul_of(call, a, b), call.shape)


@rule("chain_matmul", "linalg_multi_dot")
def chain(call: Call) -> Expr:
    """A product of several matrices, from the left."""
    first, *rest = next(iter(call.arguments.values()))
    return functools.reduce(lambda product, factor: matmul_of(call, product, factor), rest, first)


@rule("_grouped_mm", "transformers.grouped_mm_fallback.default")
def grouped(call: Call) -> Expr:
    """Rows times the matrix of their expert: linear while the experts' shares of the rows are fixed."""
    names = list(call.arguments)
    x, weight, ends = (call.arguments[n] for n in names[:3])
    if isinstance(ends, Expr) or ends is None:
        return call.opaque("the assignment of rows to experts changes discontinuously with the input", known=True)
    if not isinstance(x, Expr) or isinstance(weight, Expr) or len(x.shape) != 2 or weight.ndim != 3:
        return call.opaque("experts whose weights depend on the input have no rule")
    sizes = torch.diff(ends.to(torch.int64).cpu(), prepend=torch.zeros(1, dtype=torch.int64))
    owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    if len(owner) != x.shape[0]:
        return call.opaque("rows that belong to no expert have no rule")
    each = weight.detach().to(torch.float64).mT[owner]
    return matrix(call, broadcast(x, x.shape, call), each)
