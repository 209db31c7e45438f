"""Ranges of linear operations: bounds on entries, on rows and on the whole tensor, rounded outward."""

import math
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from normscope.lipschitz.assembly_error import forming_error
from normscope.lipschitz.tokens import TokenMatrices, token_axis, token_matrices
from normscope.operators.expression import Expr, LinearOp
from normscope.operators.nonlinear import INF, Range, product

#: More than a product or a sum of a few terms can lose in float64, relative to its terms.
ROOM = 2.0**-48

#: Largest smaller side of a block whose spectral norm is worth an eigenvalue problem for a range.
SMALL_BLOCK = 256


def range_of(value: Tensor) -> Range:
    """Return the range of a constant tensor; an entry that is not a number may be any number.

    >>> range_of(torch.tensor([3.0, -4.0])).high
    3.0
    """
    if value.numel() == 0:
        return Range(0.0, 0.0, 0.0, 0.0)
    value = value.detach().to(torch.float64)
    if bool(value.isnan().any()):
        return Range()
    rows = value.norm(dim=-1).max() if value.ndim else value.abs()
    return Range(float(value.min()), float(value.max()), up(rows), up(value.norm()))


def up(x: Tensor | float) -> float:
    """Return a bound raised by the rounding of the sum it comes from; NaN becomes infinity."""
    value = float(x) * (1 + 1e-12)
    return INF if math.isnan(value) else value


def added(parts: Sequence[Range]) -> Range:
    """Return the range of a sum of tensors of one shape.

    >>> added([Range(0.0, 1.0), Range(-1.0, 2.0)]).low <= -1.0
    True
    """
    return Range(
        _total([r.low for r in parts], -1.0),
        _total([r.high for r in parts], 1.0),
        up(sum(r.row for r in parts)),
        up(sum(r.norm for r in parts)),
    )


def _total(ends: Sequence[float], side: float) -> float:
    """Return a sum of ends, moved outward by more than its rounding; opposite infinities give no bound."""
    total = sum(ends)
    if math.isnan(total):
        return side * INF
    return total if math.isinf(total) else total + side * ROOM * sum(abs(e) for e in ends)


def scaled_range(scale: Tensor, inside: Range) -> Range:
    """Return the range after an entrywise factor.

    >>> scaled_range(torch.tensor([-2.0, 1.0]), Range(0.0, 3.0)).low <= -6.0
    True
    """
    scale = scale.detach().to(torch.float64)
    if scale.numel() == 0:
        return Range(0.0, 0.0, 0.0, 0.0)
    if bool(scale.isnan().any()):
        return Range()
    ends = [product(a, b) for a in (float(scale.min()), float(scale.max())) for b in (inside.low, inside.high)]
    top = up(scale.abs().max())
    return Range(
        _total([min(ends)], -1.0), _total([max(ends)], 1.0), product(top, inside.row), product(top, inside.norm)
    )


def copied(expr: Expr, inside: Range, norm: float) -> Range:
    """Return the range of an operation that moves, copies or drops entries, and may fill in zeros."""
    op, inner = expr.op, expr.inputs[0].shape
    low, high = inside.low, inside.high
    if op is not None and _fills_zeros(op, inner):
        low, high = min(low, 0.0), max(high, 0.0)
    return Range(low, high, _copied_row(expr, inside), product(norm, inside.norm))


def _fills_zeros(op: LinearOp, inner: tuple[int, ...]) -> bool:
    """Return whether some output entry is not a copy: ones are copied to ones."""
    if op.kind == "isometry":
        return False
    return op.kind == "embedding" or bool((op.apply(torch.ones(inner, dtype=torch.float64)) == 0).any())


