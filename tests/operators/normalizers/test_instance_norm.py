"""Instance normalization: each channel of each sample by itself, a group normalization with one channel per group."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.operators.normalizers.group_norm import (
    group_norm_at,
    group_norm_each,
    group_norm_global,
    group_norm_on_ball,
    group_norm_on_floor,
    group_norm_range,
)
from operators.normalizers.truth import jacobian_norm, kinds, scales, seeds, stabilizers, vectors


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.integers(1, 2), st.integers(1, 3), st.integers(2, 5), kinds, seeds, stabilizers)
def test_at_a_point_equals_automatic_differentiation(
    samples: int, channels: int, positions: int, kind: str, seed: int, eps: float
) -> None:
    """The closed form agrees with PyTorch's functional instance normalization."""
    x = vectors(samples * channels * positions, seed).reshape(samples, channels, positions)
    gamma = scales(channels, seed, kind)
    truth = jacobian_norm(lambda z: torch.nn.functional.instance_norm(z, weight=gamma, eps=eps), x)
    size = float(gamma.abs().max()) / math.sqrt(float(x.var(-1, correction=0).min()) + eps)
    bound = group_norm_at(x, channels, gamma, eps)
    # for two positions without stabilizer the true norm is zero and autograd returns its rounding
    assert bound == pytest.approx(truth, rel=1e-10, abs=1e-10 * size)
    assert bound == float(group_norm_each(x, channels, gamma, eps).max())


def test_small_numbers_of_positions() -> None:
    """One position: zero. Two: ``eps/(sigma^2 + eps)^{3/2}``. Three: ``1/sqrt(sigma^2 + eps)``."""
    assert group_norm_at(torch.ones(1, 2, 1), 2, None, 1e-5) == 0.0
    two = group_norm_at(torch.tensor([[[3.0, -3.0]]]), 1, None, 0.5)
    assert two == pytest.approx(0.5 / 9.5**1.5, rel=1e-13)
    three = group_norm_at(torch.tensor([[[3.0, -3.0, 0.0]]]), 1, torch.tensor([-2.0]), 0.5)
    assert three == pytest.approx(2 / math.sqrt(6.5), rel=1e-13)


def test_global_and_floor() -> None:
    """Constants are per channel; the global one is attained by constant channels."""
    gamma = torch.tensor([1.0, -3.0])
    assert group_norm_at(torch.ones(2, 2, 4), 2, gamma, 1e-4) == pytest.approx(
        group_norm_global(gamma, 2, 1e-4, positions=4), rel=1e-12
    )
    assert group_norm_on_floor(gamma, 2, 0.0, torch.tensor([0.1, 3.0]), positions=2) == pytest.approx(10.0)
    assert group_norm_global(gamma, 2, 1e-5, positions=1) == 0.0
    assert group_norm_global(gamma, 2, 0.0, positions=2) == math.inf
    assert group_norm_global(gamma, 2, 0.0, positions=1) == math.inf


@pytest.mark.parametrize("positions", [2, 3, 5])
def test_floor_is_attained_by_an_antipodal_pair(positions: int) -> None:
    """Two opposite channels of standard deviation ``s`` have the quotient of the constant."""
    eps, s = 1e-3, 0.5
    y = vectors(positions, 1)
    y = (y - y.mean()) / y.std(correction=0) * s
    a, b = y[None, None], -y[None, None]
    f = torch.nn.functional.instance_norm
    quotient = float((f(a, eps=eps) - f(b, eps=eps)).norm() / (a - b).norm())
    assert quotient == pytest.approx(group_norm_on_floor(torch.ones(1), 1, eps, s, positions), rel=1e-10)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(2, 5), kinds, seeds, st.sampled_from((0.0, 0.3, 4.0)))
def test_ball_is_never_exceeded(positions: int, kind: str, seed: int, radius: float) -> None:
    """Jacobians at points of the ball stay below the bound."""
    x, gamma = vectors(2 * positions, seed).reshape(1, 2, positions), scales(2, seed, kind)
    bound = group_norm_on_ball(x, radius, 2, gamma, 1e-3)
    for k in range(8):
        step = vectors(2 * positions, seed + k + 1).reshape(x.shape)
        if k == 0:
            step = -(x - x.mean(-1, keepdim=True))
        step = step / step.norm() * radius * (1 - 1e-15)
        assert group_norm_at(x + step, 2, gamma, 1e-3) <= bound * (1 + 1e-9)


def test_range_holds_and_is_attained() -> None:
    """Each channel has norm ``|gamma| sqrt(positions)`` at most, reached by large inputs."""
    gamma, beta = torch.tensor([2.0, -1.0]).double(), torch.tensor([0.5, 3.0]).double()
    x = vectors(2 * 9, 3, 1e6).reshape(1, 2, 9)
    y = torch.nn.functional.instance_norm(x, weight=gamma, eps=1e-12)
    assert float(y.norm()) == pytest.approx(group_norm_range(gamma, None, 2, 9).radius, rel=1e-9)
    spread = group_norm_range(gamma, beta, 2, 9)
    shifted = y[0] + beta[:, None]
    assert float(shifted.norm()) <= spread.radius
    assert (shifted <= spread.high[:, None]).all()
    assert (shifted >= spread.low[:, None]).all()
