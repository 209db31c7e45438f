"""How much work one forward pass of a network takes, to choose how hard to try."""

import math

from normscope.operators.program import Program

#: What an operation costs however small it is, in multiplications: most of it is Python.
EACH_OPERATION = 1e5
#: Multiplications of a forward pass from which a network counts as large.
LARGE = 2e8


def forward_cost(program: Program) -> float:
    """Return about how many multiplications one forward pass takes."""
    total = float(sum(e.numel for e in program.atoms))
    for expr in program.layers:
        if expr.op is None:
            continue
        weight = expr.op.data["weight"]
        if expr.op.kind == "convolution":
            read = expr.inputs[0] if expr.op.data.get("transposed") else expr  # each weight meets each of its places
            places = math.prod(read.shape[len(read.shape) - (weight.ndim - 2) :])
        else:
            places = expr.numel // max(1, expr.shape[-1])
        total += float(weight.numel()) * places
    return total


def overhead(program: Program) -> float:
    """Return what one pass costs however small its tensors are, in multiplications."""
    return EACH_OPERATION * program.total


def is_large(program: Program) -> bool:
    """Return whether a network has so many multiplications, or so many operations, that it is run a few times only."""
    return forward_cost(program) + overhead(program) > LARGE
