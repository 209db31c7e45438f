"""Search for steep inputs: what it reports is attained, and inside the domain it is said of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mpmath
import pytest
import torch
from torch import Tensor, nn

import normscope
from networks import Lambda, captured_of, jacobian, jacobian_norm, points, seeded
from normscope.graph.capture import Captured
from normscope.graph.ir import Graph, Node, Ref
from normscope.lipschitz import search as module
from normscope.lipschitz.climb import batched_norms
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.lower import EndToEnd, jacobian_map
from normscope.lipschitz.search import Rescaled, Search, glance, in_domain, is_homogeneous, number_of_points, search
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.nonlinear import Range
from normscope.operators.program import Program, build_program
from normscope.operators.survey import survey
from rotation import todays


def _walked(model: nn.Module, x: Tensor) -> tuple[Captured, Program, list[list[Tensor]]]:
    captured = captured_of(model, x)
    program = build_program(captured.graph, captured.tensors, captured.at_batch(1))
    return captured, program, [[row[None]] for row in x]


def test_the_best_of_the_points() -> None:
    """The largest dense Jacobian norm over the points given, to a millionth and never above."""
    model, x = seeded(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))), points(9, 4) * 2
    captured, program, inputs = _walked(model, x)
    found = search(captured, program, inputs, ascent=0)
    truth = max(jacobian_norm(model, row[None]) for row in x)
    assert found.jacobian is not None
    assert math.exp(found.jacobian) <= truth
    assert math.exp(found.jacobian) == pytest.approx(truth, rel=1e-6)
    assert found.everywhere == found.jacobian == found.on_floor


def test_ascent_only_raises() -> None:
    """From a flat place of a LayerNorm it climbs towards small spreads, still below the constant."""
    model = nn.LayerNorm(5).double()
    captured, program, inputs = _walked(model, points(3, 5))
    flat = search(captured, program, inputs, ascent=0)
    steep = search(captured, program, inputs, ascent=40)
    assert flat.everywhere is not None
    assert steep.everywhere is not None
    assert flat.everywhere < steep.everywhere <= -0.5 * math.log(1e-5)


def test_what_is_said_of_the_floors_lies_above_them() -> None:
    """Outside the floors ascent finds more, but it is not counted there."""
    model, x = nn.LayerNorm(5).double(), points(6, 5)
    captured, program, inputs = _walked(model, x)
    floors = survey(captured, program, [[x]], activations={}).floors()
    found = search(captured, program, inputs, Domain(floors=floors), ascent=40)
    least = float(x.var(1, unbiased=False).sqrt().min())
    bound = -0.5 * math.log(least**2 + 1e-5)
    assert found.on_floor is not None
    assert found.everywhere is not None
    assert found.on_floor <= bound + 1e-9
    assert found.everywhere > bound


def test_points_outside_the_domain_are_not_counted_in_it() -> None:
    """With floors above every point there is nothing to report there; with one below, only that one."""
    model, x = nn.LayerNorm(5).double(), points(3, 5) * torch.tensor([[0.1], [1.0], [3.0]])
    captured, program, inputs = _walked(model, x)
    (node,) = (s.node for s in program.sites)
    spreads = x.var(1, unbiased=False).sqrt()
    none = search(captured, program, inputs, Domain(floors={node: float(spreads.max()) * 2}), ascent=0)
    assert none.on_floor is None
    assert none.jacobian is not None
    last = search(captured, program, inputs, Domain(floors={node: float(spreads[2]) * 0.99}), ascent=0)
    assert last.on_floor is not None
    assert math.exp(last.on_floor) == pytest.approx(jacobian_norm(model, x[2:]), rel=1e-6)


def test_membership() -> None:
    """Floors of normalizers, entries, rows and norms of the input."""
    model = seeded(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)))
    x = points(1, 3)
    captured, program, _ = _walked(model, torch.cat([x, x]))
    function = EndToEnd(captured, program, [x])
    (node,) = (s.node for s in program.sites)
    spread = float(model[0](x).detach().var(unbiased=False).sqrt())
    flat = x.flatten()
    assert in_domain(function, flat, Domain())
    assert in_domain(function, flat, Domain(floors={node: spread * (1 - 1e-9)}))
    assert not in_domain(function, flat, Domain(floors={node: spread * (1 + 1e-9)}))
    low, high, norm = float(x.min()), float(x.max()), float(x.norm())
    assert in_domain(function, flat, Domain(ranges=(Range(low, high, norm * (1 + 1e-9), norm * (1 + 1e-9)),)))
    for wrong in (Range(low + 0.1, high), Range(low, high - 0.1), Range(row=norm / 2), Range(norm=norm / 2)):
        assert not in_domain(function, flat, Domain(ranges=(wrong,)))


def test_a_network_without_a_derivative_says_so() -> None:
    """An operation autograd does not know gives no lower bound, and the reason."""
    model = Lambda(lambda s, x: torch.special.zeta(x.abs() + 2, x.abs() + 1.0), p=nn.Parameter(torch.ones(1).double()))
    captured, program, inputs = _walked(model, points(2, 3))
    found = search(captured, program, inputs)
    assert (found.jacobian, found.everywhere, found.on_floor) == (None, None, None)
    assert "zeta" in found.failure


def test_derivatives_beyond_the_float_range_are_named() -> None:
    """A chain of LayerNorms of tiny gain: its Jacobian is zero in float64, and that is no attained value."""
    blocks = [layer for _ in range(40) for layer in (nn.LayerNorm(4), nn.Linear(4, 4))]
    model = seeded(nn.Sequential(*blocks))
    with torch.no_grad():
        for layer in blocks[::2]:
            layer.weight.fill_(1e-20)
    captured, program, inputs = _walked(model, points(2, 4))
    found = search(captured, program, inputs)
    assert found.everywhere is None
    assert "zero or not finite" in found.failure


def test_nothing_to_search() -> None:
    """No inputs, or no output that depends on them."""
    captured, program, inputs = _walked(seeded(nn.Linear(3, 2)), points(2, 3))
    assert search(captured, program, []) == Search(None, None, None)
    constant = Lambda(lambda s, x: s.p * 2, p=nn.Parameter(torch.ones(2).double()))
    captured, program, inputs = _walked(constant, points(2, 3))
    assert search(captured, program, inputs) == Search(None, None, None)


def test_deep_networks_beyond_the_float_range() -> None:
    """A product of 1e-40 twenty times: the Jacobian is told as a logarithm."""
    model = nn.Sequential(*[m for _ in range(20) for m in (nn.Linear(3, 3, bias=False), nn.ReLU())]).double()
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.weight.data.copy_(1e-40 * torch.eye(3, dtype=torch.float64))
    captured, program, inputs = _walked(model, points(2, 3).abs() + 0.1)
    found = search(captured, program, inputs)
    assert found.jacobian == pytest.approx(20 * math.log(1e-40), rel=1e-9)


def test_the_number_of_points() -> None:
    """As many as asked for, otherwise few for large networks."""
    _, program, _ = _walked(seeded(nn.Linear(3, 2)), points(2, 3))
    assert number_of_points(program, 5) == 5
    assert number_of_points(program, None) > 2
    model, x = seeded(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))), points(5, 4)
    captured, program, inputs = _walked(model, x)
    lines: list[str] = []
    search(captured, program, inputs, points=2, ascent=0, progress=lines.append)
    assert len(lines) == 2


DEPTH = 5000


def chain(
    weights: Sequence[Tensor], x: Tensor, biases: Sequence[Tensor] | None = None, *, relu: bool = True
) -> tuple[Captured, Program]:
    """Return a network of linear layers or convolutions written down as a graph, and its program."""
    nodes = [Node("x", "input", shape=tuple(x.shape), dtype="float64")]
    tensors: dict[str, Tensor] = {}
    op = "aten.linear.default" if weights[0].ndim == 2 else "aten.conv2d.default"
    last = "x"

    def source(name: str, tensor: Tensor) -> Ref:
        nodes.append(Node(name, "parameter", target=name, shape=tuple(tensor.shape), dtype="float64"))
        tensors[name] = tensor
        return Ref(name)

    for k, weight in enumerate(weights):
        bias = None if biases is None else source(f"b{k}", biases[k])
        geometry = ((1, 1), (1, 1)) if weight.ndim == 4 else ()
        nodes.append(Node(f"l{k}", op, (Ref(last), source(f"w{k}", weight), bias, *geometry)))
        last = f"l{k}"
        if relu:
            nodes.append(Node(f"r{k}", "aten.relu.default", (Ref(last),)))
            last = f"r{k}"
    graph = Graph((*nodes, Node("output", "output", (Ref(last),))), batch="1", output_names=("output",))
    return Captured(graph, tensors, [x], ["x"]), build_program(graph, tensors, [x])


def bounds_of(captured: Captured, program: Program) -> tuple[float, Search]:
    """Return the log of the certified constant, and what the search attained."""
    upper = Composition(program, Domain(), SegmentNorms()).total()[0]
    return upper, search(captured, program, [captured.example], ascent=0)


def in_decimals(log: float) -> float:
    return log / math.log(10.0)


@pytest.mark.turns(3)
@pytest.mark.parametrize(("a", "biased"), todays([(0.5, False), (0.5, True), (2.0, True), (3.0, False)], 1))
def test_theorem_6_networks_of_depth_5000(a: float, biased: bool) -> None:
    """``relu(a I x + b)`` five thousand times: the bound is a^5000, attained at x > 0, with b > 0 as without."""
    x = torch.tensor([[0.3, -1.2, 0.7]], dtype=torch.float64)
    weight = a * torch.eye(3, dtype=torch.float64)
    biases = [torch.rand(3, generator=torch.Generator().manual_seed(k), dtype=torch.float64) for k in range(DEPTH)]
    upper, found = bounds_of(*chain([weight] * DEPTH, x, biases if biased else None))
    exact = DEPTH * math.log(a)
    assert found.jacobian is not None
    assert found.jacobian <= exact <= upper
    assert in_decimals(upper - found.jacobian) < 1e-6


@pytest.mark.turns(2)
def test_a_convolutional_chain_of_depth_1000() -> None:
    """Kernels with ``a I`` in the middle, on maps whose channels grow and shrink; the constant is no float."""
    a, depth = 3.0, 1000
    x = torch.rand(1, 2, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    kernels = []
    for m, n in ((3, 2), (2, 3)):
        kernel = torch.zeros(m, n, 3, 3, dtype=torch.float64)
        kernel[:, :, 1, 1] = a * torch.eye(m, n, dtype=torch.float64)
        kernels.append(kernel)
    upper, found = bounds_of(*chain(kernels * (depth // 2), x))
    exact = depth * math.log(a)
    assert found.jacobian is not None
    assert found.jacobian <= exact <= upper
    assert in_decimals(upper - found.jacobian) < 1e-6


@pytest.mark.turns(2)
@pytest.mark.parametrize(("scale", "depth"), [(5.0, DEPTH), (0.2, 1000)])
def test_random_linear_chains(scale: float, depth: int) -> None:
    """Without activations the norm is that of one product of matrices, multiplied out with fifty digits."""
    generator = torch.Generator().manual_seed(1)
    weights = [scale * torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in range(depth)]
    upper, found = bounds_of(*chain(weights, points(1, 3), relu=False))
    with mpmath.workdps(50):
        whole = mpmath.eye(3)
        for weight in weights:
            whole = mpmath.matrix(weight.tolist()) * whole
        exact = float(mpmath.log(mpmath.svd_r(whole, compute_uv=False)[0]))
    assert found.jacobian is not None
    assert found.jacobian <= exact <= upper
    assert in_decimals(upper - found.jacobian) < 1e-6


def test_factors_that_cancel_leave_no_rounding_behind() -> None:
    """Up to 1e6000 and back: the bound on a constant near one is not below it, although logarithms near 13816 are."""
    for a in (3.0, 1e30):
        weights = [f * torch.eye(2, dtype=torch.float64) for f in [a] * 200 + [1.0 / a] * 200]
        upper, _ = bounds_of(*chain(weights, torch.ones(1, 2, dtype=torch.float64)))
        with mpmath.workdps(50):
            exact = 200 * mpmath.log(mpmath.mpf(a) * mpmath.mpf(1.0 / a))
        assert exact <= upper <= exact + 1e-8


def test_analyze_reports_such_networks() -> None:
    """From the module to the result: 1e400 is no float64, and both bounds say so."""
    layers: list[nn.Module] = []
    for _ in range(80):
        layer = nn.Linear(2, 2)
        nn.init.eye_(layer.weight).data.mul_(1e5)
        nn.init.constant_(layer.bias, 0.25)
        layers += [layer, nn.ReLU()]
    result = normscope.analyze(nn.Sequential(*layers).eval(), input_shape=(2,))
    upper, lower = result.end_to_end["global"], result.end_to_end["lower"]
    assert upper is not None
    assert lower is not None
    assert lower.log <= 80 * math.log(1e5) <= upper.log
    assert in_decimals(upper.log - lower.log) < 1e-6


class Mixed(nn.Module):
    """Convolutions, ReLUs, pools, a bend and linear layers in a chain, biases throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.third = nn.Linear(16, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map images of 8 by 8 to three numbers."""
        x = nn.functional.max_pool2d(torch.relu(self.first(x)), 2)
        x = nn.functional.leaky_relu(self.second(x), 0.1)
        return self.last(-torch.relu(self.third(x.flatten(1))).abs())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limits", [(0.9, 1.1), (2.0, 3.0), (1e-3, 1e-2)])
def test_rescaling_changes_the_jacobian_by_the_factor_it_says(
    seed: int, limits: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With powers of two taken out almost everywhere, entry by entry the dense Jacobian of the module."""
    monkeypatch.setattr(module, "SMALLEST", limits[0])
    monkeypatch.setattr(module, "LARGEST", limits[1])
    model, x = seeded(Mixed(), seed=seed), points(1, 2, 8, 8, seed=seed)
    captured = captured_of(model, torch.cat([x, x]))
    program = build_program(captured.graph, captured.tensors, [x])
    function = Rescaled(captured, program, [x])
    assert is_homogeneous(function)
    assert function.fix(function.point())
    assert len(function._of_values) + len(function._of_gradients) > 6
    found = jacobian_map(function, function.point()).matrix() * math.exp(function.log_scale)
    torch.testing.assert_close(found, jacobian(model, x), rtol=1e-11, atol=1e-13)


def test_dead_units_stay_dead_however_small_the_values() -> None:
    """A layer of minus one after many that shrink: the derivative is zero, and nothing else is attained.

    Zero biases times the factors taken out are zero, not NaN, whose ReLU would let every derivative pass.
    """
    weights = [1e-30 * torch.eye(3, dtype=torch.float64)] * 20
    dead = [*weights, -torch.eye(3, dtype=torch.float64), *weights]
    zeros = [torch.zeros(3, dtype=torch.float64)] * len(dead)
    x = torch.ones(1, 3, dtype=torch.float64)
    _, found = bounds_of(*chain(dead, x, zeros))
    assert found.jacobian in (None, -math.inf)
    _, alive = bounds_of(*chain(weights, x, zeros))
    assert alive.jacobian == pytest.approx(-600 * math.log(10), abs=1e-6)


def test_biases_far_larger_than_the_rescaled_values_leave_them_alone() -> None:
    """At 1e320 a bias of -1e25 is nothing, although the values are kept near one: all units stay alive."""
    weights = [1e20 * torch.eye(2, dtype=torch.float64)] * 20
    biases = [torch.full((2,), -1e25 if k >= 16 else 0.0, dtype=torch.float64) for k in range(20)]
    upper, found = bounds_of(*chain(weights, torch.ones(1, 2, dtype=torch.float64), biases))
    assert found.jacobian == pytest.approx(400 * math.log(10), abs=1e-6)
    assert found.jacobian <= upper


def test_a_bias_that_overflows_the_rescaled_network_is_no_lower_bound() -> None:
    """After 1e-600 a bias of one cannot be written beside the values: nothing is said rather than something wrong."""
    weights = [1e-30 * torch.eye(2, dtype=torch.float64)] * 21
    biases = [torch.full((2,), 1.0 if k == 20 else 0.0, dtype=torch.float64) for k in range(21)]
    _, found = bounds_of(*chain(weights, torch.ones(1, 2, dtype=torch.float64), biases))
    assert found.jacobian is None


HOMOGENEOUS = {
    "chain": (lambda s, x: s.b(torch.relu(s.a(x))), True),
    "constant matrix": (lambda s, x: torch.matmul(s.b.weight, torch.relu(s.a(x))), True),
    "square": (lambda s, x: (lambda y: torch.matmul(y.T, y))(s.a(x)), False),
    "product with itself": (lambda s, x: torch.mm(x, x), False),
    "residual": (lambda s, x: x + s.a(x), False),
    "smooth": (lambda s, x: torch.tanh(s.a(x)), False),
    "shifted": (lambda s, x: s.a(x) + 1.0, False),
    "input as bias": (lambda s, x: nn.functional.linear(s.a.weight, s.a.weight, x[0]), False),
}


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_only_chains_of_homogeneous_functions_are_rescaled(name: str) -> None:
    """A function of degree two, two paths, constants added: the factor would not come out as it went in."""
    function, expected = HOMOGENEOUS[name]
    model = seeded(Lambda(function, a=nn.Linear(3, 3), b=nn.Linear(3, 3)))
    x = points(3, 3)
    captured = captured_of(model, x)
    program = build_program(captured.graph, captured.tensors, captured.example)
    assert is_homogeneous(Rescaled(captured, program, captured.example)) is expected


def test_what_is_climbed_to_counts_only_where_the_factors_stay_in_their_ranges() -> None:
    """A product is steeper far out; on the domain where its factors are bounded, their bounds hold for its slope."""
    model = seeded(Lambda(lambda s, x: s.a(x) * s.b(x), a=nn.Linear(3, 2), b=nn.Linear(3, 2)))
    x = points(6, 3)
    captured, program, inputs = _walked(model, x)
    nodes = [n.name for n in captured.graph if n.op == "aten.linear.default"]
    with torch.no_grad():
        most = float(max(model.a(x).abs().max(), model.b(x).abs().max()))
    factors = {node: Range(-most, most) for node in nodes}
    norms = batched_norms(captured, program)
    found = search(captured, program, inputs, Domain(factors=factors), norms=norms, look=[x.double()])
    bound = most * (jacobian_norm(model.a, x[:1]) + jacobian_norm(model.b, x[:1]))
    assert found.on_floor is not None
    assert found.everywhere is not None
    assert math.exp(found.on_floor) <= bound < math.exp(found.everywhere)


def _glance(model: nn.Module, x: Tensor) -> float | None:
    captured = captured_of(model.eval(), x)
    one = captured.at_batch(1)
    return glance(captured, build_program(captured.graph, captured.tensors, one), one).everywhere


HEAVY = pytest.mark.parametrize("heavy", [False, True])


@HEAVY
def test_a_linear_map_is_not_overstated(heavy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The truth is the largest singular value; the power iteration comes within half of it, in one round too."""
    monkeypatch.setattr(module, "HEAVY", -1.0 if heavy else 1e9)
    torch.manual_seed(0)
    layer = nn.Linear(12, 7)
    truth = float(torch.linalg.matrix_norm(layer.weight.detach().double(), ord=2))
    found = _glance(layer, torch.randn(2, 12))
    assert found is not None
    assert 0.5 * truth < math.exp(found) <= truth


def test_rounding_is_taken_off() -> None:
    """Outputs of float32 that differ in their last digits only show nothing."""
    start = torch.full((100,), 1.0)
    assert module._apart(start, torch.nextafter(start, start + 1)) == 0.0
    assert module._apart(start, start + 1) == pytest.approx(10.0, rel=1e-4)
    assert module._apart(start, start + 1) < 10.0


@HEAVY
def test_a_network_stays_below_its_bound(heavy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """ReLU, BatchNorm with running statistics: below the product of norms."""
    monkeypatch.setattr(module, "HEAVY", -1.0 if heavy else 1e9)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))
    norms = [float(torch.linalg.matrix_norm(m.weight.detach().double(), ord=2)) for m in (model[0], model[3])]
    found = _glance(model, torch.randn(2, 6))
    assert found is not None
    assert 0.0 < math.exp(found) <= norms[0] * norms[1]


def test_a_constant_attains_nothing() -> None:
    """No direction moves it."""

    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 0.0

    assert _glance(Constant(), torch.ones(2, 3)) is None


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_number(seed: int) -> None:
    """Twice."""
    torch.manual_seed(2)
    layer = nn.Linear(5, 5)
    x = torch.randn(2, 5)
    captured = captured_of(layer.eval(), x)
    one = captured.at_batch(1)
    program = build_program(captured.graph, captured.tensors, one)
    assert glance(captured, program, one, seed) == glance(captured, program, one, seed)
