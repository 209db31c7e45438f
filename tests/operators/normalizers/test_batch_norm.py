"""Batch normalization with running and with batch statistics."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normscope.core.errors import InputError
from normscope.operators.normalizers.batch_norm import (
    batch_norm_batch_at,
    batch_norm_batch_each,
    batch_norm_batch_global,
    batch_norm_batch_on_ball,
    batch_norm_batch_on_floor,
    batch_norm_frobenius,
    batch_norm_printed,
    batch_norm_running,
    batch_norm_scale,
    batch_norm_slides,
)
from normscope.operators.normalizers.group_norm import group_norm_range
from normscope.operators.normalizers.layer_norm import printed_is_bound
from operators.normalizers.truth import jacobian_norm, kinds, scales, seeds, stabilizers, vectors

SHAPES = [(1, 3), (2, 3), (3, 2), (7, 1), (2, 2, 3), (1, 3, 2), (2, 3, 2, 2), (1, 2, 1, 1)]
shapes = st.sampled_from(SHAPES)


def batch_norm(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """Return batch normalization by the batch's own statistics, from its definition."""
    axes = [0, *range(2, x.ndim)]
    y = x - x.mean(axes, keepdim=True)
    spread = (y.square().mean(axes, keepdim=True) + eps).sqrt()
    return gamma.reshape(-1, *[1] * (x.ndim - 2)) * y / spread


def batches(shape: tuple[int, ...], seed: int, spread: float = 1.0) -> Tensor:
    """Return a random batch."""
    return vectors(math.prod(shape), seed, spread).reshape(shape)


def test_acceptance_number_and_the_module_itself() -> None:
    """The known constant, and the Jacobian of the PyTorch module in evaluation."""
    layer = torch.nn.BatchNorm1d(5).double().eval()
    layer.running_var.copy_(torch.tensor([0.01, 0.25, 1, 4, 9]).double())
    layer.weight.data.copy_(torch.tensor([0.3, -2, 1, 5, 0.1]).double())
    constant = batch_norm_running(layer.weight, layer.running_var, layer.eps)
    assert constant == pytest.approx(3.9999200024, abs=5e-11)
    x = vectors(5, 0)
    assert constant == pytest.approx(jacobian_norm(lambda z: layer(z[None])[0], x), rel=1e-12)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.integers(1, 9), kinds, seeds, stabilizers)
def test_running_constant_is_the_least_float_bound(n: int, kind: str, seed: int, eps: float) -> None:
    """The exact rational ``gamma^2 / (var + eps)`` is enclosed from above, closely."""
    gamma, variance = scales(n, seed, kind), vectors(n, seed).square() + 1e-6
    exact = max(
        Fraction(g) ** 2 / (Fraction(v) + Fraction(eps)) for g, v in zip(gamma.tolist(), variance.tolist(), strict=True)
    )
    bound = Fraction(batch_norm_running(gamma, variance, eps)) ** 2
    assert exact <= bound <= exact * (1 + Fraction(1, 10**13))


def test_frobenius_is_not_the_constant() -> None:
    """Sigma = (3, 4): the constant is 1/3, the printed value 0.4167 is the Frobenius norm."""
    variance = torch.tensor([9.0, 16.0])
    constant, printed = batch_norm_running(None, variance, 0.0), batch_norm_printed(variance, 0.0)
    assert constant == pytest.approx(1 / 3, rel=1e-14)
    assert printed == pytest.approx(0.41666667, abs=1e-8)
    assert batch_norm_frobenius(None, variance, 0.0) == pytest.approx(printed, rel=1e-14)
    assert printed_is_bound(printed, constant)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(1, 6), kinds, seeds, st.integers(1, 5))
