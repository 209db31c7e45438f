"""Composition over atoms: exact on linear and extremal networks, and above every Jacobian elsewhere."""

from __future__ import annotations

import inspect
import itertools
import math
import sys
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from networks import Lambda, LambdaOfTwo, jacobian_norm, points, program_of, seeded, spectral_norm, upper_of
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.nonlinear import Range
from normscope.operators.program import Program

Build = Callable[[], nn.Module]

LINEAR: dict[str, tuple[Build, tuple[int, ...]]] = {
    "three layers": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)), (4,)),
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), (4,)),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Conv2d(2, 1, 3), nn.Flatten()),
        (1, 5, 5),
    ),
    "residual": (lambda: Lambda(lambda s, x: x - s.b(s.a(x)), a=nn.Linear(4, 6), b=nn.Linear(6, 4)), (4,)),
    "two outputs": (lambda: Lambda(lambda s, x: (s.a(x), s.b(x)), a=nn.Linear(4, 3), b=nn.Linear(4, 2)), (4,)),
    "outputs by name": (
        lambda: Lambda(lambda s, x: {"u": s.a(x), "v": s.b(x), "again": s.a(x)}, a=nn.Linear(4, 3), b=nn.Linear(4, 2)),
        (4,),
    ),
    "side by side": (
        lambda: Lambda(lambda s, x: torch.cat([s.a(x), s.b(x)], 1), a=nn.Linear(4, 3), b=nn.Linear(4, 2)),
        (4,),
    ),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_networks_are_measured_exactly(name: str) -> None:
    """Without a nonlinearity nothing separates the layers: the bound is the norm of the one matrix."""
    build, shape = LINEAR[name]
    model = seeded(build())
    truth = jacobian_norm(model, points(1, *shape))
    upper = upper_of(program_of(model, points(2, *shape)))
    assert truth <= upper * (1 + 1e-13)
    assert upper == pytest.approx(truth, rel=1e-6)


