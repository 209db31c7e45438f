"""Maps that treat every token alike: ``I (x) M``, found by following axes, and their matrix on one token."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normscope.operators.expression import Expr, evaluate, track

#: Largest side of a matrix that is formed for a segment acting token by token.
LARGEST_MATRIX = 20_000
#: Most entries of a stack of matrices, one for each row.
LARGEST_STACK = 20_000_000


#: An axis of the source, as (length, stride), and where it ends up in the target.
Axis = tuple[tuple[int, int], tuple[int, int]]


def token_matrix(source: Expr, target: Expr, axis: Axis | None = None) -> Tensor | None:
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
    (n, s), (_, t) = axis
    outer = source.numel // (n * s)
    width = outer * s
    out_outer = target.numel // (n * t)
    height = out_outer * t
    if max(width, height) > LARGEST_MATRIX:
        return None
    function = evaluate(source, target)
    matrix = torch.zeros(height, width, dtype=torch.float64)
    # Every token gets a unit vector of its own, so one pass gives as many columns as there are tokens.
    for start in range(0, width, n):
        count = min(n, width - start)
        units = torch.zeros(outer, n, s, dtype=torch.float64)
        columns = torch.arange(start, start + count)
        units[columns // s, torch.arange(count), columns % s] = 1.0
        with torch.no_grad():
            image = function(units.reshape(source.shape)).reshape(out_outer, n, t)
        matrix[:, start : start + count] = image[:, :count].permute(0, 2, 1).reshape(height, count)
    return matrix


def token_matrices(source: Expr, target: Expr) -> tuple[Tensor, int] | None:
    """Return the matrices by which a map treats the rows of its source, each row by its own, and their stride behind.

    A row is a slice along the last axis. The matrices have the shape (rows, output entries per row, width), so that
    rotary positions, which turn every row otherwise, are followed too; ``None`` where rows are mixed, or they are too
    many to be worth it.
    """
    width = source.shape[-1] if source.shape else 0
    rows = source.numel // width if width else 0
    if rows == 0 or target.numel % rows or target.numel * width > LARGEST_STACK:
        return None
    found = track(source, target, (rows, width)) if rows > 1 else ((1, target.numel), True)
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
    """Return the longest axis along which the map is the same at every index, and where it ends up.

    Args:
        source: the expression the map starts from.
        target: where it ends.
        wanted: look at this axis (length, stride) alone.
    """
    shape = source.shape
    if source.numel == 0 or target.numel == 0:
        return None
    spans = {(math.prod(shape[a:b]), math.prod(shape[b:])) for b in range(1, len(shape) + 1) for a in range(b)}
    for n, s in sorted(spans, reverse=True) if wanted is None else [wanted]:
        if n > 1:
            found = track(source, target, (n, s))
            if found is not None and found[1]:
                return (n, s), found[0]
    return None
