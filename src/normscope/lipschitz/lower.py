"""Lower bounds: what the network really does to some inputs.

The spectral norm of the end-to-end Jacobian at a point is attained there; so is the quotient
``||f(x + d) - f(x)|| / ||d||`` of a pair, which gradient ascent makes as large as it can.
"""

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.core.environment import quiet_vmap
from normscope.core.statement import statement
from normscope.graph.capture import Captured
from normscope.graph.interpreter import as_floating, run
from normscope.graph.ir import Graph, Node
from normscope.linalg.lanczos import lanczos_norm
from normscope.operators.linear_map import LinearMap
from normscope.operators.program import Program

Function = Callable[[Tensor], Tensor]
#: A Jacobian's value is doubted unless some quotient of differences reaches this share of it.
DOUBT = 0.9
#: Distance of the two points of a pair relative to the norm of the first, and step size of ascent relative to a
#: typical entry.
RADIUS, RATE = 1e-3, 3e-2
#: Numbers that the gradients of one value may take where several rows of a Jacobian are computed at once.
AT_ONCE = 2**22
#: Factors of a direction with which its product is rounded differently.
_FACTORS = (0.7, 3.0)


class _Found(Exception):  # noqa: N818
    """Every block of the input has its value."""


def kept_outputs(graph: Graph, program: Program) -> list[int]:
    """Return which outputs of a model are outputs of its program."""
    names = graph.output_names or [ref.name for ref in graph.nodes[-1].args]
    wanted = {name for name, _ in program.outputs}
    return [i for i, name in enumerate(names) if name in wanted]


