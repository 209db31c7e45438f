r"""Jacobian norms of many inputs at once, and a climb from the best of them.

In a batch whose samples do not interact, the gradient of the sum over samples of output k holds row k of every sample's
Jacobian: as many gradients as there are outputs give all Jacobians, and
:math:`\|J\|^2 = \lambda_{\max}(J J^T)` on the side of the outputs. The climb tries random steps of all scales from
several points, half of them along the last step that succeeded, and keeps what is larger. After each stage only the
better half of the points is kept, with twice as many steps each.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.graph.capture import Captured
from normscope.graph.interpreter import as_floating, run
from normscope.lipschitz.lower import gradients, kept_outputs, rows_at_once
from normscope.operators.program import Program

#: Most outputs of a network whose Jacobians are formed row by row.
MOST_OUTPUTS = 128
#: Points the climb starts from, steps tried from each at once, and rounds.
STARTS, TRIES, ROUNDS = 8, 32, 200
#: Parts of all rounds after which the better half of the points is kept.
HALVED_AFTER = (0.2, 0.4, 0.6)
#: Rounds without a rise by this much, relative, after which the climb ends.
IDLE, RISE = 60, 1e-4
#: Most multiplications for all rounds together, and for the first pass over the data.
CLIMB_WORK, LOOK_WORK = 8e10, 6e10

Norms = Callable[[Tensor], Tensor]


def batched_norms(
    captured: Captured, program: Program, dtype: torch.dtype = torch.float64, *, unknown: float = 0.0
) -> Norms | None:
    """Return a function from a batch of inputs to the norms of their Jacobians, or ``None`` where there is none.

    There is one where the model has one floating input, samples may be batched, and the outputs are few.

    Args:
        captured: the model.
        program: its program at a batch of one.
        dtype: precision to compute in.
        unknown: what is returned where a derivative is not finite: zero in a search for large ones.
    """
    graph = captured.graph
    inputs = [node.name for node in graph if node.op == "input"]
    if graph.batch != "dynamic" or len(inputs) != 1 or [b.name for b in program.blocks] != inputs:
        return None
    if not 0 < sum(expr.numel for _, expr in program.outputs) <= MOST_OUTPUTS:
        return None
    keep = kept_outputs(graph, program)
    tensors = captured.tensors_as(dtype)

    def norms(batch: Tensor) -> Tensor:
        x = as_floating(batch.detach(), dtype).requires_grad_(True)
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            found = run(graph, tensors, [x], None, dtype)
            outputs = torch.cat([found[i].reshape(len(x), -1) for i in keep], 1)
            if not outputs.requires_grad:  # a cast to integers, say, ends every path from the input
                raise NotImplementedError("No gradient passes from the outputs to the input.")
            units = torch.eye(outputs.shape[1]).to(outputs).unsqueeze(1).expand(-1, len(x), -1)
            rows = gradients(outputs, x, units, rows_at_once(graph, len(x)))
        J = rows.reshape(*units.shape[:2], -1).movedim(0, 1)
        size = J.abs().amax(dim=(1, 2), keepdim=True)
        usable = torch.isfinite(size) & (size > 0)
        scaled = torch.where(usable, J / size, 0.0)  # so that squares neither overflow nor vanish
        values = torch.linalg.eigvalsh(scaled @ scaled.mT)[:, -1].clamp_min(0.0).sqrt()
        finite = torch.isfinite(size.flatten())
        return torch.where(finite, values * size.flatten(), unknown).nan_to_num(nan=unknown, posinf=unknown)

    return norms


def best_of(norms: Norms, batches: Iterable[Tensor], count: int = STARTS) -> tuple[Tensor, Tensor] | None:
    """Return the inputs with the largest norms among all batches, largest first, and these norms.

    >>> batch = torch.tensor([[1.0], [3.0], [2.0]])
    >>> best_of(lambda x: x[:, 0], [batch], 2)[0].flatten().tolist()
    [3.0, 2.0]
    """
    points: Tensor | None = None
    values = torch.zeros(0, dtype=torch.float64)
    for batch in batches:
        found = norms(batch).double()
        points = batch if points is None else torch.cat([points, batch])
        values = torch.cat([values, found])
        top = values.argsort(descending=True, stable=True)[:count]
        points, values = points[top], values[top]
    return None if points is None else (points, values)


def climb(
    norms: Norms,
    starts: Tensor,
    values: Tensor,
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[Tensor, float]:
    """Return the input with the largest norm that random steps find, and the norm there.

    >>> peak = lambda x: 1.0 / (1.0 + (x - 3.0).square().sum(1))
    >>> point, value = climb(peak, torch.zeros(2, 1).double(), peak(torch.zeros(2, 1).double()), rounds=60)
    >>> round(float(point), 1), round(value, 2)
    (3.0, 1.0)
    """
    generator = torch.Generator().manual_seed(seed)
    points, best = starts.double().clone(), values.double().clone()
    shape, total = points.shape[1:], len(points) * TRIES
    spread = float(points.std()) if points.numel() > 1 else 0.0
    typical = spread or float(points.abs().mean()) or 1.0
    size = torch.full((len(points),), typical, dtype=torch.float64)
    last = torch.zeros_like(points)
    high, idle = float(best.max()), 0
    for index in range(rounds):
        if index in {round(part * rounds) for part in HALVED_AFTER} and len(points) > 1:
            kept = best.argsort(descending=True, stable=True)[: (len(points) + 1) // 2]
            points, best, size, last = points[kept], best[kept], size[kept], last[kept]
        if index % 25 == 0:
            progress(f"climbing from the best points: round {index + 1} of {rounds}, {float(best.max()):.4g}")
        tried = _tried(points, size, last, total // len(points), generator)
        found = norms(tried.flatten(0, 1)).double().reshape(tried.shape[:2])
        top, where = found.max(1)
        better = top > best
        moved = tried[torch.arange(len(points)), where]
        wide = better.reshape(-1, *(1,) * len(shape))
        last, points = torch.where(wide, moved - points, 0.5 * last), torch.where(wide, moved, points)
        best = torch.maximum(best, top)
        idle = 0 if float(best.max()) > high * (1.0 + RISE) else idle + 1
        high = max(high, float(best.max()))
        if idle == IDLE:
            break
        size = torch.where(better, size * 1.3, size * 0.9).clamp(1e-3 * typical, 30.0 * typical)
    first = int(best.argmax())
    return points[first], float(best[first])


def _tried(points: Tensor, size: Tensor, last: Tensor, tries: int, generator: torch.Generator) -> Tensor:
    """Return steps from every point: random ones, every second together with a part of the last that succeeded."""
    count, flat = len(points), (1,) * (points.ndim - 1)
    steps = torch.randn(count, tries, *points.shape[1:], generator=generator, dtype=torch.float64)
    near, along = (torch.rand(count, tries, *flat, generator=generator, dtype=torch.float64) for _ in range(2))
    steps *= size.reshape(-1, 1, *flat) * near.square()
    along[:, 1::2] = 0.0
    return points[:, None] + steps + 2.0 * along * last[:, None]


def rounds_for(cost: float, outputs: int, *, overhead: float = 0.0) -> int:
    """Return how many rounds a network of a given cost allows: the same on every machine.

    >>> rounds_for(1e2, 1), rounds_for(1e12, 10), rounds_for(1e2, 1, overhead=1e9) < 200
    (200, 0, True)
    """
    return min(ROUNDS, int(CLIMB_WORK / ((cost * STARTS * TRIES / 2 + overhead) * (1 + 2 * outputs))))


def limit_for(cost: float, outputs: int) -> int:
    """Return at how many data points the Jacobian of a network of a given cost may be computed.

    >>> limit_for(2e5, 10) > 10_000
    True
    """
    return max(1, int(LOOK_WORK / (cost * (1 + 2 * outputs))))