def _extremal(widths: Sequence[int], factors: Sequence[float]) -> nn.Sequential:
    """Return the network with ``W_k = a_k I_k`` and ReLU between layers."""
    layers: list[nn.Module] = []
    for (n, m), a in zip(itertools.pairwise(widths), factors, strict=True):
        layer = nn.Linear(n, m, bias=False, dtype=torch.float64)
        layer.weight.data.copy_(a * torch.eye(m, n, dtype=torch.float64))
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize(
    ("widths", "factors"),
    [
        ((5, 3, 7, 2, 4), (2.0, 0.5, 3.0, 1.5)),
        ((1, 1), (7.0,)),
        ((3, 1, 3), (0.25, 10.0)),
        ((4,) * 21, (1.5,) * 20),
        ((2, 9, 1, 6, 3, 3), (0.1, 0.2, 0.3, 0.4, 0.5)),
        ((6, 6, 6), (1e30, 1e-30)),
    ],
)
def test_theorem_6_networks_attain_the_product(widths: tuple[int, ...], factors: tuple[float, ...]) -> None:
    """Padded identities with ReLU: the bound is the product of the factors, and so is the Jacobian at x > 0."""
    model = _extremal(widths, factors)
    x = torch.rand(1, widths[0], dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1
    exact = math.prod(factors)
    assert jacobian_norm(model, x) == pytest.approx(exact, rel=1e-12)
    upper = upper_of(program_of(model, torch.cat([x, x])))
    assert upper >= exact * (1 - 1e-14)
    assert upper == pytest.approx(exact, rel=1e-6)


def test_a_residual_branch_adds_one() -> None:
    """``x + relu(2 x)`` has constant 1 + L, attained for x > 0."""
    double = nn.Linear(3, 3, bias=False)
    double.weight.data.copy_(2 * torch.eye(3))
    model = Lambda(lambda s, x: x + torch.relu(s.a(x)), a=double).double()
    upper = upper_of(program_of(model, points(2, 3)))
    assert upper == pytest.approx(3.0, rel=1e-12)
    assert jacobian_norm(model, torch.ones(1, 3).double()) == pytest.approx(3.0, rel=1e-12)


def test_a_linear_branch_is_not_added_but_measured() -> None:
    """``x - 2 x`` has norm one, not three: paths of one atom are one operator."""
    double = nn.Linear(3, 3, bias=False)
    double.weight.data.copy_(2 * torch.eye(3))
    model = Lambda(lambda s, x: torch.relu(x - s.a(x)), a=double).double()
    assert upper_of(program_of(model, points(2, 3))) == pytest.approx(1.0, rel=1e-12)


def test_the_skip_of_a_later_block_meets_its_own_atom() -> None:
    """``(r + t) - t`` is r: equal atoms are gathered through nested sums, and cancel."""

    def function(s: Lambda, x: torch.Tensor) -> torch.Tensor:
        t = x.tanh()
        return (x.relu() + t) - t

    model = Lambda(function, one=nn.Parameter(torch.ones(1))).double()
    assert upper_of(program_of(model, points(2, 3))) == pytest.approx(1.0, rel=1e-9)


def test_functions_of_the_same_input_side_by_side_add_in_squares() -> None:
    """``[3 relu(x), 4 relu(x)]`` is 5-Lipschitz, attained for x > 0."""
    model = Lambda(lambda s, x: torch.cat([3 * x.relu(), 4 * x.clone().relu()], 1), p=nn.Parameter(torch.ones(1)))
    upper = upper_of(program_of(model.double(), points(2, 3)))
    assert upper == pytest.approx(5.0, rel=1e-9)
    assert jacobian_norm(model, torch.ones(1, 3).double()) == pytest.approx(5.0, rel=1e-12)


def test_functions_of_disjoint_inputs_take_the_larger() -> None:
    """``[3 relu(x), 4 relu(y)]`` is 4-Lipschitz in (x, y) together."""
    model = LambdaOfTwo(lambda s, x, y: torch.cat([3 * x.relu(), 4 * y.relu()], 1), p=nn.Parameter(torch.ones(1)))
    program = program_of(model.double(), points(2, 3), points(2, 3, seed=1))
    assert len(program.blocks) == 2
    assert upper_of(program) == pytest.approx(4.0, rel=1e-9)


def test_two_inputs_that_are_added() -> None:
    """``relu(A x) + relu(B y)``: the norm of the row of constants, root of the sum of squares."""
    model = seeded(LambdaOfTwo(lambda s, x, y: s.a(x).relu() + s.b(y).relu(), a=nn.Linear(3, 2), b=nn.Linear(4, 2)))
    expected = math.hypot(spectral_norm(model.a.weight.detach()), spectral_norm(model.b.weight.detach()))
    program = program_of(model, points(2, 3), points(2, 4, seed=1))
    assert upper_of(program) == pytest.approx(expected, rel=1e-9)
    assert max(jacobian_norm(model, points(1, 3, seed=i), points(1, 4, seed=9 + i)) for i in range(20)) <= expected


def test_a_map_after_a_junction_is_measured_with_each_branch() -> None:
    """``C [relu(x), relu(y)]`` with orthogonal columns: distributing C over the branches beats its own norm."""
    model = LambdaOfTwo(lambda s, x, y: s.c(torch.cat([x.relu(), 0.1 * y.relu()], 1)), c=nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        model.c.weight.copy_(torch.tensor([[1.0, 0.0, 5.0, 0.0], [0.0, 1.0, 0.0, 5.0]]))
    program = program_of(model.double(), points(2, 2), points(2, 2, seed=1))
    certified = upper_of(program)
    assert certified == pytest.approx(math.hypot(1.0, 0.5), rel=1e-9)


def test_normalizers_between_layers_multiply() -> None:
    """Linear, LayerNorm, ReLU twice, against the product of the four constants, each known in closed form."""
    model = seeded(nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3), nn.LayerNorm(3)))
    centre = {n: torch.eye(n).double() - 1 / n for n in (3, 5)}
    first = spectral_norm(centre[5] @ model[0].weight.detach()) / math.sqrt(1e-5)
    gamma = spectral_norm(torch.diag(model[1].weight.detach()) @ centre[5])
    second = spectral_norm(centre[3] @ model[3].weight.detach()) / math.sqrt(1e-5)
    last = spectral_norm(torch.diag(model[4].weight.detach()) @ centre[3])
    assert upper_of(program_of(model, points(2, 4))) == pytest.approx(first * gamma * second * last, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_no_jacobian_exceeds_the_bound(seed: int) -> None:
    """A network with every kind of junction, at points of many sizes."""
    model = seeded(
        Lambda(
            lambda s, x: s.c(torch.cat([s.n(s.a(x)).relu(), s.b(x).tanh() + s.b(x).sigmoid(), x.abs()], 1)).relu(),
            a=nn.Linear(4, 3),
            b=nn.Linear(4, 2),
            c=nn.Linear(9, 3),
            n=nn.LayerNorm(3),
        ),
        seed,
    )
    upper = upper_of(program_of(model, points(2, 4)))
    worst = max(jacobian_norm(model, points(1, 4, seed=i) * 10.0**e) for i in range(4) for e in range(-4, 3))
    assert 0 < worst <= upper


def _composition(program: Program, **settings: object) -> Composition:
    return Composition(program, Domain("test", **settings), SegmentNorms())  # type: ignore[arg-type]


def test_floors_enter_at_their_normalizer() -> None:
    """``1/sqrt(s^2 + eps)`` instead of ``1/sqrt(eps)``, per normalizer, and zero where none is given."""
    model = seeded(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4, bias=False), nn.LayerNorm(4)))
    for layer in (model[0], model[2]):
        nn.init.ones_(layer.weight)
    program = program_of(model, points(2, 4))
    first, second = (s.node for s in program.sites)
    centre = torch.eye(4).double() - 0.25
    inner = spectral_norm(centre @ model[1].weight.detach() @ centre)
    both = _composition(program, floors={first: 0.5, second: 2.0}).total()[0]
    assert math.exp(both) == pytest.approx(inner / math.sqrt(0.25 + 1e-5) / math.sqrt(4 + 1e-5), rel=1e-9)
    one = _composition(program, floors={second: 2.0}).total()[0]
    assert math.exp(one) == pytest.approx(inner / math.sqrt(1e-5) / math.sqrt(4 + 1e-5), rel=1e-9)


