"""Bounds of a weight-normalized predictor against dense float64 derivatives, and cases that come close."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.weight_normalization.chain import in_float64, read_chain
from normscope.weight_normalization.derivative_bounds import (
    activation_norm_bounds,
    activation_norms_nearby,
    gradient_bound,
    hessian_bound,
    hessian_bound_closed,
    lipschitz_bound,
    paper_layer,
)
from normscope.weight_normalization.measure import (
    activation_norms,
    input_jacobian_norm,
    parameter_jacobian_norm,
    prediction_hessian_norm,
)
from normscope.weight_normalization.network import WeightNormNetwork, uniform_


def _random_network(seed: int) -> tuple[nn.Module, torch.Tensor]:
    """Return a network in the paper's form of a random shape, and inputs."""
    draw = torch.Generator().manual_seed(seed)
    width, depth = int(torch.randint(2, 9, (), generator=draw)), int(torch.randint(1, 9, (), generator=draw))
    activation = ("tanh", "identity", "sigmoid", "softplus", "gelu", "elu")[seed % 6]
    net = WeightNormNetwork(3, width=width, depth=depth, outputs=1 + seed % 2, activation=activation).double()
    uniform_(net, draw, scale=float(2.0 ** torch.randint(-2, 3, (), generator=draw)))
    return net, 2.0 * torch.randn(4, 3, generator=draw, dtype=torch.float64)


def _with_gains(seed: int) -> tuple[nn.Module, torch.Tensor]:
    """Return a network of PyTorch's weight normalization with gains and biases, and inputs."""
    torch.manual_seed(seed)
    norm = torch.nn.utils.parametrizations.weight_norm
    layers: list[nn.Module] = []
    for k in range(1 + seed % 3):
        layers += [norm(nn.Linear(3 if k == 0 else 5, 5, bias=seed % 2 == 0)), nn.Tanh()]
    net = nn.Sequential(*layers, nn.Linear(5, 1 + seed % 2)).double()
    return net, torch.randn(3, 3, dtype=torch.float64)


def _convolution(seed: int) -> tuple[nn.Module, torch.Tensor]:
    """Return a small convolutional network with weight normalization, and images."""
    torch.manual_seed(seed)
    norm = torch.nn.utils.parametrizations.weight_norm
    first = norm(nn.Conv2d(1, 2, 3, padding=1, stride=1 + seed % 2))
    size = 2 * (4 // (1 + seed % 2)) ** 2
    net = nn.Sequential(first, nn.Tanh(), nn.Flatten(), norm(nn.Linear(size, 3)), nn.GELU(), nn.Linear(3, 1)).double()
    return net, torch.randn(2, 1, 4, 4, dtype=torch.float64)


CASES = [*((_random_network, seed) for seed in range(36)), *((_with_gains, s) for s in range(12)),
         *((_convolution, s) for s in range(4))]  # fmt: skip


@pytest.mark.turns(2)
def test_every_bound_holds_against_dense_derivatives_on_fifty_networks() -> None:
    for build, seed in CASES:
        net, inputs = build(seed)
        chain, plain = read_chain(net, inputs), in_float64(net)
        layers, rho = chain.constants(), chain.output_norm()
        norms = activation_norms(chain, plain, inputs)
        worst = activation_norm_bounds(layers, norms[0])
        assert all(m <= b * (1 + 1e-12) for m, b in zip(norms, worst, strict=True)), (build, seed)
        x = inputs[0]
        sizes = activation_norms(chain, plain, x[None])
        lip = lipschitz_bound(layers, rho)
        assert input_jacobian_norm(plain, x) <= lip, (build, seed)
        gradient = gradient_bound(layers, rho, sizes, output_bias=chain.output_bias)
        assert parameter_jacobian_norm(plain, x) <= gradient, (build, seed)
        assert gradient <= gradient_bound(layers, rho, worst, output_bias=chain.output_bias) * (1 + 1e-12)
        hessian = hessian_bound(layers, rho, sizes)
        for output in range(len(chain.output)):
            assert prediction_hessian_norm(plain, x, output) <= hessian, (build, seed)
        if chain.paper_form:
            closed = hessian_bound_closed(
                chain.depth, len(chain.layers[0].gains), chain.least_norm, rho, norms[0], layers[0].curvature
            )
            assert hessian_bound(layers, rho, worst) <= closed * (1 + 1e-9), (build, seed)


def test_activations_nearby_stay_below_their_bound() -> None:
    """Steep activations included: the farthest found by ascent within the distance, on paper networks and others."""
    steep = nn.Sequential(
        torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 5, bias=False)), nn.ELU(2.0),
        torch.nn.utils.parametrizations.weight_norm(nn.Linear(5, 5, bias=False)), nn.ELU(2.0), nn.Linear(5, 1),
    ).double()  # fmt: skip
    for net in (steep, WeightNormNetwork(3, width=4, depth=2, activation="gelu", seed=1).double()):
        x = torch.randn(1, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        chain = read_chain(net, x)
        sizes = activation_norms(chain, in_float64(net), x)
        moved = 1e-3
        bounds = activation_norms_nearby(chain.constants(), sizes, moved)
        hidden = nn.Sequential(*list(net)[:-1])
        slopes = torch.autograd.grad(hidden(x).norm(), list(hidden.parameters()))
        length = math.sqrt(sum(float(s.square().sum()) for s in slopes))
        with torch.no_grad():
            for weight, slope in zip(hidden.parameters(), slopes, strict=True):
                weight.add_(slope, alpha=moved / length)
            assert sizes[-1] < float(hidden(x).norm()) <= bounds[-1]
        assert bounds[-1] < sizes[-1] + 40 * moved


def test_bounds_come_close_to_what_is_attained() -> None:
    # one hidden unit, identity: f = a x.v/||v||; every factor is attained when x is along v
    net = WeightNormNetwork(2, width=1, depth=1, activation="identity").double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[0.5, 0.0]]))
        net[2].weight.copy_(torch.tensor([[3.0]]))
    along, across = torch.tensor([2.0, 0.0]).double(), torch.tensor([0.0, 2.0]).double()
    chain = read_chain(net, along[None])
    layers, rho = chain.constants(), chain.output_norm()
    assert input_jacobian_norm(net, along) == pytest.approx(lipschitz_bound(layers, rho), rel=1e-9)
    # across: df/dv = 3 * 2/0.5 and the output layer sees 0
    bound = gradient_bound(layers, rho, activation_norms(chain, net, across[None]))
    assert parameter_jacobian_norm(net, across) == pytest.approx(bound, rel=1e-9)
    hessian = hessian_bound(layers, rho, activation_norm_bounds(layers, 2.0))
    measured = max(
        prediction_hessian_norm(net, 2.0 * torch.tensor([math.cos(t), math.sin(t)]).double())
        for t in torch.linspace(0, math.pi, 41).tolist()
    )
    assert measured <= hessian <= 1.5 * measured


