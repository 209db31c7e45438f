"""Gradients layer by layer: explosion and vanishing of what is passed back, against differentiation."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.papers.than2025.extremal import gradients, theorem_6


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
