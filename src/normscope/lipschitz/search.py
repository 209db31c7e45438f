"""Search for inputs on which the network changes fast, so that every upper bound has a partner below it."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from normscope.core.value import log_of
from normscope.graph.capture import Captured
from normscope.graph.interpreter import call
from normscope.graph.ir import SOURCES, Node, Ref, references
from normscope.graph.recognise import name_of
from normscope.lipschitz.climb import Norms, best_of, climb, rounds_for
from normscope.lipschitz.composition import Domain
from normscope.lipschitz.cost import forward_cost, is_large, overhead
from normscope.lipschitz.lower import EndToEnd, ascend, attained_at, attained_by_pair, euclidean, jacobian_norm
from normscope.operators.nonlinear import Range
from normscope.operators.program import Program
from normscope.operators.survey import group_floor

#: How many of the inputs measured in batches are measured again one by one.
BEST_LOOKED_AT = 2
#: Why nothing was attained where no derivative is a number other than zero.
BEYOND = "every derivative that was measured is zero or not finite in float64"


@dataclass(frozen=True, eq=False)
class Best:
    """An input at which the Jacobian was measured, and the direction it stretches most."""

    inputs: list[Tensor]  #: of the model
    point: Tensor  #: the network input there, blocks flattened
    direction: Tensor  #: of unit length
    inside: bool  #: whether it lies in the variance-floor domain


@dataclass(frozen=True)
class Search:
    """Logarithms of what was attained, or ``None`` where nothing was measured."""

    jacobian: float | None  #: largest Jacobian norm over the points given
    everywhere: float | None  #: the same, and the best pair found by ascent
    on_floor: float | None  #: the same, counting only inputs inside the variance-floor domain
    failure: str = ""  #: why nothing was measured, if something went wrong
    #: the input with the largest Jacobian, inside the variance-floor domain if one is
    best: Best | None = field(default=None, compare=False)


def search(
    captured: Captured,
    program: Program,
    inputs: Sequence[list[Tensor]],
    domain: Domain | None = None,
    *,
    points: int | None = None,
    ascent: int | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
    norms: Norms | None = None,
    look: Iterable[Tensor] = (),
) -> Search:
    """Measure Jacobian norms at given inputs and climb from the best.

    Args:
        captured: the model.
        program: its program.
        inputs: candidate inputs, one list of tensors each.
        domain: the variance-floor domain, against which every input is checked; ``None`` is all inputs.
        points: how many inputs to use; ``None`` chooses by the cost of the network.
        ascent: steps of ascent; ``None`` chooses by the cost.
        seed: of the start vectors.
        progress: called with a line of text.
        norms: Jacobian norms of many inputs at once, where that is cheap.
        look: batches of inputs to measure with it first, such as all of the data.
    """
    if not program.outputs or not inputs:
        return Search(None, None, None)
    report = progress or (lambda text: None)
    inside = functools.partial(in_domain, domain=domain or Domain())
    large = is_large(program)
    looked = _looked_at(norms, look, report)
    first = [] if looked is None else [[point.unsqueeze(0)] for point in looked[0][:BEST_LOOKED_AT]]
    if large and first and points is None:  # all of the data was measured: the best of it, and one that is inside
        inputs = [first[0], inputs[0]]
    else:
        inputs = [*first, *inputs[: number_of_points(program, points)]]
    ascent = (0 if large else 30) if ascent is None else ascent
    dtype = torch.float32 if large else torch.float64
    found: list[tuple[float, Tensor, Tensor, list[Tensor]]] = []
    network = EndToEnd(captured, program, inputs[0], dtype)
    for index, given in enumerate(inputs):
        report(f"Jacobian at point {index + 1} of {len(inputs)}")
        function = network.at(given)
        x = function.point()
        try:
            value, direction = jacobian_norm(function, x, steps=8, tolerance=1e-2, seed=seed)
        except (RuntimeError, NotImplementedError) as error:  # an operation without a derivative
            reason = str(error).splitlines()[0]
            return Search(None, None, None, f"the network cannot be differentiated ({reason})")
        if math.isfinite(value):
            found.append((value, x.double(), direction.double(), given))
    found.sort(key=lambda item: -item[0])
    if not found or found[0][0] == 0.0:
        deep = _rescaled(captured, program, inputs, seed)
        return Search(deep, deep, deep, "" if deep is not None else BEYOND)
    network = network if dtype == torch.float64 else EndToEnd(captured, program, found[0][3], torch.float64)
    precise = network.at(found[0][3])
    _, x, direction, _ = found[0]
    if not large:  # the first measurement was a short one
        direction = jacobian_norm(precise, x, steps=40, seed=seed)[1]
    jacobian = everywhere = attained_at(precise, x, direction)
    on_floor: float | None = jacobian
    best: Best | None = Best(found[0][3], x, direction, True)
    if not inside(precise, x):
        all_inside = (Best(given, at, v, True) for _, at, v, given in found if inside(network.at(given), at))
        best = next(all_inside, None)
        on_floor = None if best is None else attained_at(network.at(best.inputs), best.point, best.direction)
    if ascent:
        report("ascent from the best point")
        point, step = ascend(precise, x, direction, ascent)
        quotient = attained_by_pair(precise, point, step)
        everywhere = max(everywhere, quotient)
        if inside(precise, point) and inside(precise, point + step):
            on_floor = max(on_floor or 0.0, quotient)
    if ascent and norms is not None and looked is not None:
        slow = 6.0 if any(e.op is not None and e.op.kind == "convolution" for e in program.layers) else 1.0
        outputs = sum(e.numel for _, e in program.outputs)
        rounds = rounds_for(slow * forward_cost(program), outputs, overhead=overhead(program))
        point = climb(norms, *looked, rounds=rounds, seed=seed, progress=report)[0].flatten()
        higher = attained_at(precise, point, jacobian_norm(precise, point, steps=40, seed=seed)[1])
        everywhere = max(everywhere, higher)
        if inside(precise, point):
            on_floor = max(on_floor or 0.0, higher)
    logs = (log_of(jacobian), log_of(everywhere), None if on_floor is None else log_of(on_floor))
    return Search(*logs, best=best or Best(found[0][3], x, direction, False))


def _looked_at(
    norms: Norms | None, look: Iterable[Tensor], report: Callable[[str], None]
) -> tuple[Tensor, Tensor] | None:
    """Return the best of some batches of inputs and their norms, or ``None`` if there are none."""
    if norms is None:
        return None
    report("Jacobians at the data points")
    try:
        return best_of(norms, look)
    except (RuntimeError, NotImplementedError):  # an operation without a derivative; reported below
        return None


def number_of_points(program: Program, points: int | None) -> int:
    """Return at how many inputs the Jacobian is measured: as requested, or by the cost of the network."""
    return points if points is not None else 2 if is_large(program) else 12


def _rescaled(captured: Captured, program: Program, inputs: Sequence[list[Tensor]], seed: int) -> float | None:
    """Return the log of the largest Jacobian norm of a homogeneous network beyond the float range, or ``None``."""
    logs = []
    network = Rescaled(captured, program, inputs[0], torch.float64)
    if not is_homogeneous(network):
        return None
    for given in inputs:
        function = network.at(given)
        x = function.point()
        if not function.fix(x):
            continue
        value, direction = jacobian_norm(function, x, seed=seed)
        if math.isfinite(value):
            logs.append(log_of(attained_at(function, x, direction)) + function.log_scale)
    return max(logs, default=None)


def _within(value: Tensor, inside: Range) -> bool:
    """Return whether a tensor lies in a range."""
    norm = float(value.norm())
    row = float(value.norm(dim=-1).max()) if value.ndim else norm
    return (
        inside.low <= float(value.min())
        and float(value.max()) <= inside.high
        and norm <= inside.norm
        and row <= inside.row
    )


def in_domain(function: EndToEnd, x: Tensor, domain: Domain) -> bool:
    """Return whether an input lies in the variance-floor domain."""
    sites = {s.node: s for s in function.program.sites if s.node in domain.floors and s.spread is not None}
    sources: dict[str, list[str]] = {}
    for node, site in sites.items():
        sources.setdefault(site.source, []).append(node)
    fine = all(_within(block, inside) for block, inside in zip(function.blocks(x), domain.ranges, strict=False))

    def look(node: Node, value: Tensor, values: object) -> None:
        nonlocal fine
        if node.name in domain.factors:
            fine = fine and _within(value, domain.factors[node.name])
        for name in sources.get(node.name, ()):
            spread = sites[name].spread
            if spread is not None and bool((group_floor(value, spread, 1.0) < domain.floors[name]).any()):
                fine = False

    with torch.no_grad():
        function.watch(x, look)
    return fine


#: Distance of the pair, relative to the norm of the input; and rounds of the power iteration.
DISTANCE, POWER_ROUNDS = 1e-3, 2
#: The same for a slow network, and what rounding to float32 may change, relative to the outputs.
HEAVY, FAR, NOISE = 1e9, 1e-2, 1e-5


def glance(captured: Captured, program: Program, inputs: Sequence[Tensor], seed: int = 0) -> Search:
    """Return what a pair near one input attains.

    The direction comes from a power iteration: ``v = J^T u`` is a gradient in float32, ``u = J v`` a difference of two
    outputs in float64. It takes about ten passes of the network and nothing else. A slow network gets one round with
    outputs in float32, at a larger distance, less what rounding may have added.
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
        for _ in range(1 if heavy else POWER_ROUNDS):
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


