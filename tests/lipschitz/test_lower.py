"""Attained values: Jacobian products against dense autograd, pairs that are really that far apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, LambdaOfTwo, captured_of, jacobian, points, seeded, spectral_norm
from normscope.lipschitz.lower import (
    AT_ONCE,
    EndToEnd,
    ascend,
    attained_at,
    attained_by_pair,
    euclidean,
    gradients,
    jacobian_map,
    jacobian_norm,
    rows_at_once,
)
from normscope.operators.program import build_program

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "smooth": lambda x: torch.stack([x[0] * x[1], x[2].exp(), (x * x).sum()]),
    "relu": lambda x: torch.relu(x - 0.1) * 3,
    "wide": lambda x: torch.outer(x, x).flatten(),
    "narrow": lambda x: x.square().sum().reshape(1),
    "sort": lambda x: x.sort().values.cumsum(0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_with_the_jacobian(name: str) -> None:
    """``J v`` and ``J^T u`` from one recorded pass, against the dense Jacobian."""
    function, x = FUNCTIONS[name], points(4)
    dense = torch.autograd.functional.jacobian(function, x).reshape(-1, 4)
    map = jacobian_map(function, x)
    v, u = points(4, seed=1), points(dense.shape[0], seed=2)
    assert torch.allclose(map.apply(v).flatten(), dense @ v, rtol=1e-12)
    assert torch.allclose(map.adjoint(u.reshape(map.range_shape)), dense.T @ u, rtol=1e-12)
    value, direction = jacobian_norm(function, x)
    truth = spectral_norm(dense)
    assert value <= truth * (1 + 1e-12)
    assert value == pytest.approx(truth, rel=1e-6)
    assert float((dense @ direction).norm()) == pytest.approx(truth, rel=1e-6)
    assert float(direction.norm()) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("at_once", [1, 2, 100])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_several_outputs(name: str, at_once: int) -> None:
    """All rows of the Jacobian, some of them in one backward pass."""
    x = points(4).requires_grad_(True)
    y = FUNCTIONS[name](x)
    dense = torch.autograd.functional.jacobian(FUNCTIONS[name], x.detach())
    found = gradients(y, x, torch.eye(len(y), dtype=torch.float64), at_once)
    assert torch.allclose(found, dense, rtol=1e-12)
    assert not found.requires_grad


def test_gradients_that_torch_cannot_compute_at_once_are_computed_one_by_one() -> None:
    """A derivative that looks at its entries; an input that is not used has derivative zero."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, *gradient: Tensor) -> Tensor:
            return gradient[0] * (2 if float(gradient[0].abs().max()) > 0 else 0)

    x, other = points(3).requires_grad_(True), points(2).requires_grad_(True)
    y = Twice.apply(x)
    assert torch.equal(gradients(y, x, torch.eye(3).double(), 3), 2 * torch.eye(3).double())
    assert torch.equal(gradients(y, other, torch.eye(3).double(), 3), torch.zeros(3, 2).double())


def test_wide_values_allow_fewer_rows_at_once() -> None:
    """The widest value of the network, for all samples, counts."""
    graph = captured_of(seeded(nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))), points(3, 4)).graph
    assert rows_at_once(graph, 1) == AT_ONCE // 64
    assert rows_at_once(graph, 16) == AT_ONCE // 1024
    assert rows_at_once(graph, AT_ONCE) == 1


def test_a_function_that_ignores_its_input_has_jacobian_zero() -> None:
    """Constants, with and without a graph, and a part of the input that is unused."""
    x = points(3)
    assert jacobian_norm(lambda x: torch.ones(2).double(), x)[0] == 0.0
    assert jacobian_norm(lambda x: x.detach() * 2, x)[0] == 0.0
    assert jacobian_norm(lambda x: 0 * x, x)[0] == 0.0
    assert jacobian_norm(lambda x: 5 * x[:1], x)[0] == pytest.approx(5.0, rel=1e-9)


@pytest.mark.parametrize("size", [1e-290, 1e-200, 1e-30, 1.0, 1e30, 1e200, 1e290])
def test_sizes_whose_squares_leave_the_float_range(size: float) -> None:
    """Only the Jacobian itself must fit into a float."""
    value, direction = jacobian_norm(lambda x: x * torch.tensor([1.0, 3.0, 2.0]).double() * size, points(3))
    assert value == pytest.approx(3 * size, rel=1e-6)
    assert abs(float(direction[1])) == pytest.approx(1.0, rel=1e-6)


def test_values_that_are_no_numbers() -> None:
    """A NaN Jacobian attains nothing, and no vector is invented."""
    value, _ = jacobian_norm(lambda x: (x - x).sqrt(), points(3))
    assert math.isnan(value) or value == math.inf


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_euclidean_norm_at_any_size(size: float) -> None:
    """Three and four make five."""
    assert euclidean(torch.tensor([3.0, -4.0]).double() * size) == pytest.approx(5 * size, rel=1e-12)
    assert euclidean(torch.zeros(3)) == 0.0
    assert euclidean(torch.zeros(0)) == 0.0


def test_pairs() -> None:
    """The quotient of a pair is what it says, and never above the constant of the function."""
    x, d = points(4), points(4, seed=1)
    exact = float((torch.sin(x + d) - torch.sin(x)).norm() / d.norm())
    assert exact * (1 - 1e-8) < attained_by_pair(torch.sin, x, d) < exact <= 1.0
    assert attained_by_pair(torch.sin, x, torch.zeros(4)) == 0.0


