"""Gradients layer by layer: explosion and vanishing of what is passed back, against differentiation."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.core.errors import InputError
from normscope.papers.than2025.extremal import gradients, l1_loss, theorem_6


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
