"""Einstein sums: one operand that depends on the input makes them linear, two a matrix product."""

import math
import string
from typing import Any

import torch
from torch import Tensor

from normscope.operators.expression import Expr
from normscope.operators.layout import broadcast, permuted, reshaped
from normscope.operators.matrix import matmul_of
from normscope.operators.reduction import summed
from normscope.operators.registry import Call, expressions, rule


@rule("einsum")
def einsum(call: Call) -> Expr:
    """A contraction of tensors given by labels."""
    operands = list(call["tensors"])
    plan = labels(call["equation"], [len(o.shape) for o in operands])
    if plan is None:
        return call.opaque(f"einsum {call['equation']} takes a diagonal: no rule")
    inputs, out = plan
    if len(operands) == 2:
        return _two(call, operands, inputs, out)
    if len(expressions(operands)) == 1:
        return _one(call, operands, inputs, out)
    return call.opaque(f"einsum {call['equation']} of three or more tensors that depend on the input has no rule")


def labels(equation: str, ranks: list[int]) -> tuple[list[str], str] | None:
    """Return the labels of each operand and of the result, dots expanded, or ``None`` if a label repeats.

    >>> labels("...ij, jk", [3, 2])
    (['Aij', 'jk'], 'Aik')
    """
    left, arrow, out = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        return None
    free = [c for c in string.ascii_uppercase + string.ascii_lowercase if c not in equation]
    dots = max((r - len(t) + 3 for t, r in zip(terms, ranks, strict=True) if "..." in t), default=0)
    batch = "".join(free[:dots])
    wide = []
    for term, rank in zip(terms, ranks, strict=True):
        count = rank - len(term) + 3
        full = term.replace("...", batch[len(batch) - count :] if count else "")
        if len(full) != rank or len(set(full)) != rank:
            return None
        wide.append(full)
    if not arrow:
        single = sorted(c for c in set("".join(wide)) if c not in batch and "".join(wide).count(c) == 1)
        return wide, batch + "".join(single)
    return wide, out.replace("...", batch)


def _one(call: Call, operands: list[Any], inputs: list[str], out: str) -> Expr:
    """Return a sum in which one operand depends on the input: a linear map of it."""
    place = next(i for i, o in enumerate(operands) if isinstance(o, Expr))
    equation = f"{','.join(inputs)}->{out}"
    constants = [o.detach() if isinstance(o, Tensor) else None for o in operands]

    def apply(z: Tensor) -> Tensor:
        return torch.einsum(equation, [z if c is None else c.to(z) for c in constants])

    return call.linear("generic" if len(operands) > 1 else "nonnegative", apply, [operands[place]])


def _two(call: Call, operands: list[Any], inputs: list[str], out: str) -> Any:
    """Return a sum of two operands as one matrix product; labels that only one of them sums over are summed first."""
    size: dict[str, int] = {}
    for term, operand in zip(inputs, operands, strict=True):
        for c, n in zip(term, operand.shape, strict=True):
            size[c] = max(size.get(c, 1), n)
    left, right = inputs
    a, left = _alone(call, operands[0], left, right + out)
    b, right = _alone(call, operands[1], right, left + out)
    a = broadcast(a, [size[c] for c in left], call)
    b = broadcast(b, [size[c] for c in right], call)
    batch = [c for c in left if c in right and c in out]
    inner = [c for c in left if c in right and c not in out]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]

    def total(chosen: list[str]) -> int:
        return math.prod(size[c] for c in chosen)

    a = permuted(call, a, [left.index(c) for c in batch + rows + inner])
    b = permuted(call, b, [right.index(c) for c in batch + inner + columns])
    a = reshaped(call, a, (total(batch), total(rows), total(inner)))
    b = reshaped(call, b, (total(batch), total(inner), total(columns)))
    if total(batch) == 1:  # one matrix for all
        a, b = (x[0] if isinstance(x, Tensor) else x for x in (a, b))
    order = batch + rows + columns
    back = reshaped(call, matmul_of(call, a, b), tuple(size[c] for c in order))
    return permuted(call, back, [order.index(c) for c in out])


def _alone(call: Call, x: Any, own: str, elsewhere: str) -> tuple[Any, str]:
    """Sum an operand over the labels that occur nowhere else."""
    dims = [i for i, c in enumerate(own) if c not in elsewhere]
    if not dims:
        return x, own
    kept = "".join(c for c in own if c in elsewhere)
    return (x.sum(dims) if isinstance(x, Tensor) else summed(call, x, dims, "sum", keep=False)), kept