#: Operations that commute with a positive factor, biases aside; and where each has its bias.
_HOMOGENEOUS = (
    "relu", "leaky_relu", "view", "reshape", "flatten", "permute", "transpose", "t", "contiguous", "clone", "dropout",
    "avg_pool2d", "adaptive_avg_pool2d", "max_pool2d", "mean", "sum", "unsqueeze", "squeeze", "neg", "slice", "select",
    "mm", "matmul", "_unsafe_view", "detach", "alias", "abs",
)  # fmt: skip
_BIAS = {"linear": 2, "conv1d": 2, "conv2d": 2, "conv3d": 2, "addmm": 0}
#: Sizes of values and derivatives beyond which a power of two is taken out.
SMALLEST, LARGEST = 1e-30, 1e30


def is_homogeneous(function: EndToEnd) -> bool:
    """Return whether a network is a chain of linear maps and positively homogeneous functions of one input."""
    graph = function.captured.graph
    depends = {b.name for b in function.program.blocks}
    if len(depends) != 1:
        return False
    for node in graph:
        # A tensor that occurs twice in one operation, as in x @ x, makes it quadratic.
        read = [ref.name for ref in references((node.args, node.kwargs)) if ref.name in depends]
        if node.op == "output" or not read:
            continue
        depends.add(node.name)
        name, bias = name_of(node), _bias(node)
        if len(read) > 1 or (name not in _HOMOGENEOUS and name not in _BIAS):
            return False
        if name in _BIAS and (bias in read or any(True for _ in references(node.kwargs))):
            return False
    # A chain: every tensor that depends on the input is read once.
    users = graph.users()
    return all(len(users[name]) <= 1 for name in depends)