def test_ascent_finds_the_steepest_place() -> None:
    """Sin is flat where it starts and has slope one elsewhere: the pair climbs, and stays a pair of that function."""
    start = torch.full((3,), 1.2, dtype=torch.float64)
    direction = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    first = attained_by_pair(torch.sin, start, 1e-3 * direction)
    point, step = ascend(torch.sin, start, direction, 60)
    climbed = attained_by_pair(torch.sin, point, step)
    assert first < 0.4
    assert 0.8 < climbed <= 1.0


def test_ascent_stops_where_nothing_is_a_number() -> None:
    start, direction = torch.full((2,), 0.5).double(), torch.tensor([1.0, 0.0]).double()
    point, step = ascend(lambda x: x * math.nan, start, direction, 5)
    assert torch.equal(point, start)
    assert float(step.norm()) > 0


def _end_to_end(model: nn.Module, *inputs: Tensor) -> EndToEnd:
    captured = captured_of(model, *(torch.cat([t, t]) for t in inputs))
    program = build_program(captured.graph, captured.tensors, captured.at_batch(1))
    return EndToEnd(captured, program, list(inputs))


def test_the_network_as_a_function_of_its_blocks() -> None:
    """Two inputs become one vector, two outputs another; Jacobian against autograd."""
    model = seeded(
        LambdaOfTwo(lambda s, x, y: (s.a(x) * y.tanh(), x.argmax(-1), s.b(y)), a=nn.Linear(3, 2), b=nn.Linear(2, 2))
    )
    x, y = points(1, 3), points(1, 2, seed=1)
    function = _end_to_end(model, x, y)
    assert torch.equal(function.point(), torch.cat([x.flatten(), y.flatten()]))
    dense = torch.autograd.functional.jacobian(function, function.point())
    assert torch.allclose(dense, jacobian(model, x, y), rtol=1e-10)


def test_token_models_start_at_their_embedding() -> None:
    """The block is the embedding's output; tokens are held fixed."""
    model = seeded(nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2)))
    tokens = torch.tensor([[1, 4]])
    function = _end_to_end(model, tokens)
    assert torch.equal(function.point(), model[0](tokens).detach().flatten())
    dense = torch.autograd.functional.jacobian(function, function.point())
    assert torch.allclose(dense, model[2].weight.detach(), rtol=1e-12)


def test_low_precision_networks_are_run_in_float64() -> None:
    """What is attained is attained by the network in exact arithmetic."""
    model = nn.Sequential(nn.Linear(3, 3), nn.RMSNorm(3)).bfloat16()
    x = points(1, 3).bfloat16()
    function = _end_to_end(model, x)
    wide = Lambda(
        lambda s, v: nn.functional.rms_norm(s.a(v), [3], s.w, 2.0**-23), a=model[0].double(), w=model[1].weight.double()
    )
    expected = jacobian(wide, x.double())
    dense = torch.autograd.functional.jacobian(function, function.point())
    assert torch.allclose(dense, expected, rtol=1e-9)


@pytest.mark.parametrize("size", [1.0, 1e8, 1e12, 1e15])
@pytest.mark.parametrize("function", ["Jacobian", "pair"])
def test_rounding_is_not_attained(size: float, function: str) -> None:
    """``size x - (size - 1) x`` is x, and computed it is not: what is called attained stays below one."""

    def cancelling(x: Tensor) -> Tensor:
        return x * size - x * (size - 1)

    for seed in range(6):
        x, d = points(4, seed=seed), points(4, seed=100 + seed)
        if function == "Jacobian":
            value = attained_at(cancelling, x, d)
        else:
            value = max(attained_by_pair(cancelling, x, d * step) for step in (1.0, 1e-3, 1e-6))
        assert value <= 1.0
        assert value >= 1 - 1e-6 or size > 1e4


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e9, 1e11])
def test_a_mean_far_above_its_spread_is_not_attained_either(offset: float) -> None:
    """LayerNorm at data far from zero: never above the constant at the spread the data has, in exact numbers."""
    for seed in range(4):
        x = (points(5, seed=seed) + offset).detach()
        exact = [Fraction(v) for v in x.tolist()]
        mean = sum(exact) / 5
        variance = sum((v - mean) ** 2 for v in exact) / 5
        bound = 1 / math.sqrt(float(variance + Fraction(1e-5)))
        value = attained_at(lambda z: nn.functional.layer_norm(z, (5,)), x, points(5, seed=9))
        assert value <= bound * (1 + 1e-14)


def test_a_gradient_that_is_none_is_not_attained() -> None:
    """Quotients of differences count where torch's gradient is larger."""
    one = torch.ones(3, dtype=torch.float64)
    assert 0.999 < attained_at(lambda x: 4 * x - (3 * x).detach(), one, one) <= 1.0


def test_beside_an_edge_the_flatter_side_counts() -> None:
    """Within the last bits of a kink both slopes are attained: the smaller one is reported, no noise is seen."""
    x = torch.tensor([1.0, 1.0]).double()
    value = attained_at(lambda z: torch.relu(z - 1.0) + z, x, torch.tensor([1.0, 1.0]).double())
    assert 0.99 <= value <= 2.0


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
def test_ascent_works_wherever_the_caller_stands(context: Callable[[], torch.no_grad]) -> None:
    """Gradients are its own business."""
    start, direction = torch.full((1,), 0.3).double(), torch.ones(1).double()
    with context():
        point, step = ascend(torch.sin, start, direction, 60)
    assert attained_by_pair(torch.sin, point, step) > 0.999
