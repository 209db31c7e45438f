"""Distances between the rows of tensors."""

from typing import Any

import torch

from normscope.operators.arithmetic import total
from normscope.operators.expression import Expr
from normscope.operators.layout import reshaped
from normscope.operators.reduction import VectorNorm
from normscope.operators.registry import Call, rule


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
    """Distances ``||x_i - y_i + eps||_p`` of rows that stand beside each other."""
    return _norms(call, call["x1"], call["x2"], float(call.get("eps", 1e-6)))


@rule("pdist")
def own_distances(call: Call) -> Expr:
    """Distances between all pairs of rows of one matrix."""
    x = call["self"]
    i, j = torch.triu_indices(x.shape[0], x.shape[0], 1)
    difference = call.linear("generic", lambda z: z[i] - z[j], [x], shape=(len(i), x.shape[1]))
    return _norms(call, difference, torch.zeros(()))