def test_frobenius_norm_of_the_jacobian(n: int, kind: str, seed: int, positions: int) -> None:
    """The Frobenius norm equals that of the dense Jacobian, and lies within ``[1, sqrt(n)]`` of the constant."""
    gamma, variance = scales(n, seed, kind), vectors(n, seed).square() + 0.1
    module = torch.nn.BatchNorm1d(n).double().eval()
    module.weight.data.copy_(gamma)
    module.running_var.copy_(variance)
    x = vectors(n * positions, seed).reshape(1, n, positions)
    truth = torch.func.jacrev(module)(x).norm().item()
    frobenius = batch_norm_frobenius(gamma, variance, module.eps, positions)
    assert frobenius == pytest.approx(truth, rel=1e-10, abs=1e-300)
    constant = batch_norm_running(gamma, variance, module.eps)
    assert constant <= batch_norm_frobenius(gamma, variance, module.eps) * (1 + 1e-14)
    assert batch_norm_slides(gamma, variance, module.eps) <= math.sqrt(n) * constant * (1 + 1e-12)
    assert printed_is_bound(batch_norm_slides(gamma, variance, module.eps), constant)


def test_the_lemma_without_a_scale_is_no_bound_for_large_scales() -> None:
    """Lemma 1 has no gamma: with gamma = 10 the printed value is below the constant."""
    variance = torch.tensor([9.0, 16.0])
    assert not printed_is_bound(
        batch_norm_printed(variance, 0.0), batch_norm_running(torch.full((2,), 10.0), variance, 0.0)
    )


def test_scale_folds_into_a_linear_layer() -> None:
    """``diag(scale) W`` is the linear part of the layer followed by batch normalization."""
    W, gamma, variance = vectors(6, 1).reshape(3, 2), vectors(3, 2), vectors(3, 3).square() + 0.1
    module = torch.nn.BatchNorm1d(3).double().eval()
    module.weight.data.copy_(gamma)
    module.running_var.copy_(variance)
    jacobian = torch.func.jacrev(lambda z: module((W @ z)[None])[0])(vectors(2, 4))
    assert torch.allclose(batch_norm_scale(gamma, variance, module.eps)[:, None] * W, jacobian, rtol=1e-12)


@settings(derandomize=True, deadline=None, max_examples=120)
@given(shapes, kinds, seeds, stabilizers)
def test_batch_statistics_equal_automatic_differentiation(
    shape: tuple[int, ...], kind: str, seed: int, eps: float
) -> None:
    """The Jacobian norm of the stacked batch, for one, two and more values per channel."""
    m = math.prod(shape) // shape[1]
    if m == 1 and eps == 0:
        return
    x, gamma = batches(shape, seed), scales(shape[1], seed, kind)
    bound = batch_norm_batch_at(x, gamma, eps)
    truth = jacobian_norm(lambda z: batch_norm(z, gamma, eps), x)
    size = float(gamma.abs().max()) * (float(x.var(correction=0)) + eps) ** -0.5 if m > 1 else 0.0
    assert bound == pytest.approx(truth, rel=1e-10, abs=1e-10 * size + 1e-300)
    assert m > 1 or bound == 0.0


def test_the_module_in_training_agrees() -> None:
    """PyTorch's own training mode has this Jacobian on the stacked batch."""
    layer = torch.nn.BatchNorm2d(3, track_running_stats=False).double()
    layer.weight.data.copy_(torch.tensor([0.5, -3.0, 1.0]).double())
    x = batches((2, 3, 2, 2), 3)
    truth = jacobian_norm(layer, x)
    assert batch_norm_batch_at(x, layer.weight, layer.eps) == pytest.approx(truth, rel=1e-10)
    assert batch_norm_batch_each(x, layer.weight, layer.eps).shape == (3,)