def _copied_row(expr: Expr, inside: Range) -> float:
    """Return the largest row norm after entries were moved, where rows can be followed."""
    op, inner, shape = expr.op, expr.inputs[0].shape, expr.shape
    if op is None or not inner or not shape:
        return INF
    if op.data.get("reshape"):
        if shape[-1] and inner[-1] % shape[-1] == 0:
            return inside.row  # rows were cut
        if inner[-1] and shape[-1] % inner[-1] == 0:
            return product(inside.row, up(math.sqrt(shape[-1] // inner[-1])))
        return INF
    if op.axes is None:
        return INF
    last = len(inner) - 1
    if op.axes(last) == len(shape) - 1:
        return inside.row  # the last axis stays the last one
    # Within rows: all other axes stay where they are, and no entry is taken twice.
    stays = len(shape) == len(inner) and all(op.axes(a) == a for a in range(last)) and op.axes(last) is None
    return inside.row if stays and op.kind in ("isometry", "contraction", "embedding") else INF


def concatenated(expr: Expr, parts: Sequence[Range]) -> Range:
    """Return the range of tensors side by side; zero stands where the parts are constants."""
    last = expr.op is not None and expr.op.data["axis"] == len(expr.shape) - 1
    row = math.hypot(*(r.row for r in parts)) if last else max(r.row for r in parts)
    low, high = min(r.low for r in parts), max(r.high for r in parts)
    return Range(min(low, 0.0), max(high, 0.0), up(row), up(math.hypot(*(r.norm for r in parts))))


def averaged(expr: Expr, inside: Range, norm: float) -> Range:
    """Return the range of a map with coefficients >= 0, from its row sums."""
    whole = product(norm, inside.norm)
    if expr.op is None or inside.sup == INF:
        return Range(norm=whole)
    sums = expr.op.apply(torch.ones(expr.inputs[0].shape, dtype=torch.float64))
    room = 1e-12 + 2.0**-52 * max(expr.inputs[0].numel, 1)
    most, least = float(sums.max()) * (1 + room), float(sums.min()) * (1 - room)
    ends = [most * inside.low, least * inside.low, most * inside.high, least * inside.high]
    return Range(min(ends), max(ends), norm=whole)


def convolved(op: LinearOp, inside: Range) -> Range:
    """Return the range of a convolution of bounded entries: the absolute sum of a filter times the largest entry."""
    if inside.sup == INF or op.data["transposed"]:
        return Range()
    reach = up(op.data["weight"].to(torch.float64).abs().flatten(1).sum(1).max())
    return Range(-reach * inside.sup, reach * inside.sup)


#: Entries of a weight that are processed together in float64: few enough to stay in the cache.
PART = 2**17
#: Results of :func:`longest_rows` by operation.
_longest: WeakKeyDictionary[LinearOp, tuple[float, float]] = WeakKeyDictionary()


def longest_rows(op: LinearOp) -> tuple[float, float]:
    """Return the largest l1 norm and the largest l2 norm of a row of a matrix product's weight.

    Computed once, because every domain needs them.
    """
    if op not in _longest:
        weight = op.data["weight"].detach()
        sums, squares = [], []
        rows = weight.reshape(math.prod(weight.shape[:-1]), weight.shape[-1])
        for part in rows.split(max(1, PART // max(weight.shape[-1], 1))):
            wide = part.to(torch.float64)
            sums.append(wide.abs().sum(-1).max())
            squares.append(torch.linalg.vecdot(wide, wide).max())
        _longest[op] = up(torch.stack(sums).max()), up(torch.stack(squares).max().sqrt())
    return _longest[op]


def shifted(inside: Range, expr: Expr) -> Range:
    """Return the range after the operation's own constant is added."""
    bias = None if expr.op is None else expr.op.bias
    if bias is None:
        return inside
    return added([inside, range_of(bias.to(torch.float64).expand(expr.shape))])


def _largest_norm(blocks: Tensor) -> float:
    """Return a bound on the largest spectral norm of a stack of small matrices, from their Gram matrices.

    The eigenvalues of a computed Gram matrix are off by at most its rounding, a multiple of its trace.
    """
    tall = blocks.shape[-2] > blocks.shape[-1]
    gram = blocks.mT @ blocks if tall else blocks @ blocks.mT
    slack = 2.0**-50 * max(blocks.shape[-2:]) * gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    return up((torch.linalg.eigvalsh(gram)[..., -1].clamp_min(0.0) + slack).sqrt().max())


def row_wise(
    source: Expr, expr: Expr, row: float, *, constant: Tensor | None = None, matrices: TokenMatrices | None = None
) -> Range:
    """Return the range of a map that treats every row (slice along the last axis) of its source alike.

    ``|y_j| <= ||M_j|| R + |c_j|`` with M the matrix of one row and R the largest norm of a row; where rows of the
    result lie within the image of one row (heads of a token), their norms are bounded block by block.

    Args:
        source: the expression the map starts from.
        expr: where it ends.
        row: R.
        constant: what is added to the linear part, of the shape of the result.
        matrices: where matrices formed before are kept.
    """
    if row == INF or not source.shape or not expr.shape or 0 in (source.numel, expr.numel):
        return Range()
    matrices = matrices or TokenMatrices(0)
    key = source.id, expr.id
    if key not in matrices.gains:  # the same on every domain
        matrices.gains[key] = _gains(source, expr, matrices)
    gains = matrices.gains[key]
    if gains is None:
        return Range()
    shift = Range(0.0, 0.0, 0.0, 0.0) if constant is None else range_of(constant)
    sup = product(gains[0], row)
    return added([Range(-sup, sup, product(gains[1], row)), shift])


def _gains(source: Expr, expr: Expr, matrices: TokenMatrices) -> tuple[float, float] | None:
    """Return what the largest norm of a row of the source is multiplied by: for entries, and for rows of the result."""
    width = source.shape[-1]
    found = token_axis(source, expr, wanted=(source.numel // width, width))
    matrix = None if found is None else matrices.matrix(source, expr, found)
    if found is None or matrix is None:
        return None
    slack, rows = forming_error(source, expr).total, INF
    if found[1][1] % expr.shape[-1] == 0 and min(expr.shape[-1], width) <= SMALL_BLOCK:
        rows = _largest_norm(matrix.reshape(-1, expr.shape[-1], width)) + slack
    return up(matrix.norm(dim=1).max()) + slack, rows


def row_by_own(source: Expr, expr: Expr, row: float) -> Range:
    """Return the range of a map that acts on every row of its source separately, on each one differently.

    A row of the result is ``B x`` with x a row of the source, and ``||B||^2`` is at most the largest absolute row sum
    of ``B^T B`` or ``B B^T``: one for a rotation.
    """
    found = None if row == INF or not expr.shape else token_matrices(source, expr)
    if found is None or found[1] % expr.shape[-1]:
        return Range()
    blocks = found[0].unflatten(1, (-1, expr.shape[-1]))
    gram = blocks.mT @ blocks if blocks.shape[-2] > blocks.shape[-1] else blocks @ blocks.mT
    rounding = 2.0**-50 * blocks.shape[-2] * blocks.shape[-1] * blocks.square().sum((-2, -1))
    square = float((gram.abs().sum(-1).amax(-1) + rounding).max())
    return Range(row=(up(math.sqrt(square)) + forming_error(source, expr).total) * row)