def test_ranges_enter_where_a_slope_needs_them() -> None:
    """``x^2`` has no constant on all inputs, and 2 max|x| on a range."""
    model = Lambda(lambda s, x: x * x, p=nn.Parameter(torch.ones(1))).double()
    program = program_of(model, points(2, 3))
    assert _composition(program).total()[0] == math.inf
    inside = _composition(program, ranges=(Range(-1.0, 3.0),)).total()[0]
    assert math.exp(inside) == pytest.approx(6.0, rel=1e-9)


def test_a_network_without_outputs_that_depend_on_the_input_has_constant_zero() -> None:
    """Nothing that goes in comes out."""
    model = Lambda(lambda s, x: s.p + 0 * s.p, p=nn.Parameter(torch.ones(3))).double()
    assert _composition(program_of(model, points(2, 3))).total() == (-math.inf, -math.inf, 0.0)
    lips = _composition(program_of(model, points(2, 3))).run()
    assert lips.certified == (-math.inf,)


def test_an_opaque_operation_makes_the_bound_infinite_and_a_dead_one_does_not() -> None:
    """Rounding on the path to the output has no constant; beside it, it does not matter."""
    broken = Lambda(lambda s, x: x.round() + x, p=nn.Parameter(torch.ones(1))).double()
    assert _composition(program_of(broken, points(2, 3))).total()[0] == math.inf
    beside = Lambda(lambda s, x: x.round() * 0 + x, p=nn.Parameter(torch.ones(1))).double()
    assert upper_of(program_of(beside, points(2, 3))) == pytest.approx(1.0, rel=1e-12)


def test_deep_networks_do_not_recurse() -> None:
    """The depth of the network is not the depth of a call: a hundred residual blocks in fewer frames than that."""
    model = Lambda(lambda s, x: _residual(s, x, 100), a=nn.Linear(2, 2), n=nn.LayerNorm(2))
    composition = _composition(program_of(seeded(model), points(2, 2)))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 90)
    try:
        certified = composition.total()[0]
    finally:
        sys.setrecursionlimit(limit)
    assert math.isfinite(certified)


def _residual(s: Lambda, x: torch.Tensor, depth: int) -> torch.Tensor:
    for _ in range(depth):
        x = x + s.a(s.n(x)).relu()
    return x
