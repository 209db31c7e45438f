"""The papers' network against the product of its matrices written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from normscope.zoo.networks.mlp import MLP, mlp, relu10


def test_relu10_is_ten_linear_layers_with_relu_between() -> None:
    """A numpy loop with the same weights gives the same numbers."""
    torch.manual_seed(0)
    model = relu10(width=16, in_features=64).double()
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in layers] == [16] * 9 + [10]
    x = torch.randn(5, 1, 8, 8, dtype=torch.float64)
    h = x.reshape(5, 64).numpy()
    for index, layer in enumerate(layers):
        h = h @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        if index < 9:
            h = np.maximum(h, 0)
    np.testing.assert_allclose(model(x).detach().numpy(), h, rtol=1e-12)


def test_default_relu10_has_the_papers_sizes() -> None:
    """3072 inputs, nine times 512, ten outputs."""
    with torch.device("meta"):
        model = relu10()
    expected = 3072 * 512 + 8 * 512 * 512 + 512 * 10 + 9 * 512 + 10
    assert sum(p.numel() for p in model.parameters()) == expected
    assert model.input_shape == (3, 32, 32)


def test_normalizer_stands_between_linear_and_relu() -> None:
    """Each hidden block is linear, BatchNorm, ReLU; the last layer is bare."""
    model = relu10(norm="bn", width=4, in_features=8)
    kinds = [[type(layer) for layer in block] for block in model.hidden]
    assert kinds == [[nn.Linear, nn.BatchNorm1d, nn.ReLU]] * 9
    assert type(model.head) is nn.Linear


def test_sizes_follow_the_arguments() -> None:
    """Depth one is a single linear layer; shapes of known data sets are images."""
    assert len(relu10(depth=1, in_features=7).hidden) == 0
    assert relu10(depth=1, in_features=7).input_shape == (7,)
    assert mlp(hidden=()).input_shape == (1, 28, 28)
    assert all(p.dim() == 2 for p in mlp(bias=False).parameters())


def test_senseless_sizes_are_refused() -> None:
    """There must be an input and an output."""
    with pytest.raises(ValueError, match="Expected depth >= 1"):
        relu10(depth=0)
    with pytest.raises(ValueError, match="input and output"):
        MLP([3])
