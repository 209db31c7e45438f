"""Networks beyond the float range: lower and upper bounds meet, and rescaling is the chain rule and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mpmath
import pytest
import torch
from torch import Tensor, nn

import normscope
from networks import Lambda, captured_of, jacobian, points, seeded
from normscope.graph.capture import Captured
from normscope.graph.ir import Graph, Node, Ref
from normscope.lipschitz import overflow_safe as rescaled
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.lower import jacobian_map
from normscope.lipschitz.overflow_safe import Rescaled, is_homogeneous
from normscope.lipschitz.search import Search, search
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.program import Program, build_program

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
    return upper, search(captured, program, [captured.example], floors={}, ascent=0)


def in_decimals(log: float) -> float:
    return log / math.log(10.0)


@pytest.mark.parametrize(("a", "biased"), [(0.5, False), (0.5, True), (2.0, True), (3.0, False)])
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


def test_a_convolutional_chain_of_depth_5000() -> None:
    """Kernels with ``a I`` in the middle, on maps whose channels grow and shrink."""
    a = 3.0
    x = torch.rand(1, 2, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    kernels = []
    for m, n in ((3, 2), (2, 3)):
        kernel = torch.zeros(m, n, 3, 3, dtype=torch.float64)
        kernel[:, :, 1, 1] = a * torch.eye(m, n, dtype=torch.float64)
        kernels.append(kernel)
    upper, found = bounds_of(*chain(kernels * (DEPTH // 2), x))
    exact = DEPTH * math.log(a)
    assert found.jacobian is not None
    assert found.jacobian <= exact <= upper
    assert in_decimals(upper - found.jacobian) < 1e-6


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
    monkeypatch.setattr(rescaled, "SMALLEST", limits[0])
    monkeypatch.setattr(rescaled, "LARGEST", limits[1])
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
