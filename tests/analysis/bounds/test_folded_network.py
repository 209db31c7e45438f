"""Folded networks: the path norm by matrices of absolute values, and noise whose divergence rescaling leaves alone."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from normscope.analysis.bounds.folded_network import LEVELS, FoldedNetwork, log_path_norm, noise_posterior
from normscope.analysis.bounds.result import RefusedError
from normscope.graph.interpreter import run

from .conftest import captured_of


def test_product_of_absolute_values() -> None:
    """Of an MLP, biases as paths from a constant."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    a, b, c, d = (p.detach().double().abs() for p in net.parameters())
    expected = (c @ (a @ torch.ones(3, dtype=torch.float64) + b) + d).sum()
    assert math.exp(log_path_norm(FoldedNetwork(captured_of(net, 2, 3)))) == pytest.approx(float(expected))


def test_folding_is_the_same_network(residual: Any) -> None:
    """And the path norm does not move when the weight before BatchNorm is rescaled with its statistics."""
    captured = captured_of(residual, 2, 1, 8, 8)
    tensors, statistics = FoldedNetwork(captured).tensors, FoldedNetwork(captured).constants
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        found = run(captured.graph, tensors, [x], dtype=torch.float64)[0]
        assert torch.allclose(found, residual.double()(x), atol=1e-9)
    assert {n.split(".")[-1] for n in statistics} == {"weight", "running_mean", "running_var"}
    assert all(float((tensors[n] - 1).abs().max()) == 0 for n in statistics if n.endswith("weight"))
    before = log_path_norm(FoldedNetwork(captured_of(residual.float(), 2, 1, 8, 8)))
    with torch.no_grad():
        residual.first.weight *= 1000
        residual.norm.running_mean *= 1000
        residual.norm.running_var.copy_((residual.norm.running_var + residual.norm.eps) * 1e6 - residual.norm.eps)
    assert log_path_norm(FoldedNetwork(captured_of(residual, 2, 1, 8, 8))) == pytest.approx(before, abs=1e-5)


@pytest.mark.parametrize("layer", [nn.Tanh(), nn.LayerNorm(4), nn.Softmax(1)])
def test_refused(layer: nn.Module) -> None:
    """No sums over paths."""
    with pytest.raises(RefusedError, match="sum over paths"):
        log_path_norm(FoldedNetwork(captured_of(nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2)), 2, 3)))


def test_batch_norm_without_scale() -> None:
    """It folds into the bias before it; without one there is nothing to fold into."""
    for bias in (True, False):
        net = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.BatchNorm1d(4, affine=False), nn.ReLU(), nn.Linear(4, 2))
        net[1].running_mean.uniform_()  # type: ignore[union-attr, operator]
        captured = captured_of(net, 2, 3)
        if not bias:
            with pytest.raises(RefusedError, match="BatchNorm"):
                FoldedNetwork(captured)
            continue
        x = torch.randn(2, 3, dtype=torch.float64)
        found = run(captured.graph, FoldedNetwork(captured).tensors, [x], dtype=torch.float64)[0]
        assert torch.allclose(found, net.double()(x), atol=1e-12)


class _Twice(nn.Module):
    """One layer and one BatchNorm, used twice; and a BatchNorm that follows no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.last = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return three numbers."""
        for _ in range(2):
            x = self.norm(self.layer(x)).relu()
        return self.last(x)


def test_what_is_shared_is_not_folded_twice() -> None:
    """Scale and shift stay with BatchNorm then, and the function is the same."""
    torch.manual_seed(0)
    net = _Twice().eval()
    for norm in (net.norm, net.last):
        nn.init.uniform_(norm.weight, 0.5, 2.0)
        norm.running_mean.uniform_()  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    captured = captured_of(net, 4, 3)
    tensors, constants = FoldedNetwork(captured).tensors, FoldedNetwork(captured).constants
    assert not any(n.endswith("weight") for n in constants)
    x = torch.randn(4, 3, dtype=torch.float64)
    found = run(captured.graph, tensors, [x], dtype=torch.float64)[0]
    assert torch.allclose(found, net.double()(x), atol=1e-12)


def test_posterior(trained: Any) -> None:
    """Deterministic by the seed; the noisy error is a share; a rescaled twin has the same divergence."""
    model, (x, y), _ = trained
    before = copy.deepcopy(model.state_dict())
    first = noise_posterior(FoldedNetwork(captured_of(model, 4, 2)), x, y, 0.0, 0)
    assert first == noise_posterior(FoldedNetwork(captured_of(model, 4, 2)), x, y, 0.0, 0)
    assert first.level in LEVELS
    assert 0 <= first.loss <= 1
    assert first.divergence > 0
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight *= 64
        twin[0].bias *= 64
        twin[1].running_mean *= 64
        twin[1].running_var.copy_((twin[1].running_var + twin[1].eps) * 64**2 - twin[1].eps)
        twin[1].weight.mul_(1.0)
    folded = noise_posterior(FoldedNetwork(captured_of(twin, 4, 2)), x, y, 0.0, 0)
    assert folded.level == first.level
    assert folded.divergence == pytest.approx(first.divergence, rel=0.05)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