def rows_at_once(graph: Graph, batch: int) -> int:
    """Return how many rows of a Jacobian to compute at once, by the size of the widest value of a graph."""
    return max(1, AT_ONCE // max(1, graph.widest * batch))


class EndToEnd:
    """The network as a function from its flattened input blocks to its flattened outputs.

    For token models the blocks are embedding outputs: the function starts there.

    Args:
        captured: the model.
        program: its program, which says what the blocks and outputs are.
        inputs: one input of the model (batch as the program was walked), which fixes everything discrete.
        dtype: precision to run in.
    """

    def __init__(
        self, captured: Captured, program: Program, inputs: Sequence[Tensor], dtype: torch.dtype = torch.float64
    ) -> None:
        self.captured, self.program, self.dtype = captured, program, dtype
        self.inputs = [as_floating(t, dtype) for t in inputs]
        self.tensors = captured.tensors_as(dtype)
        self.shapes = [b.shape for b in program.blocks]
        self._place = {b.name: i for i, b in enumerate(program.blocks)}
        self.keep = kept_outputs(captured.graph, program)
        self.rows_at_once = rows_at_once(captured.graph, max((len(t) for t in inputs if t.ndim), default=1))

    def at(self, inputs: Sequence[Tensor]) -> Self:
        """Return the same function with everything discrete fixed by another input; the weights are shared."""
        other = copy.copy(self)
        other.inputs = [as_floating(t, self.dtype) for t in inputs]
        return other

    def point(self) -> Tensor:
        """Return the value of the blocks at the given input, flattened."""
        blocks: list[Tensor | None] = [None] * len(self.shapes)

        def visit(node: Node, value: Tensor, values: object) -> None:
            if node.name in self._place:
                blocks[self._place[node.name]] = value.detach().flatten()
                if all(b is not None for b in blocks):
                    raise _Found  # what comes after them is not needed

        with torch.no_grad(), contextlib.suppress(_Found):
            run(self.captured.graph, self.tensors, self.inputs, visit, self.dtype)
        return torch.cat([b for b in blocks if b is not None])

    def blocks(self, x: Tensor) -> list[Tensor]:
        """Return the blocks of a flattened input."""
        parts = torch.split(x, [math.prod(s) for s in self.shapes])
        return [p.reshape(s) for p, s in zip(parts, self.shapes, strict=True)]

    def watch(self, x: Tensor, look: Callable[[Node, Any, Mapping[str, Any]], Any]) -> Tensor:
        """Run the network from its blocks and return the outputs; ``look`` gets each node, its value and those before.

        Where ``look`` returns something, it replaces the value.
        """
        blocks = self.blocks(x)

        def visit(node: Node, value: Any, values: Mapping[str, Any]) -> Any:
            index = self._place.get(node.name)
            if index is None:
                return look(node, value, values)
            look(node, blocks[index], values)
            return blocks[index]

        with sdpa_kernel(SDPBackend.MATH):
            outputs = run(self.captured.graph, self.tensors, self.inputs, visit, self.dtype)
        return torch.cat([outputs[i].flatten() for i in self.keep])

    def __call__(self, x: Tensor) -> Tensor:
        """Run the network from its blocks."""
        return self.watch(x, lambda node, value, values: None)


def gradients(y: Tensor, x: Tensor, cotangents: Tensor, at_once: int = 1) -> Tensor:
    """Return ``J^T u`` for every u of a batch, several in one backward pass if torch can do that.

    >>> x = torch.ones(2, requires_grad=True)
    >>> gradients(x.square(), x, torch.eye(2), at_once=2).tolist()
    [[2.0, 0.0], [0.0, 2.0]]
    """

    def pulled(u: Tensor, batched: bool) -> Tensor:
        (out,) = torch.autograd.grad(y, x, u, retain_graph=True, allow_unused=True, is_grads_batched=batched)
        found = torch.zeros_like(x) if out is None else out.detach()
        return found if out is not None or not batched else found.expand(len(u), *x.shape)

    if min(at_once, len(cotangents)) > 1:
        with contextlib.suppress(RuntimeError, ValueError, NotImplementedError), quiet_vmap():
            return torch.cat([pulled(part, True) for part in cotangents.split(at_once)])
    return torch.stack([pulled(u, False) for u in cotangents])


def jacobian_map(function: Function, x: Tensor) -> LinearMap:
    """Return the Jacobian of a function at a point, matrix-free.

    Both products reuse one recorded forward pass: ``J^T u`` is a gradient, and ``J v`` is the gradient of the linear
    map ``u -> J^T u`` (no forward-mode rules are needed, and none can be silently wrong).
    """
    x = x.detach().requires_grad_(True)
    with torch.enable_grad():
        y = function(x)

    @functools.cache
    def transposed() -> tuple[Tensor, Tensor | None]:
        """Return some u and ``J^T u``, differentiable; many uses of the map need only one of the two products."""
        seed = torch.zeros_like(y, requires_grad=True)
        if not y.requires_grad:
            return seed, None
        with torch.enable_grad():
            return seed, torch.autograd.grad(y, x, seed, create_graph=True, allow_unused=True)[0]

    def adjoint(u: Tensor) -> Tensor:
        return adjoint_batch(u.unsqueeze(0))[0]

    def adjoint_batch(several: Tensor) -> Tensor:
        if not y.requires_grad:
            return x.new_zeros(len(several), *x.shape)
        return gradients(y, x, several, getattr(function, "rows_at_once", 1))

    def apply(v: Tensor) -> Tensor:
        seed, pulled = transposed()
        if pulled is None or not pulled.requires_grad:
            return torch.zeros_like(y).detach()
        (out,) = torch.autograd.grad(pulled, seed, v, retain_graph=True, allow_unused=True)
        return torch.zeros_like(y).detach() if out is None else out.detach()

    shapes = tuple(x.shape), tuple(y.shape)
    return LinearMap(apply, adjoint, *shapes, dtype=x.dtype, device=x.device, adjoint_rows=adjoint_batch)


@statement("normscope", "Jacobian", holds="at the point; a lower bound of the constant on any set that contains it")
def jacobian_norm(
    function: Function, x: Tensor, *, steps: int = 30, tolerance: float = 1e-6, seed: int = 0
) -> tuple[float, Tensor]:
    """Return an attained value of the spectral norm of the Jacobian at x, and the direction that attains it.

    >>> value, _ = jacobian_norm(lambda x: x * torch.tensor([1.0, 3.0]), torch.zeros(2))
    >>> round(value, 4)
    3.0
    """
    mapping = jacobian_map(function, x)
    if 0 < mapping.range_dimension <= min(2 * steps, mapping.domain_dimension):
        return _largest_of_few(mapping)
    try:
        found = lanczos_norm(mapping, tolerance=tolerance, max_steps=steps, seed=seed, apply_error=0.0)
    except ValueError:  # NaN or infinity on the way: values beyond the float range
        return math.nan, torch.zeros(mapping.domain_shape, dtype=mapping.dtype, device=mapping.device)
    vector = found.vector.reshape(-1)
    if mapping.domain_dimension > mapping.range_dimension:  # the vector lives on the output side
        vector = mapping.adjoint(vector.to(mapping.dtype)).to(vector)
    norm = euclidean(vector)
    return found.lower, vector / norm if norm > 0 else vector


def _largest_of_few(mapping: LinearMap) -> tuple[float, Tensor]:
    """Return the same for a map with few outputs from its rows: fewer products than an iteration takes.

    Their products are taken at unit scale, where no square leaves the float range.
    """
    units = torch.eye(mapping.range_dimension, dtype=mapping.dtype, device=mapping.device)
    rows = mapping.adjoint_batch(units.reshape(-1, *mapping.range_shape)).flatten(1).double()
    size = float(rows.abs().max())
    if size == 0.0 or not math.isfinite(size):
        return (math.nan if size else 0.0), torch.zeros_like(rows[0])
    rows = rows / size
    direction = rows.mT @ torch.linalg.eigh(rows @ rows.mT)[1][:, -1]
    direction = direction / torch.linalg.vector_norm(direction)
    return float(torch.linalg.vector_norm(rows @ direction)) * size, direction


def euclidean(x: Tensor) -> float:
    """Return the l2 norm, computed at unit scale: squares of entries may leave the float range where it does not.

    >>> euclidean(torch.tensor([3e-200, 4e-200], dtype=torch.float64))
    5e-200
    """
    size = float(x.abs().max()) if x.numel() else 0.0
    if size == 0.0 or not math.isfinite(size):
        return size
    return float(torch.linalg.vector_norm(x / size)) * size


def attained_at(function: Function, x: Tensor, direction: Tensor) -> float:
    """Return ``||J v||`` for a direction, less what rounding in float64 may have added.

    >>> 1.0 - 1e-8 < attained_at(lambda x: x, torch.ones(2).double(), torch.ones(2).double()) < 1.0
    True
    >>> attained_at(lambda x: x * 1e8 - x * (1e8 - 1), torch.ones(2).double(), torch.rand(2).double()) < 1.0
    True
    """
    return attained_in_parts(function, x, direction, None)[0]


def attained_in_parts(
    function: Function, x: Tensor, direction: Tensor, sizes: Sequence[int] | None
) -> tuple[float, ...]:
    """Return ``||J_i v||`` for each part of the output, less what rounding in float64 may have added to it.

    The same product, rounded differently, shows how much that is: with the direction times a factor, and with the last
    bits of the point changed. Where paths cancel, or a mean is much larger than the spread around it, it is much more
    than the rounding of the result.

    Args:
        function: the parts of its output lie side by side in one vector.
        x: the point at which it is differentiated.
        direction: the direction v, of any length.
        sizes: how many entries each part has; ``None`` is one part.

    >>> one = torch.ones(1).double()
    >>> [round(value, 6) for value in attained_in_parts(lambda x: torch.cat([x, 2 * x]), one, one, (1, 1))]
    [1.0, 2.0]
    """
    count = 1 if sizes is None else len(sizes)
    norm = euclidean(direction)
    if norm == 0.0:
        return (0.0,) * count
    unit = direction / norm

    def parts(image: Tensor) -> list[Tensor]:
        return [image] if sizes is None else list(torch.split(image, list(sizes)))

    mapping = jacobian_map(function, x)
    images = parts(mapping.apply(unit))
    again = [parts(mapping.apply(unit * c) / c) for c in _FACTORS]
    elsewhere = [parts(jacobian_map(function, p).apply(unit)) for p in with_other_last_bits(x, 1)]
    values = [_without_noise(image, [a[i] for a in again], [e[i] for e in elsewhere]) for i, image in enumerate(images)]
    seen = _differences(function, x, unit, max(values), parts)
    return tuple(
        value if not seen or max(d[i] for d in seen) >= DOUBT * value else max(d[i] for d in seen)
        for i, value in enumerate(values)
    )


def _differences(
    function: Function, x: Tensor, unit: Tensor, value: float, parts: Callable[[Tensor], list[Tensor]]
) -> list[list[float]]:
    """Return ``||f_i(x + h v) - f_i(x - h v)|| / 2h`` of each part, for steps that show more than rounding.

    What torch calls a gradient need not be one: values overwritten in place have gradients too, and a function may
    define its own. Quotients of differences need no gradient.
    """
    size = euclidean(x) or 1.0
    found = []
    with torch.no_grad():
        for step in (1e-4 * size, 1e-6 * size, 1e-8 * size):
            ahead, behind = function(x + step * unit), function(x - step * unit)
            noise = 1e-13 * max(euclidean(ahead), euclidean(behind), size * value)
            if step * value > 10.0 * noise:
                found.append([max(0.0, euclidean(d) / (2 * step) - noise / step) for d in parts(ahead - behind)])
                if min(found[-1]) >= DOUBT * value:
                    break  # no part is in doubt: smaller steps would change nothing
    return found


def _without_noise(image: Tensor, again: Sequence[Tensor], elsewhere: Sequence[Tensor]) -> float:
    """Return the norm of an image less its noise, seen in the same image rounded differently."""
    noise = max(euclidean(other - image) for other in again)
    values = [euclidean(image), *(euclidean(other) for other in elsewhere)]
    spread = max(values) - min(values)
    if spread <= 1e-3 * max(values):  # otherwise the point lies next to a kink, and the spread is not noise
        noise = max(noise, spread)
    return max(0.0, min(values) * (1 - 1e-9) - 4.0 * noise)


def with_other_last_bits(x: Tensor, count: int) -> list[Tensor]:
    """Return several copies of a point with its last bits changed; zeros change too, as they may lie on a kink."""
    generator = torch.Generator().manual_seed(0)
    signs = [torch.randint(-4, 5, x.shape, generator=generator).to(x) for _ in range(count)]
    size = torch.where(x == 0, (float(x.abs().max()) if x.numel() else 0.0) or 1.0, x)
    return [x + 2.0**-51 * sign * size for sign in signs]


def attained_by_pair(
    function: Function, x: Tensor, d: Tensor, again: int = 3, values: tuple[Tensor, Tensor] | None = None
) -> float:
    """Return the quotient of a pair, less what rounding in float64 may have added to the difference.

    Both values are computed again with the last bits of their points changed; the change is divided by ``||d||``.

    Args:
        function: the network.
        x: a point.
        d: the difference of the other point.
        again: how often each value is computed again.
        values: the outputs at the two points, if they are known.

    >>> far, near = torch.ones(2).double(), torch.full((2,), 1e-9).double()
    >>> attained_by_pair(lambda x: x * 1e8 - x * (1e8 - 1), far, near)
    0.0
    """
    distance = euclidean(d)
    if distance == 0.0:
        return 0.0
    with torch.no_grad():
        ends = list(zip((x, x + d), values or (function(x), function(x + d)), strict=True))
        quotient = euclidean(ends[1][1] - ends[0][1]) / distance
        if not math.isfinite(quotient):
            return 0.0
        size = max(euclidean(value) for _, value in ends)
        noise = max(euclidean(function(p) - value) for point, value in ends for p in with_other_last_bits(point, again))
    return max(0.0, quotient * (1 - 1e-9) - (1e-13 * size + 8.0 * noise) / distance)


def ascend(function: Function, x: Tensor, direction: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return the point and the difference of the best pair that gradient ascent meets.

    It starts at a point with a unit direction, such as the leading singular vector of the Jacobian there, and makes
    the quotient of the pair larger in steps of Adam.
    """
    scale = float(x.norm()) / math.sqrt(x.numel()) or 1.0
    distance = RADIUS * max(float(x.norm()), scale)
    point = x.detach().clone().requires_grad_(True)
    step = (direction.detach() * distance).clone().requires_grad_(True)
    optimizer = torch.optim.Adam(
        [{"params": [point], "lr": RATE * scale}, {"params": [step], "lr": 0.1 * distance / math.sqrt(x.numel())}]
    )
    best, pair = -math.inf, (x, step.detach().clone())
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.enable_grad():
            change = function(point + step) - function(point)
            value = change.square().sum().log() - step.square().sum().log()
        quotient = float(value.detach())
        if not math.isfinite(quotient):
            break
        if quotient > best:
            best, pair = quotient, (point.detach().clone(), step.detach().clone())
        slope = torch.autograd.grad(value, [point, step])
        point.grad, step.grad = -slope[0], -slope[1]
        optimizer.step()
    return pair
