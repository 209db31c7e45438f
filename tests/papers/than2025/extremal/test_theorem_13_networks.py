"""Theorem 13: the constant in a weight is that of differentiation; the printed one drops entries it must keep."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from normscope.core.errors import InputError
from normscope.core.value import Kind
from normscope.papers.than2025.extremal import Extremal, gradients, l1_loss, theorem_6, theorem_13, theorem_13_printed
from normscope.papers.than2025.extremal.theorem_13_networks import parts, total_input


def weight_jacobian(module: nn.Module, layer: int, x: Tensor) -> Tensor:
    """Return the matrix of the derivative of the output with respect to the weight of a layer."""
    name = f"{2 * (layer - 1)}.weight"
    weight = dict(module.named_parameters())[name].detach()
    jacobian = torch.autograd.functional.jacobian(lambda w: functional_call(module, {name: w}, (x,)), weight)
    return jacobian.reshape(jacobian.shape[0], -1)


def _norm(net: Extremal) -> float:
    assert net.layer is not None
    return float(torch.linalg.matrix_norm(weight_jacobian(net.module, net.layer, net.point), 2))


def test_the_counter_example_of_equation_8() -> None:
    """Widths 3-2-1, ``a = 5``, ``h = (0, 0, 1)``: five, and zero is printed."""
    net = theorem_13([3, 2, 1], [1.0, 5.0], 1, torch.tensor([0.0, 0.0, 1.0]))
    assert _norm(net) == pytest.approx(5.0, rel=1e-14)
    assert net.attained.value <= 5.0 <= net.constant.value
    assert net.printed is not None
    assert (net.printed.value, net.printed.kind) == (0.0, Kind.PRINTED)


@pytest.mark.parametrize("widths", [[3, 2, 1], [4, 5, 3, 6], [2, 2, 2, 2, 2], [6, 3, 4, 1, 5]], ids=str)
def test_constants_are_those_of_differentiation(widths: list[int]) -> None:
    """For every layer, with scales of their own and a random positive input; and along the direction given."""
    depth = len(widths) - 1
    scales = [1.5, 0.25, 4.0, 3.0][:depth]
    x = torch.randn(widths[0], generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    x[0] = 0.5  # the others have any sign: the first layer sees them all, later ones those that ReLU leaves
    for layer in range(1, depth + 1):
        net = theorem_13(widths, scales, layer, x)
        assert _norm(net) == pytest.approx(net.constant.value, rel=1e-12)
        assert net.attained.value <= net.constant.value
        moved = weight_jacobian(net.module, layer, x) @ net.direction.reshape(-1)
        assert float(torch.linalg.vector_norm(net.direction)) == pytest.approx(1.0, rel=1e-14)
        assert float(torch.linalg.vector_norm(moved)) == pytest.approx(net.constant.value, rel=1e-12)
        printed = theorem_13_printed(parts(widths, scales, layer, x, torch.float64))
        assert printed.log <= net.constant.log + 1e-12  # a cut never adds


@pytest.mark.parametrize("layer", [1, 2])
def test_no_other_weight_gives_more(layer: int) -> None:
    """Difference quotients over random pairs of weights stay below the constant."""
    widths, scales = [3, 4, 2, 5], [2.0, 3.0, 0.5]
    x = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    net = theorem_13(widths, scales, layer, x)
    name, source = f"{2 * (layer - 1)}.weight", torch.Generator().manual_seed(1)
    best = 0.0
    for _ in range(300):
        a, b = (torch.randn(widths[layer], widths[layer - 1], generator=source, dtype=torch.float64) for _ in range(2))
        out = [functional_call(net.module, {name: w}, (x,)).detach() for w in (a, a + 0.1 * b)]
        step = float(torch.linalg.vector_norm(0.1 * b))
        best = max(best, float(torch.linalg.vector_norm(out[0] - out[1])) / step)
    assert 0.3 * net.constant.value < best <= net.constant.value * (1 + 1e-12)


def test_total_inputs() -> None:
    """Equation (9): the derivative of the rest of the network."""
    here = parts([3, 4, 2, 5], [2.0, 3.0, 0.5], 1, None, torch.float64)
    high, low = total_input(here)
    rest = theorem_13([3, 4, 2, 5], [2.0, 3.0, 0.5]).module[1:]  # type: ignore[index]
    jacobian = torch.autograd.functional.jacobian(rest, torch.ones(4, dtype=torch.float64))
    assert float(torch.linalg.matrix_norm(jacobian, 2)) == pytest.approx(1.5, rel=1e-14)
    assert low.value <= 1.5 <= high.value


def test_past_the_range_of_floats() -> None:
    """Depth 1200: a logarithm."""
    net = theorem_13([2] * 1201, 3.0, 600)
    assert net.constant.log == pytest.approx(1199 * math.log(3), rel=1e-12)
    assert net.printed is not None
    assert net.printed.log == pytest.approx(net.constant.log, rel=1e-12)


@pytest.mark.parametrize("layer", [0, 3, True, 1.0])
def test_wrong_layers(layer: int) -> None:
    """From one to the depth."""
    with pytest.raises(InputError, match="a layer from 1 to 2"):
        theorem_13([2, 2, 2], 1.0, layer)


def test_inputs_that_do_not_reach_the_layer() -> None:
    """All negative, or cut away, or multiplied by zero."""
    for widths, scales, x in (
        ([2, 2, 2], 1.0, [-1.0, -2.0]),
        ([2, 1, 2], 1.0, [0.0, 1.0]),
        ([2, 2, 2], [0.0, 1.0], [1.0, 1.0]),
    ):
        with pytest.raises(InputError, match="No signal reaches layer 2"):
            theorem_13(widths, scales, 2, torch.tensor(x))  # type: ignore[arg-type]


@pytest.mark.parametrize("scales", [[2.0] * 4, [0.5] * 4, [3.0, 0.1, 2.0, 5.0]], ids=str)
def test_against_differentiation(scales: list[float]) -> None:
    """The gradient of the first output with respect to every weight, and to every total input."""
    net = theorem_6([3] * 5, scales)
    out = net.point
    totals = []
    for module in net.module:  # type: ignore[union-attr]
        out = module(out)
        if isinstance(module, torch.nn.Linear):
            totals.append(out)
    weights = list(net.module.parameters())
    found = torch.autograd.grad(out[0], [*weights, *totals])
    for i, layer in enumerate(gradients([3] * 5, scales)):
        assert layer.layer == i + 1
        assert float(torch.linalg.vector_norm(found[i])) == pytest.approx(layer.weight.value, rel=1e-12)
        assert float(torch.linalg.vector_norm(found[4 + i])) == pytest.approx(layer.total_input.value, rel=1e-12)
        assert layer.signal.value * layer.total_input.value == pytest.approx(layer.weight.value, rel=1e-12)


def test_deep_networks_in_logarithms() -> None:
    """Fifteen hundred layers explode or vanish by 451 digits; weights of all layers are of one order."""
    for scale in (2.0, 0.5):
        layers = gradients([2] * 1501, scale)
        assert layers[0].total_input.log == pytest.approx(1499 * math.log(scale), rel=1e-9)
        assert layers[-1].total_input.value == 1.0
        assert {round(layer.weight.log10, 3) for layer in layers} == {round(1499 * math.log10(scale), 3)}


@pytest.mark.parametrize("layer", [1, 2, 3])
@pytest.mark.parametrize("widths", [[3, 4, 5, 6], [2, 3, 1, 4], [5, 5, 5, 5]], ids=str)
def test_gradient_of_the_loss(widths: list[int], layer: int) -> None:
    """``||dL/dW_i||_F`` is the constant, and its direction the one given."""
    x = torch.randn(widths[0], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    x[0] = 1.5
    net = l1_loss(widths, [1.5, 2.0, 3.0], layer, x)
    weight = dict(net.module.named_parameters())[f"{2 * (layer - 1)}.weight"]
    (gradient,) = torch.autograd.grad((net.module(x) + 1).abs().sum(), weight)
    assert float(torch.linalg.matrix_norm(gradient)) == pytest.approx(net.constant.value, rel=1e-12)
    assert float((gradient * net.direction).sum()) == pytest.approx(net.constant.value, rel=1e-12)
    rows = min(widths[layer:])
    assert net.printed is not None
    if min((*widths[:layer], *widths[layer + 1 :])) == min(widths[:layer]):  # nothing printed is cut
        assert net.constant.value == pytest.approx(rows**0.5 * net.printed.value, rel=1e-12)
    assert net.attained.value <= net.constant.value


def test_thirty_six_not_eighteen() -> None:
    """Widths 3-4-5-6, scales two and three, an input of norm three."""
    net = l1_loss([3, 4, 5, 6], [1.0, 2.0, 3.0], 1, torch.tensor([3.0, 0.0, 0.0]))
    assert net.printed is not None
    assert (net.constant.value, net.printed.value) == (pytest.approx(36.0, rel=1e-12), pytest.approx(18.0, rel=1e-12))


def test_zero_scales_are_refused() -> None:
    """After the layer nothing may vanish."""
    with pytest.raises(InputError, match="positive"):
        l1_loss([2, 2, 2], [1.0, 0.0])
