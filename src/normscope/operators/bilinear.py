"""Forms that are linear in each of two tensors: bilinear layers and contractions of tensors."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.operators.arithmetic import total
from normscope.operators.expression import Expr
from normscope.operators.layout import broadcast, permuted, reshaped
from normscope.operators.matrix import matmul_of, matrix
from normscope.operators.nonlinear import Context, Lip, Nonlinear, Range, outward, product
from normscope.operators.reduction import summed
from normscope.operators.registry import Call, rule


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


@rule("addbmm")
def addbmm(call: Call) -> Expr:
    """``beta self + alpha sum_b A_b B_b``."""
    base, left, right = call["self"], call["batch1"], call["batch2"]
    alpha, beta = float(call.get("alpha", 1)), float(call.get("beta", 1))
    if isinstance(left, Expr) or isinstance(right, Expr):
        inner: Any = summed(call, matmul_of(call, left, right), [0], "sum", keep=False)
    else:
        inner = torch.bmm(left, right).sum(0)
    return total(call, ((inner, alpha), (base, beta) if beta else (0.0, 1.0)))


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
