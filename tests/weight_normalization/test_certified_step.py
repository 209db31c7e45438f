"""What is proved about a step holds along real runs, against the step itself and dense Hessians."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.weight_normalization.certified_step import (
    certify_step,
    restricted_strong_convexity,
    smoothness_bound,
    step_certificate,
)
from normscope.weight_normalization.chain import in_float64
from normscope.weight_normalization.measure import loss_hessian_norm, square_loss
from normscope.weight_normalization.network import WeightNormNetwork


def _data(seed: int, outputs: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 3, generator=draw, dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True), torch.randn(12, outputs, generator=draw, dtype=torch.float64).tanh()


def _step(net: nn.Module, x: torch.Tensor, y: torch.Tensor, size: float) -> None:
    net.zero_grad()
    square_loss(net(x), y).backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= size * p.grad


@pytest.mark.parametrize("outputs", [1, 3])
def test_no_certificate_is_broken_along_a_run(outputs: int) -> None:
    net, (x, y) = WeightNormNetwork(3, width=12, depth=2, outputs=outputs, seed=1).double(), _data(2, outputs)
    least = 0.0
    for k in range(25):
        now = certify_step(net, x, y, measured=k % 2 == 0)
        before = loss_hessian_norm(in_float64(net), x, y)
        assert before <= now.certificate.smoothness
        assert now.least_norm >= least * (1 - 1e-12)
        at = [p.detach().clone() for p in net.parameters()]
        slope = torch.autograd.grad(square_loss(net(x), y), list(net.parameters()))
        _step(net, x, y, now.certificate.step_size)
        after = square_loss(net(x), y).item()
        assert now.certificate.proved
        assert after <= now.certificate.contraction * now.loss
        moved = [p.detach() - q for p, q in zip(net.parameters(), at, strict=True)]
        linear = sum((g * d).sum().item() for g, d in zip(slope, moved, strict=True))
        square = sum(d.square().sum().item() for d in moved)
        assert after >= now.loss + linear + now.strong_convexity / 2 * square - 1e-15
        least = now.least_norm


def test_pytorch_weight_norm_with_gains_and_biases_is_certified_too() -> None:
    torch.manual_seed(0)
    norm = torch.nn.utils.parametrizations.weight_norm
    net = nn.Sequential(norm(nn.Linear(3, 6)), nn.Tanh(), norm(nn.Linear(6, 4)), nn.Tanh(), nn.Linear(4, 1)).double()
    x, y = _data(3)
    for _ in range(10):
        now = certify_step(net, x, y)
        assert loss_hessian_norm(in_float64(net), x, y) <= now.certificate.smoothness
        _step(net, x, y, now.certificate.step_size)
        assert square_loss(net(x), y).item() <= now.certificate.contraction * now.loss


def test_a_step_that_is_too_long_is_not_certified() -> None:
    net, (x, y) = WeightNormNetwork(3, width=12, depth=2, seed=1), _data(2)
    assert not certify_step(net, x, y, step_size=1e6).certificate.proved


def test_relu_has_no_smoothness_and_no_certified_step() -> None:
    net, (x, y) = WeightNormNetwork(3, width=12, depth=2, activation="relu", seed=1), _data(2)
    now = certify_step(net, x, y, step_size=1e-3)
    assert now.predictor_hessian == float("inf")
    assert now.largest_certified_step == 0.0
    assert not now.certificate.proved


def test_targets_of_another_shape_are_refused() -> None:
    net, (x, y) = WeightNormNetwork(3, width=4, depth=1, seed=1), _data(2)
    with pytest.raises(InputError, match=r"Expected targets of shape \(12, 1\)"):
        certify_step(net, x, y[:, 0])


def test_a_linear_predictor_attains_smoothness_and_contraction() -> None:
    # f = a x with x = 2: L = (y - 2a)^2, L'' = 8 = 2 varrho^2; a step of 1/8 reaches the minimum
    beta = smoothness_bound(9.0, 2.0, 0.0)
    assert beta == pytest.approx(8.0)
    certificate = step_certificate(9.0, 2 * 2 * 3.0, beta, 1.0 / beta)
    assert certificate.proved
    assert certificate.contraction == pytest.approx(0.0, abs=1e-12)
    # L is a parabola: alpha along the gradient is its curvature
    assert restricted_strong_convexity(9.0, 12.0, 1.0, 0.3, 2.0, 0.0) == pytest.approx(8.0)


def test_at_the_minimum_the_hessian_of_the_predictor_does_not_count() -> None:
    assert smoothness_bound(0.0, 1.0, math.inf) == pytest.approx(2.0)


def test_bad_numbers_are_refused() -> None:
    for call in (
        lambda: smoothness_bound(-1.0, 1.0, 1.0),
        lambda: restricted_strong_convexity(0.0, 1.0, 1.0, 1.0, 1.0, 1.0),
        lambda: step_certificate(1.0, 1.0, 1.0, 0.0),
    ):
        with pytest.raises(InputError, match="Expected"):
            call()
