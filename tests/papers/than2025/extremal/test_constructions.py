"""What each construction shows is what the network it names does."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.papers.than2025.extremal.constructions import (
    BUILT,
    CONSTRUCTIONS,
    SAMPLED,
    ConstructionSettings,
    sampled,
    scaled_output,
)
from normscope.papers.than2025.extremal.theorem_6_networks import relu_network


def _scaled(width: int, scales: list[float]) -> nn.Sequential:
    """Return ReLU layers of scaled identities, in float64."""
    layers: list[nn.Module] = []
    for a in scales:
        layer = nn.Linear(width, width, bias=False, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(a * torch.eye(width, dtype=torch.float64))
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers)


def test_theorem_6_shows_what_is_passed_back() -> None:
    """The norm of the Jacobian from the total input of every layer on, by automatic differentiation."""
    depth, a = 5, 3.0
    shown = CONSTRUCTIONS["theorem-6"](ConstructionSettings((4,) * (depth + 1), a))
    assert shown.values["constant, a = 3"].value == pytest.approx(a**depth, rel=1e-12)
    assert shown.values["attained when run, a = 0.333333"].value == pytest.approx(a**-depth, rel=1e-12)
    for name, scale in (("a = 3", a), ("a = 0.333333", 1 / a)):
        net = _scaled(4, [scale] * depth)
        truth = []
        for i in range(depth):
            y = torch.eye(4, dtype=torch.float64)[0] * scale ** (i + 1)
            jacobian = torch.autograd.functional.jacobian(net[2 * i + 1 :], y)
            truth.append((float(i + 1), math.log10(float(torch.linalg.matrix_norm(jacobian, 2)))))
        for here, there in zip(shown.series[f"passed back, {name}"], truth, strict=True):
            assert here == pytest.approx(there, abs=1e-9)


def test_theorem_13_shows_the_constant_in_a_weight() -> None:
    """The scales after the layer times the norm of what reaches it; layers that nothing reaches have none."""
    settings = ConstructionSettings((2, 2, 2), 3.0, layer=2, point=(0.6, 0.8))
    shown = CONSTRUCTIONS["theorem-13"](settings)
    # ||h_1|| = a ||x|| reaches the last layer; after the first there is one scale, and ||x|| = 1 reaches it.
    assert shown.values["constant in the weight"].value == pytest.approx(3.0, rel=1e-9)
    assert shown.values["attained"].log <= shown.values["constant in the weight"].log
    assert [x for x, _ in shown.series["constant"]] == [1.0, 2.0]
    for _, log10 in shown.series["constant"]:
        assert 10**log10 == pytest.approx(3.0, rel=1e-9)
    negative = CONSTRUCTIONS["theorem-13"](ConstructionSettings((2, 2, 2), 3.0, point=(-0.6, -0.8)))
    assert [x for x, _ in negative.series["constant"]] == [1.0]


def test_theorem_15_shows_gradients_of_a_training_loss() -> None:
    """Automatic differentiation of the mean logistic loss of the same network on the same data."""
    width, depth, layer = 3, 4, 2
    shown = CONSTRUCTIONS["theorem-15"](ConstructionSettings((width,) * (depth + 1), 2.0, layer))
    inputs = torch.rand(8, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    for name, a in (("a = 2", 2.0), ("a = 0.5", 0.5)):
        for at, log10 in shown.series[f"gradient, {name}"]:
            i = int(at)
            net = _scaled(width, [1.0] * i + [a] * (depth - i))  # the weight of layer i itself is the identity
            loss = nn.functional.softplus(net(inputs).sum(1)).mean()
            (gradient,) = torch.autograd.grad(loss, net[2 * (i - 1)].weight)
            assert 10**log10 == pytest.approx(float(gradient.norm()), rel=1e-9)
        assert shown.values[f"gradient at layer 2, {name}"].log10 == dict(shown.series[f"gradient, {name}"])[2.0]
        assert shown.values[f"its factor c a^(K-i), {name}"].value == pytest.approx(a**2, rel=1e-12)


def test_layer_norms_multiply_the_constant() -> None:
    """A Jacobian near the bad point of one layer lies between the two numbers, which drift apart with depth."""
    eps = 1e-2
    shown = CONSTRUCTIONS["layernorm"](ConstructionSettings((6, 6, 6), eps=eps))
    below, above = shown.series["at least"], shown.series["at most"]
    assert [x for x, _ in below] == [1.0, 2.0]
    assert above[0][1] == pytest.approx(1.0, abs=1e-9)  # 1/sqrt(eps)
    net = nn.Sequential(nn.LayerNorm(6, eps=eps, elementwise_affine=False), nn.ReLU())
    point = 1e-7 * torch.tensor([1.0, *[-0.2] * 5], dtype=torch.float64)
    norm = torch.linalg.matrix_norm(torch.autograd.functional.jacobian(net, point), 2)
    assert 10 ** below[0][1] == pytest.approx(float(norm), rel=1e-6)
    assert below[1][1] < above[1][1]


@pytest.mark.parametrize("depth", [1, 5, SAMPLED, SAMPLED + 1, 1000, 10**7])
def test_layers_are_sampled_from_end_to_end(depth: int) -> None:
    """All of a few, some of many, and never more networks than are built in reasonable time."""
    found = sampled(depth)
    assert (found[0], found[-1]) == (1, depth)
    assert found == sorted(set(found))
    assert len(found) == depth if depth <= SAMPLED else len(found) <= SAMPLED
    assert len(found) <= max(4, BUILT // depth)
    gaps = [b - a for a, b in pairwise(found)]
    assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("theorem-6", ConstructionSettings((2, 2), 0.0), "Expected a scale"),
        ("theorem-15", ConstructionSettings((2, 2), math.inf), "Expected a scale"),
        ("theorem-15", ConstructionSettings((2, 2, 2), 2.0, 3), "a layer from 1 to 2"),
        ("theorem-13", ConstructionSettings((2, 2, 2), 2.0, 3), "a layer from 1 to 2"),
        ("layernorm", ConstructionSettings((2, 3)), "the same width"),
    ],
)
def test_what_cannot_be_built(name: str, settings: ConstructionSettings, said: str) -> None:
    """An error that says what holds."""
    with pytest.raises(InputError, match=said):
        CONSTRUCTIONS[name](settings)


def test_agrees_with_the_network_where_floats_hold() -> None:
    """Random weights, forty layers."""
    source = torch.Generator().manual_seed(3)
    weights = [torch.randn(6, 6, generator=source, dtype=torch.float64) for _ in range(40)]
    net, x = relu_network(weights), torch.randn(6, generator=source, dtype=torch.float64)
    with torch.no_grad():
        plain = net(x)
    unit, log = scaled_output(net, x)
    assert torch.allclose(unit * math.exp(log), plain, rtol=1e-10, atol=0.0)


def test_goes_on_where_floats_end() -> None:
    """Twelve hundred layers along an eigenvector: the eigenvalue to that power."""
    weight = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    largest = float(torch.linalg.eigvalsh(weight)[1])
    x = torch.linalg.eigh(weight)[1][:, 1].abs()
    assert scaled_output(relu_network([weight] * 1200), x).log == pytest.approx(1200 * math.log(largest), rel=1e-10)


def test_dead_networks_and_zero_inputs() -> None:
    """Minus infinity, and a zero vector."""
    dead = relu_network([-torch.ones(2, 2), torch.ones(2, 2)])
    for x in (torch.ones(2), torch.zeros(2)):
        unit, log = scaled_output(dead, x)
        assert log == -math.inf
        assert not unit.any()


def test_tiny_and_huge_inputs() -> None:
    """Squares of 1e-200 and 1e200 are no floats."""
    net = relu_network([torch.eye(2, dtype=torch.float64)])
    for size in (1e-200, 1e200):
        x = torch.tensor([3 * size, 4 * size], dtype=torch.float64)
        assert scaled_output(net, x).log == pytest.approx(math.log(5) + math.log(size), rel=1e-12)


@pytest.mark.parametrize("layer", [nn.Linear(2, 2), nn.Tanh(), nn.LayerNorm(2)], ids=lambda m: type(m).__name__)
def test_refuses_what_is_not_homogeneous(layer: nn.Module) -> None:
    """A bias, a saturating activation, a normalizer."""
    with pytest.raises(InputError, match=type(layer).__name__):
        scaled_output(nn.Sequential(layer), torch.ones(2))
