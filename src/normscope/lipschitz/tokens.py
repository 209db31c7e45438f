"""Maps that treat every token alike: ``I (x) M``, found by following axes, and their matrix on one token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normscope.core.memory import available
from normscope.operators.expression import Expr, LinearOp, TrackedAxis, between, evaluate, track_axes, track_axis

#: Largest side of a matrix that is formed for a segment acting token by token.
LARGEST_MATRIX = 20_000
#: Entries of a matrix for which there is always memory.
SMALL_MATRIX = 2**22
#: Most entries of a stack of matrices, one for each row.
LARGEST_STACK = 20_000_000
#: Bytes of matrices that are kept to be extended by further operations.
KEPT_BYTES = 2**26

#: An axis of the source, as (length, stride), and where it ends up in the target.
Axis = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Selection:
    """A matrix with at most one entry in each row: row r holds ``factor[r]`` in column ``column[r]``."""

    column: Tensor
    factor: Tensor
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        """Return the number of rows and of columns."""
        return len(self.column), self.width

    def dense(self) -> Tensor:
        """Return the matrix itself."""
        matrix = torch.zeros(self.shape, dtype=torch.float64)
        return matrix.scatter_(1, self.column.unsqueeze(1), self.factor.unsqueeze(1))

    def rows(self, index: Tensor, sign: Tensor) -> Selection:
        """Return the matrix of some of its rows, each times a sign or zero."""
        return Selection(self.column[index], self.factor[index] * sign, self.width)

    def after(self, weight: Tensor) -> Tensor:
        """Return the product of a matrix with this one: columns are scaled and moved, nothing is multiplied out."""
        scaled = weight.to(torch.float64) if bool((self.factor == 1).all()) else weight * self.factor
        if self.width == len(self.column) and bool((self.column == torch.arange(self.width)).all()):
            return scaled
        return scaled.new_zeros(len(weight), self.width).index_add_(1, self.column, scaled)


@dataclass(frozen=True, eq=False)
class Projected:
    """A selection S, an orthogonal projection P and factors D: ``D P S``, not multiplied out.

    A weight behind it is multiplied from its own side, ``((W D) P) S``: to centre 1,024 entries is a sum for each row
    of the weight, where the dense matrix of ``D P S`` would need a product of two matrices.
    """

    selection: Selection  #: S
    projection: Expr  #: the expression of P
    place: TrackedAxis  #: how many tokens it treats alike, and their stride
    factor: Tensor  #: the diagonal of D

    @property
    def shape(self) -> tuple[int, int]:
        """Return the number of rows and of columns."""
        return self.selection.shape

    def dense(self) -> Tensor:
        """Return the matrix itself."""
        n = self.place[0]
        operand = self.selection.dense(), self.place
        return _column_by_column(self.projection, [operand], n, self.place) * self.factor.unsqueeze(1)

    def after(self, weight: Tensor) -> Tensor:
        """Return the product of a matrix with this one: a projection is its own adjoint."""
        operand = (weight * self.factor).mT, self.place
        return self.selection.after(_column_by_column(self.projection, [operand], self.place[0], self.place).mT)


#: The matrix of a map on one token, dense or not.
Known = Tensor | Selection | Projected


class TokenMatrices:
    """Matrices on one token, composed operation by operation; the latest are kept, so that longer maps extend them.

    What an operation does to all columns of a matrix at once is what it does to unit vectors one by one: the rounding
    errors are those of :func:`normscope.lipschitz.assembly_error.forming_error` either way.

    Args:
        kept_bytes: how much memory the kept matrices may take.

    Attributes:
        gains: what was read off matrices that need not be kept: by how much a map from one expression to another
            enlarges rows, see :func:`normscope.lipschitz.ranges.row_wise`.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self.kept_bytes = kept_bytes
        self.gains: dict[tuple[int, int], tuple[float, float] | None] = {}
        self._kept: dict[tuple[int, int, TrackedAxis], Known] = {}

    def matrix(self, source: Expr, target: Expr, axis: Axis | None = None) -> Tensor | None:
        """Return the matrix by which a map treats every token, or ``None`` if it does not treat tokens alike.

        A token is what the source holds at one index of an axis; the map is ``I (x) M``, and M is returned, of shape
        (output entries per token, input entries per token).

        Args:
            source: the expression the map starts from.
            target: where it ends.
            axis: the axis that counts tokens, as :func:`token_axis` gives it; by default the longest one.
        """
        axis = axis or token_axis(source, target)
        if axis is None:
            return None
        (n, s), _ = axis
        places = track_axes(source, target, (n, s))
        width = source.numel // n
        tallest = max(e.numel for e in between(source, target)) // n if target.id != source.id else width
        fits = width * tallest <= SMALL_MATRIX or 6 * 8 * width * tallest < available()  # with a few copies
        if places is None or max(width, target.numel // n) > LARGEST_MATRIX or not fits:
            return None
        identity = Selection(torch.arange(width), torch.ones(width, dtype=torch.float64), width)
        found: dict[int, Known] = {source.id: identity}
        order = self._missing(source, target, (n, s), found)
        last = {item.id: expr.id for expr in order for item in expr.inputs}
        for expr in order:
            known = [None if i.id not in places else (found[i.id], places[i.id][0]) for i in expr.inputs]
            found[expr.id] = _applied(expr, known, n, places[expr.id][0])
            if expr.op is not None and (expr.op.kind == "matrix" or expr.id == target.id):
                self._keep((source.id, expr.id, (n, s)), found[expr.id])
            for item in expr.inputs:
                if last[item.id] == expr.id:
                    found.pop(item.id, None)
        return _dense(found[target.id])

    def _missing(self, source: Expr, target: Expr, axis: TrackedAxis, found: dict[int, Known]) -> list[Expr]:
        """Return the expressions still to be computed, in order; kept matrices of those below go into ``found``."""
        missing: dict[int, Expr] = {}
        stack = [target]
        while stack:
            expr = stack.pop()
            kept = self._kept.get((source.id, expr.id, axis))
            if kept is not None:
                found[expr.id] = kept
            elif expr.id != source.id and expr.id not in missing and expr.atoms:
                missing[expr.id] = expr
                stack.extend(expr.inputs)
        return [missing[key] for key in sorted(missing)]

    def _keep(self, key: tuple[int, int, TrackedAxis], matrix: Known) -> None:
        """Keep a matrix; those kept longest make room for it."""
        self._kept[key] = matrix
        sizes = [8 * m.numel() if isinstance(m, Tensor) else 16 * m.shape[0] for m in self._kept.values()]
        for i, oldest in enumerate(tuple(self._kept)):
            if sum(sizes[i:]) <= self.kept_bytes:
                break
            del self._kept[oldest]


#: The matrix of an operand on one token, and the stride of tokens in it; ``None`` for a constant.
Operand = tuple[Known, TrackedAxis] | None


def _applied(expr: Expr, known: Sequence[Operand], n: int, place: TrackedAxis) -> Known:
    """Return the matrix on one token after an operation, from those of its operands."""
    op = expr.op
    if op is None:
        raise ValueError("the source does not lie on every path from the target to its atoms")
    below = [item for item in known if item is not None]
    matrix, (_, stride) = below[0]
    if op.kind == "sum":
        return sum((_dense(m) for m, _ in below[1:]), start=_dense(matrix)) if len(below) > 1 else matrix
    if len(known) == 1:
        if op.data.get("reshape"):
            return matrix
        if op.kind == "diagonal":
            return _scaled(matrix, op.data["scale"].expand(expr.shape).reshape(-1, *place)[:, 0].reshape(-1))
        weight = op.data.get("weight") if op.kind == "matrix" and op.data["axis"] == -1 else None
        if weight is not None and weight.ndim == 2 and stride % weight.shape[1] == 0:
            return _multiplied(weight, matrix)
        moves = op.kind in ("isometry", "embedding") or op.data.get("coordinate")  # copies and drops entries perhaps
        moved = _moved(op, expr, (n, stride), place) if moves else None
        if moved is not None:
            return _picked(matrix, *moved)
        if op.data.get("projection") and isinstance(matrix, Selection) and place == (n, stride):
            return Projected(matrix, expr, place, torch.ones(len(matrix.column), dtype=torch.float64))
    return _column_by_column(expr, known, n, place)


def _dense(matrix: Known) -> Tensor:
    return matrix if isinstance(matrix, Tensor) else matrix.dense()


def _scaled(matrix: Known, factor: Tensor) -> Known:
    factor = factor.detach().to(torch.float64)
    if isinstance(matrix, Selection):
        return Selection(matrix.column, matrix.factor * factor, matrix.width)
    if isinstance(matrix, Projected):
        return replace(matrix, factor=matrix.factor * factor)
    return matrix * factor.unsqueeze(1)


def _picked(matrix: Known, rows: Tensor, sign: Tensor) -> Known:
    """Return some rows of a matrix, each times a sign or zero."""
    if torch.equal(rows, torch.arange(matrix.shape[0])) and bool((sign == 1).all()):
        return matrix
    return matrix.rows(rows, sign) if isinstance(matrix, Selection) else _dense(matrix)[rows] * sign.unsqueeze(1)


def _multiplied(weight: Tensor, matrix: Known) -> Tensor:
    """Return a weight times each block of rows of a matrix."""
    rows, columns = weight.shape
    if not isinstance(matrix, Tensor) and matrix.shape[0] == columns:
        return matrix.after(weight)
    blocks = _dense(matrix).reshape(-1, columns, matrix.shape[1])
    return torch.matmul(weight.to(torch.float64), blocks).reshape(len(blocks) * rows, -1)


def _moved(op: LinearOp, expr: Expr, before: TrackedAxis, after: TrackedAxis) -> tuple[Tensor, Tensor] | None:
    """Return which row of a token each row is after an operation that moves entries, and its sign (zero: none).

    The operation is applied to numbered entries: each result must be plus or minus the number of an entry of the first
    token, or zero, and the same must hold for random entries. Otherwise it does more than move entries: ``None``.
    """
    shape = expr.inputs[0].shape
    size = expr.inputs[0].numel // before[0]
    numbers = torch.zeros(size, *before[:1], dtype=torch.float64)
    numbers[:, 0] = torch.arange(1, size + 1)
    noise = torch.zeros_like(numbers)
    noise[:, 0] = torch.rand(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    images = []
    for entries in (numbers, noise):
        tensor = entries.reshape(-1, before[1], before[0]).transpose(1, 2).reshape(shape)
        images.append(op.apply(tensor).reshape(-1, *after)[:, 0].reshape(-1))
    index, sign = images[0].abs(), images[0].sign()
    if not bool(((index == index.round()) & (index <= size)).all()):
        return None
    rows = (index.long() - 1).clamp_min(0)
    return (rows, sign) if bool((images[1] == noise[rows, 0] * sign).all()) else None


def _column_by_column(expr: Expr, known: Sequence[Operand], n: int, place: TrackedAxis) -> Tensor:
    """Apply an operation to the columns of matrices: every token takes one of its own, so one pass takes n of them."""
    dense = [None if item is None else (_dense(item[0]), item[1]) for item in known]
    width = next(item[0].shape[1] for item in dense if item is not None)
    matrix = torch.zeros(expr.numel // n, width, dtype=torch.float64)
    for start in range(0, width, n):
        count = min(n, width - start)
        operands = []
        for item, below in zip(dense, expr.inputs, strict=True):
            tensor = torch.zeros(below.numel, dtype=torch.float64)
            if item is not None:
                columns = item[0][:, start : start + count].unflatten(0, (-1, item[1][1])).transpose(1, 2)
                tensor.reshape(-1, *item[1])[:, :count] = columns
            operands.append(tensor.reshape(below.shape))
        with torch.no_grad():
            image = expr.op.apply(*operands).reshape(-1, *place)  # type: ignore[union-attr]
        matrix[:, start : start + count] = image[:, :count].transpose(1, 2).reshape(len(matrix), count)
    return matrix


def token_matrices(source: Expr, target: Expr, most: int = LARGEST_STACK) -> tuple[Tensor, int] | None:
    """Return the matrix that a map applies to each row of its source, and the stride of rows in the result.

    A row is a slice along the last axis. The matrices have the shape (rows, output entries per row, width), so that
    rotary positions, which turn every row differently, are followed too; ``None`` where rows are mixed, or they are too
    many to be worth it.
    """
    width = source.shape[-1] if source.shape else 0
    rows = source.numel // width if width else 0
    if rows == 0 or target.numel % rows or target.numel * width > most:
        return None
    found = track_axis(source, target, (rows, width)) if rows > 1 else ((1, target.numel), True)
    if found is None:
        return None
    (_, stride), _ = found
    function, columns = evaluate(source, target), []
    for unit in torch.eye(width, dtype=torch.float64):
        with torch.no_grad():
            image = function(unit.expand(source.shape)).reshape(-1, rows, stride)
        columns.append(image.transpose(0, 1).reshape(rows, -1))
    return torch.stack(columns, -1), stride


def token_axis(source: Expr, target: Expr, wanted: tuple[int, int] | None = None) -> Axis | None:
    """Return the longest axis along which the map is the same at every index, and where it ends up."""
    shape = source.shape
    if source.numel == 0 or target.numel == 0:
        return None
    spans = {(math.prod(shape[a:b]), math.prod(shape[b:])) for b in range(1, len(shape) + 1) for a in range(b)}
    for n, s in sorted(spans, reverse=True) if wanted is None else [wanted]:
        if n > 1:
            found = track_axis(source, target, (n, s))
            if found is not None and found[1]:
                return (n, s), found[0]
    return None
