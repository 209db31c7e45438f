"""A glance from below: a pair of inputs that the network takes far apart, found in a few passes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.core.value import log_of
from normscope.graph.capture import Captured
from normscope.lipschitz.cost import forward_cost
from normscope.lipschitz.lower import EndToEnd, attained_by_pair, euclidean
from normscope.lipschitz.search import Search
from normscope.operators.program import Program

#: Distance of the pair, relative to the norm of the input; and rounds of the power iteration.
DISTANCE, ROUNDS = 1e-3, 2
#: The same for a network that takes long, and what rounding to float32 may change, relative to the outputs.
HEAVY, FAR, NOISE = 1e9, 1e-2, 1e-5


def glance(captured: Captured, program: Program, inputs: Sequence[Tensor], seed: int = 0) -> Search:
    """Return what a pair near one input attains.

    The direction comes of a power iteration: ``v = J^T u`` is a gradient in float32, ``u = J v`` a difference of two
    outputs in float64. Ten passes or so, and no more than the network itself is asked for. Of a network that takes
    long, one round with outputs in float32, farther apart and less what rounding may have added.
    """
    if not program.outputs:
        return Search(None, None, None)
    heavy = forward_cost(program) > HEAVY
    rough = EndToEnd(captured, program, inputs, torch.float32)
    exact = rough if heavy else EndToEnd(captured, program, inputs, torch.float64)
    x = exact.point()
    try:
        point = x.float().detach().clone().requires_grad_(True)
        with torch.enable_grad():
            outputs = rough(point)
        with torch.no_grad():
            start = outputs.detach() if heavy else exact(x)
        u = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(seed)).to(outputs)
        distance = (FAR if heavy else DISTANCE) * (euclidean(x) or 1.0)
        step, end = torch.zeros_like(x), start
        for _ in range(1 if heavy else ROUNDS):
            (v,) = torch.autograd.grad(outputs, point, u, retain_graph=not heavy)
            length = euclidean(v.double())
            if not 0.0 < length < float("inf"):
                return Search(None, None, None)
            step = (v.double() * (distance / length)).to(x.dtype)
            with torch.no_grad():
                end = exact(x + step)
            u = (end - start).float()
            u = u / (u.norm() or 1.0)
    except (RuntimeError, NotImplementedError) as error:  # an operation without a derivative
        return Search(None, None, None, str(error).splitlines()[0])
    if not heavy:
        return Search(None, log_of(attained_by_pair(exact, x, step, again=1, values=(start, end))), None)
    return Search(None, log_of(_apart(start, end) / euclidean((x + step).double() - x.double())), None)


def _apart(start: Tensor, end: Tensor) -> float:
    """Return how far two outputs in float32 lie apart at least."""
    start, end = start.double(), end.double()
    return max(0.0, euclidean(end - start) - NOISE * (euclidean(start) + euclidean(end)))
