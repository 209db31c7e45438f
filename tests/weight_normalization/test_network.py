"""The network of the paper."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.core.errors import InputError
from normscope.weight_normalization.network import WeightNormNetwork, uniform_


def test_it_computes_the_formula_of_the_paper() -> None:
    net = WeightNormNetwork(3, width=5, depth=2, outputs=2, seed=0).double()
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    h = x
    for layer in net.hidden:
        v = layer.weight.detach()
        h = torch.tanh(h @ (v / v.norm(dim=1, keepdim=True)).T / math.sqrt(5))
    assert torch.allclose(net(x), h @ net[-1].weight.T)


def test_the_length_of_weight_vectors_does_not_matter_and_seeds_repeat() -> None:
    nets = [WeightNormNetwork(3, width=5, depth=2, seed=7) for _ in range(2)]
    x = torch.ones(1, 3)
    assert torch.equal(nets[0](x), nets[1](x))
    with torch.no_grad():
        nets[1].hidden[0].weight *= 8.0
    assert torch.allclose(nets[0](x), nets[1](x))
    wide = WeightNormNetwork(3, width=5, depth=2)
    uniform_(wide, torch.Generator().manual_seed(0), scale=3.0)
    assert wide.hidden[0].weight.abs().max() <= 3.0 / math.sqrt(3) + 1e-6


def test_bad_sizes_and_activations_are_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        WeightNormNetwork(3, width=0, depth=1)
    with pytest.raises(InputError, match="Unknown activation 'sine'"):
        WeightNormNetwork(3, width=2, depth=1, activation="sine")
