"""A glance from below: a pair of inputs that the network takes far apart, found in a few passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.core.value import log_of
from normscope.graph.capture import Captured
from normscope.lipschitz.lower import EndToEnd, attained_by_pair, euclidean
from normscope.lipschitz.search import Search
from normscope.operators.program import Program

#: Distance of the pair, relative to the norm of the input; and rounds of the power iteration.
DISTANCE, ROUNDS = 1e-3, 2


def glance(captured: Captured, program: Program, inputs: Sequence[Tensor], seed: int = 0) -> Search:
    """Return what a pair near one input attains.

    The direction comes of a power iteration: ``v = J^T u`` is a gradient in float32, ``u = J v`` a difference of two
    outputs in float64. Ten passes or so, and no more than the network itself is asked for.

    Args:
        captured: the model.
        program: its program.
        inputs: one input of the model.
        seed: of the first direction.

    Returns:
        What was attained everywhere; nothing is said about Jacobians or a domain.
    """
    if not program.outputs:
        return Search(None, None, None)
    exact = EndToEnd(captured, program, inputs, torch.float64)
    rough = EndToEnd(captured, program, inputs, torch.float32)
    x = exact.point()
    try:
        point = x.float().requires_grad_(True)
        with torch.enable_grad():
            outputs = rough(point)
        with torch.no_grad():
            start = exact(x)
        u = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(seed)).to(outputs)
        distance = DISTANCE * (euclidean(x) or 1.0)
        step, end = torch.zeros_like(x), start
        for _ in range(ROUNDS):
            (v,) = torch.autograd.grad(outputs, point, u, retain_graph=True)
            length = euclidean(v.double())
            if not 0.0 < length < float("inf"):
                return Search(None, None, None)
            step = v.double() * (distance / length)
            with torch.no_grad():
                end = exact(x + step)
            u = (end - start).float()
            u = u / (u.norm() or 1.0)
    except (RuntimeError, NotImplementedError) as error:  # an operation without a derivative
        return Search(None, None, None, str(error).splitlines()[0])
    value = attained_by_pair(exact, x, step, again=1, values=(start, end))
    return Search(None, log_of(value), None)