def _bias(node: Node) -> str | None:
    """Return the name of the bias an operation adds, if it adds one."""
    place = _BIAS.get(name_of(node))
    bias = None if place is None or len(node.args) <= place else node.args[place]
    return bias.name if isinstance(bias, Ref) else None


class Rescaled(EndToEnd):
    """A homogeneous network with a power of two taken out wherever values or derivatives grow or shrink too far."""

    _of_values: dict[str, int]
    _of_gradients: dict[str, int]

    @property
    def log_scale(self) -> float:
        """Logarithm of the factor by which the network's Jacobian is larger than that of the rescaled one."""
        return -math.log(2.0) * (sum(self._of_values.values()) + sum(self._of_gradients.values()))

    def fix(self, x: Tensor) -> bool:
        """Choose the factors at a point; from then on the function is one fixed network.

        Returns:
            Whether all its values at the point are finite: if not, its derivative there means nothing.
        """
        self._of_values, self._of_gradients = {}, {}
        start = x.detach().requires_grad_(True)
        with torch.enable_grad():
            end = self._run(start, choose=True)
            if bool(end.isfinite().all()) and end.requires_grad:
                torch.autograd.grad(end, start, torch.ones_like(end), allow_unused=True)
                return True
        return bool(end.isfinite().all())

    def __call__(self, x: Tensor) -> Tensor:
        """Run the rescaled network."""
        return self._run(x, choose=False)

    def _run(self, x: Tensor, *, choose: bool) -> Tensor:
        """Run the network, taking factors out."""
        depends: set[str] = {self.program.blocks[0].name}
        taken = 0  # the exponent of all factors so far
        finite = True

        def look(node: Node, value: Any, values: Mapping[str, Any]) -> Any:
            nonlocal taken, finite
            if node.op in SOURCES or not any(name in depends for name in node.inputs()):
                return None
            depends.add(node.name)
            value = self._with_bias_scaled(node, value, values, taken)
            if choose:
                size = _largest(value)
                finite = finite and math.isfinite(size)
                _choose(self._of_values, node.name, size)
            exponent = self._of_values.get(node.name, 0)
            taken += exponent
            value = value * 2.0**exponent if exponent else value
            self._scale_gradient(node.name, value, choose)
            return value

        result = self.watch(x, look)
        return result if finite else torch.full_like(result, math.nan)

    def _scale_gradient(self, name: str, value: Tensor, choose: bool) -> None:
        """Scale the gradient at a tensor; every path passes through it, so the whole Jacobian is scaled."""

        def scaled(gradient: Tensor) -> Tensor:
            if choose:
                _choose(self._of_gradients, name, _largest(gradient))
            return gradient * 2.0 ** self._of_gradients.get(name, 0)

        if value.requires_grad and (choose or name in self._of_gradients):
            value.register_hook(scaled)

    def _with_bias_scaled(self, node: Node, value: Tensor, values: Mapping[str, Any], taken: int) -> Tensor:
        """Return a layer's result with its bias scaled by the factors taken out before it.

        The layer is computed again: adding the difference to a result in which the bias was much larger than the rest
        would leave nothing of the rest.
        """
        bias = _bias(node)
        if bias is None or taken == 0:
            return value
        # In two halves: the whole factor may leave the float range where the scaled bias does not.
        scaled = values[bias] * _power_of_two(taken // 2) * _power_of_two(taken - taken // 2)
        return call(node, {name: scaled if name == bias else values[name] for name in node.inputs()}, self.dtype)


def _largest(value: Tensor) -> float:
    """Return the largest magnitude of an entry."""
    return float(value.detach().abs().max()) if value.numel() else 0.0


def _choose(exponents: dict[str, int], name: str, size: float) -> None:
    """Choose the power of two that brings numbers of this size back to one, if they have gone too far."""
    if math.isfinite(size) and size > 0.0 and not SMALLEST < size < LARGEST:
        exponents[name] = max(-1000, min(1000, -math.frexp(size)[1]))


def _power_of_two(exponent: int) -> float:
    """Return a power of two that is a number and has an inverse, the nearest one if need be."""
    return 2.0 ** max(-1000, min(1000, exponent))
