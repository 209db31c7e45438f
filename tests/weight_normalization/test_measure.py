"""Measured norms against dense matrices of another route, and Lanczos against dense."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call

from normscope.core.errors import InputError
from normscope.weight_normalization import measure
from normscope.weight_normalization.measure import (
    hessian_norm,
    input_jacobian_norm,
    loss_and_gradient_norm,
    loss_hessian_norm,
    square_loss,
    square_targets,
)
from normscope.weight_normalization.network import WeightNormNetwork


def test_hessians_agree_with_torch_func_and_with_lanczos(monkeypatch: pytest.MonkeyPatch) -> None:
    net = WeightNormNetwork(3, width=4, depth=2, seed=0).double()
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.ones(6, 1, dtype=torch.float64)
    shapes = {name: p.shape for name, p in net.named_parameters()}
    flat = torch.cat([p.detach().reshape(-1) for p in net.parameters()])

    def loss(vector: torch.Tensor) -> torch.Tensor:
        parts = vector.split([shape.numel() for shape in shapes.values()])
        named = {name: part.reshape(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}
        return square_loss(functional_call(net, named, (x,)), y)

    dense = torch.linalg.eigvalsh(torch.func.hessian(loss)(flat)).abs().max().item()
    assert loss_hessian_norm(net, x, y) == pytest.approx(dense, rel=1e-10)
    monkeypatch.setattr(measure, "DENSE", 0)
    assert loss_hessian_norm(net, x, y) == pytest.approx(dense, rel=1e-7)


def test_a_linear_scalar_has_no_hessian() -> None:
    net = WeightNormNetwork(2, width=2, depth=1).double()
    assert hessian_norm(net, lambda p: p["2.weight"].sum()) == 0.0


def test_the_input_jacobian_of_a_linear_network() -> None:
    net = WeightNormNetwork(3, width=4, depth=1, activation="identity", seed=0).double()
    matrix = net[-1].weight.detach() @ net[0].effective_weight().detach()
    assert input_jacobian_norm(net, torch.ones(3, dtype=torch.float64)) == pytest.approx(matrix.norm().item())


def test_targets_that_are_class_numbers() -> None:
    assert torch.equal(square_targets(torch.tensor([2, 0]), 3), torch.eye(3, dtype=torch.float64)[[2, 0]])
    numbers = torch.ones(2, 1)
    assert torch.equal(square_targets(numbers, 1), numbers.double())
    with pytest.raises(InputError, match=r"class numbers from 0 to 2, got 0 to 3\."):
        square_targets(torch.tensor([3, 0]), 3)


def test_the_hessian_of_torchs_weight_norm_is_that_of_its_formula() -> None:
    """Torch's own kernel has another second derivative, which is wrong; the formula with autograd is the truth."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 4, bias=False))
        model = nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 1)).double()
        x, y = torch.randn(5, 3).double(), torch.randn(5, 1).double()

    def loss(g: torch.Tensor, v: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return square_loss(torch.tanh(x @ (g * v / v.norm(dim=1, keepdim=True)).T) @ w.T + b, y)

    values = [p.detach() for p in model.parameters()]
    blocks = torch.autograd.functional.hessian(loss, tuple(values))
    dense = torch.cat(
        [torch.cat([b.reshape(v.numel(), -1) for b in row], 1) for row, v in zip(blocks, values, strict=True)]
    )
    assert loss_hessian_norm(model, x, y) == pytest.approx(float(torch.linalg.matrix_norm(dense, 2)), rel=1e-10)


def test_the_gradient_norm_is_that_of_the_loss_and_leaves_gradients_alone() -> None:
    net = WeightNormNetwork(5, width=4, depth=1, outputs=3, seed=0).double()
    x, y = torch.eye(5, dtype=torch.float64), torch.ones(5, 3, dtype=torch.float64)
    loss, gradient = loss_and_gradient_norm(net, x, y)
    assert all(p.grad is None for p in net.parameters())
    square_loss(net(x), y).backward()
    assert loss == pytest.approx(square_loss(net(x), y).item())
    assert gradient == pytest.approx(sum(p.grad.square().sum().item() for p in net.parameters()) ** 0.5)
