"""What the bounds know of a network: constants and gradients against Jacobians."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from normscope.analysis.bounds.measured_network import MeasuredNetwork, gradient_norms, layer_margins
from normscope.analysis.bounds.scores import scored

from .conftest import captured_of


def _quiet(text: str) -> None:
    pass


def test_constant_and_gradients(trained: Any) -> None:
    """The certified constant exceeds every Jacobian; gradients of margins are those of autograd."""
    model, (x, y), _ = trained
    captured = captured_of(model, 4, 2)
    network, train = MeasuredNetwork(captured, _quiet), scored(captured, (x, y), "train", None, 0, _quiet)
    jacobians = torch.stack([torch.autograd.functional.jacobian(lambda z: model(z[None])[0], p) for p in x[:20]])
    assert network.constant.value >= float(torch.linalg.matrix_norm(jacobians, 2).max())
    margins, slopes = gradient_norms(network, train)
    for i in range(5):
        z = train.some[i].clone().requires_grad_(True)
        out = model(z[None])[0]
        label = int(train.labels[train.chosen[i]])
        (g,) = torch.autograd.grad(out[label] - out[1 - label], z)
        assert float(slopes[i]) == pytest.approx(float(g.norm()), rel=1e-4)
        assert float(margins[i]) == pytest.approx(float((out[label] - out[1 - label]).detach()), rel=1e-4, abs=1e-4)
    assert network.parameters == sum(t.numel() for t in model.state_dict().values() if t.is_floating_point())


def test_norms_of_inputs(trained: Any) -> None:
    """With a constant ``sqrt(n)`` beside each input, since there are biases."""
    model, (x, y), _ = trained
    captured = captured_of(model, 4, 2)
    network, train = MeasuredNetwork(captured, _quiet), scored(captured, (x, y), "train", None, 0, _quiet)
    assert network.inputs_norm(train) == pytest.approx(math.sqrt(float(x.double().square().sum()) + 800 * 2))
    box = (torch.tensor([0.0, -3.0]), torch.tensor([1.0, 2.0]))
    assert network.radius(box) == pytest.approx(math.sqrt(1 + 9 + 2))


def test_margins_in_layers(trained: Any) -> None:
    """By hand in the last hidden layer, where the scores are linear; rescaling between layers changes nothing."""
    model, (x, y), _ = trained
    captured = captured_of(model, 4, 2)
    train = scored(captured, (x, y), "train", None, 0, _quiet)
    found = layer_margins(MeasuredNetwork(captured, _quiet), train)
    assert list(found) == ["input", "2", "4"]
    features = model[:5](train.some[:64]).detach().double()
    apart = (model[5].weight[0] - model[5].weight[1]).detach().double()
    labels = train.labels[train.chosen[:64]]
    scores = model[5](features.float()).detach().double()
    margin = torch.where(labels == 0, 1.0, -1.0) * (scores[:, 0] - scores[:, 1])
    expected = margin / (apart.norm() * features.var(0).sum().sqrt())
    assert torch.allclose(found["4"], expected, rtol=1e-3, atol=1e-4)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[3].weight *= 7
        twin[3].bias *= 7
        twin[5].weight /= 7
    again = layer_margins(MeasuredNetwork(captured_of(twin, 4, 2), _quiet), train)
    assert all(torch.allclose(found[k], again[k], rtol=1e-2, atol=1e-3) for k in found)