def test_a_constant_channel_attains_the_global_constant() -> None:
    """A channel that does not vary over the batch gives ``|gamma| / sqrt(eps)``."""
    gamma, eps = torch.tensor([1.0, -4.0]), 1e-4
    x = batches((5, 2), 0)
    x[:, 1] = 0.1
    assert batch_norm_batch_at(x, gamma, eps) == pytest.approx(batch_norm_batch_global(gamma, eps), rel=1e-12)
    assert batch_norm_batch_global(gamma, 0.0) == math.inf
    assert batch_norm_batch_at(x, None, 0.0) == math.inf


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(2, 6), st.integers(1, 4), kinds, seeds, st.sampled_from((0.0, 1e-3, 0.1)))
def test_floor_holds_for_all_pairs_and_is_attained(m: int, channels: int, kind: str, seed: int, eps: float) -> None:
    """Batches whose channels keep their floors stay below the constant; an antipodal pair reaches it."""
    gamma = scales(channels, seed, kind)
    floors = vectors(channels, seed + 1).abs() + 0.1
    bound = batch_norm_batch_on_floor(gamma, eps, floors)
    y = vectors(2 * 60 * m * channels, seed).reshape(2, 60, m, channels)
    y = y - y.mean(2, keepdim=True)
    y = y / y.square().mean(2, keepdim=True).sqrt() * floors * (1 + vectors(120, seed).abs().reshape(2, 60, 1, 1))
    y[1, :20] = -y[0, :20]
    outputs = torch.stack([batch_norm(v, gamma, eps) for v in y.reshape(-1, m, channels)]).reshape(y.shape)
    difference = (outputs[0] - outputs[1]).flatten(1).norm(dim=1)
    assert (difference <= bound * (y[0] - y[1]).flatten(1).norm(dim=1) * (1 + 1e-12) + 1e-13).all()
    worst = int((gamma.abs() / (floors**2 + eps).sqrt()).argmax())
    x = y[0, 0].clone()
    x[:, worst] *= floors[worst] / x[:, worst].std(correction=0)
    other = x.clone()
    other[:, worst] *= -1
    quotient = (batch_norm(x, gamma, eps) - batch_norm(other, gamma, eps)).norm() / (x - other).norm()
    assert float(quotient) == pytest.approx(bound, rel=1e-10, abs=1e-300)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(shapes, kinds, seeds, st.sampled_from((0.0, 0.2, 5.0)))
def test_ball_is_never_exceeded(shape: tuple[int, ...], kind: str, seed: int, radius: float) -> None:
    """Jacobians at random points of the ball stay below the bound."""
    x, gamma, eps = batches(shape, seed), scales(shape[1], seed, kind), 1e-3
    bound = batch_norm_batch_on_ball(x, radius, gamma, eps)
    for k in range(10):
        step = batches(shape, seed + k)
        if k == 0:
            step = -(x - x.mean([0, *range(2, x.ndim)], keepdim=True))
        step = step / step.norm().clamp_min(1e-300) * radius * (1 - 1e-15)
        assert batch_norm_batch_at(x + step, gamma, eps) <= bound * (1 + 1e-9)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(shapes, kinds, seeds)
def test_range_holds(shape: tuple[int, ...], kind: str, seed: int) -> None:
    """Outputs stay within the stated radius and box, whatever the batch."""
    m = math.prod(shape) // shape[1]
    gamma, beta = scales(shape[1], seed, kind), vectors(shape[1], seed)
    spread = group_norm_range(gamma, beta, len(gamma), m)
    beta_view = beta.reshape(-1, *[1] * (len(shape) - 2))
    for k in range(5):
        y = batch_norm(batches(shape, seed + k, 100.0), gamma, 1e-12) + beta_view
        assert float(y.norm()) <= spread.radius * (1 + 1e-12)
        channels = y.transpose(0, 1).flatten(1)
        assert (channels >= spread.low[:, None] - 1e-10).all()
        assert (channels <= spread.high[:, None] + 1e-10).all()


def test_range_is_attained_without_shift() -> None:
    """Any batch with large variance has the radius ``sqrt(m) ||gamma||``."""
    gamma, x = torch.tensor([2.0, -1.0]).double(), batches((6, 2), 1, 1e6)
    radius = group_norm_range(gamma, None, 2, 6).radius
    assert float(batch_norm(x, gamma, 1e-12).norm()) == pytest.approx(radius, rel=1e-10)


def test_errors() -> None:
    """Damaged statistics and wrong sizes are refused."""
    with pytest.raises(InputError, match="running statistics are damaged"):
        batch_norm_running(None, torch.tensor([-1.0]), 1e-5)
    with pytest.raises(InputError, match="variance"):
        batch_norm_running(None, torch.tensor([0.0]), 0.0)
    with pytest.raises(InputError, match="one entry per channel"):
        batch_norm_running(torch.ones(2), torch.ones(3), 1e-5)
    with pytest.raises(InputError, match="shape"):
        batch_norm_batch_at(torch.ones(3), None, 1e-5)
    with pytest.raises(InputError, match="floors"):
        batch_norm_batch_on_floor(torch.ones(3), 1e-5, torch.ones(2))
    with pytest.raises(InputError, match="floors"):
        batch_norm_batch_on_floor(torch.ones(3), 1e-5, -1.0)