def test_depth_costs_no_exponential_and_width_lowers_the_hessian() -> None:
    def bound(depth: int, width: int) -> float:
        layers = [paper_layer(width, 1.0, curvature=0.77)] * depth
        return hessian_bound(layers, 1.0, [1.0] * (depth + 1))

    assert bound(64, 64) <= 64**2 * bound(1, 64)
    assert bound(8, 1024) < bound(8, 64) / 3


def test_what_the_theory_does_not_cover() -> None:
    assert hessian_bound([paper_layer(4, 1.0)], 1.0, [1.0, 1.0]) == math.inf
    with pytest.raises(InputError, match="nonzero"):
        paper_layer(4, 0.0)
    with pytest.raises(InputError, match="finite bound"):
        activation_norm_bounds([], math.inf)


@pytest.mark.slow
def test_bounds_hold_on_a_network_of_a_million_parameters() -> None:
    net = WeightNormNetwork(784, width=640, depth=2, seed=0).double()
    assert sum(p.numel() for p in net.parameters()) > 900_000
    x = torch.nn.functional.normalize(torch.randn(784, generator=torch.Generator().manual_seed(0)).double(), dim=0)
    chain = read_chain(net, x[None])
    layers, rho, sizes = chain.constants(), chain.output_norm(), activation_norms(chain, net, x[None])
    measured = prediction_hessian_norm(net, x)
    assert 0 < measured <= hessian_bound(layers, rho, sizes) <= 20 * measured
    assert parameter_jacobian_norm(net, x) <= gradient_bound(layers, rho, sizes)


def test_the_closed_hessian_bound_is_the_printed_formula() -> None:
    """In every argument: depth, width, norms, curvature."""
    for depth, width, w, rho, a, b in (
        (1, 1, 1.0, 1.0, 1.0, 0.0),
        (3, 4, 0.5, 2.0, 3.0, 0.7),
        (5, 9, 2.0, 0.1, 0.3, 1.3),
    ):
        square = width * w**2
        inside = 2 / math.sqrt(3) * a / (math.sqrt(width) * w**2) + 2 * a * depth / square
        inside += b * a**2 * depth * (depth + 1) / (2 * square)
        truth = rho * inside + 2 * a * math.sqrt(depth) / (math.sqrt(width) * w)
        assert hessian_bound_closed(depth, width, w, rho, a, b) == pytest.approx(truth, rel=1e-12)
