"""Root-mean-square normalization: closed forms against automatic differentiation, many digits and pairs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normscope.core.errors import InputError
from normscope.operators.normalizers.rms_norm import (
    rms_norm_at,
    rms_norm_each,
    rms_norm_eps,
    rms_norm_global,
    rms_norm_on_ball,
    rms_norm_on_floor,
    rms_norm_range,
)
from operators.normalizers.truth import (
    KINDS,
    exact_normalizer,
    jacobian_norm,
    kinds,
    offsets,
    scales,
    seeds,
    spreads,
    stabilizers,
    vectors,
)


def rms_norm(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """Return root-mean-square normalization from its definition."""
    return gamma * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


@settings(derandomize=True, deadline=None, max_examples=120)
@given(st.integers(1, 7), kinds, seeds, stabilizers, spreads)
def test_at_a_point_equals_automatic_differentiation(n: int, kind: str, seed: int, eps: float, spread: float) -> None:
    """The closed form agrees with a dense SVD of the autograd Jacobian."""
    x, gamma = vectors(n, seed, spread), scales(n, seed, kind)
    truth = jacobian_norm(lambda z: rms_norm(z, gamma, eps), x)
    size = float(gamma.abs().max()) / math.sqrt(float(x.square().mean()) + eps)
    assert rms_norm_at(x, gamma, eps) == pytest.approx(truth, rel=1e-10, abs=1e-10 * size)


@settings(derandomize=True, deadline=None, max_examples=120)
@given(st.integers(1, 6), kinds, seeds, stabilizers, spreads, offsets)
def test_at_a_point_is_above_the_exact_norm(
    n: int, kind: str, seed: int, eps: float, spread: float, offset: float
) -> None:
    """With fifty digits the closed form is an upper bound, and not above by more than rounding."""
    x, gamma = vectors(n, seed, spread, offset), scales(n, seed, kind)
    truth = exact_normalizer(x, gamma, eps, centre=False)
    bound = rms_norm_at(x, gamma, eps)
    size = float(gamma.abs().max()) / math.sqrt(float(x.square().mean()) + eps)
    if n == 1 and eps == 0:
        assert bound == 0.0  # the sign function is locally constant
    else:
        assert bound >= truth * (1 - 1e-40)
    assert bound**2 - truth**2 <= 1e-12 * size**2


def test_acceptance_number_and_the_default_stabilizer() -> None:
    """The float32 default gives 2896.309 at zero, and PyTorch agrees on the default for every dtype."""
    assert rms_norm_at(torch.zeros(8), torch.ones(8)) == pytest.approx(2896.309, abs=5e-4)
    assert rms_norm_global(torch.ones(8)) == pytest.approx(2896.309, abs=5e-4)
    for dtype, tiny in ((torch.float16, 2e-4), (torch.bfloat16, 2e-4), (torch.float32, 1e-4), (torch.float64, 1e-9)):
        x = torch.tensor([tiny, 0.0, 0.0, 0.0], dtype=dtype)
        y = torch.nn.functional.rms_norm(x, (4,))
        a, b = x[0].item(), y[0].item()
        used = (a / b) ** 2 - a * a / 4
        assert used == pytest.approx(rms_norm_eps(None, dtype), rel=0.02)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_at_zero_the_global_constant_is_attained(n: int) -> None:
    """The Jacobian at zero is ``diag(gamma)/sqrt(eps)``."""
    gamma = scales(n, 2, "general")
    assert rms_norm_at(torch.zeros(n), gamma, 1e-6) == pytest.approx(rms_norm_global(gamma, 1e-6), rel=1e-12)
    assert rms_norm_at(torch.zeros(n), gamma, 0.0) == math.inf
    assert rms_norm_global(gamma, 0.0) == math.inf


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 7), kinds, seeds, st.sampled_from((0.0, 1e-3, 0.1)), st.sampled_from((0.1, 3.0)))
def test_floor_is_never_exceeded_by_a_pair(n: int, kind: str, seed: int, eps: float, s: float) -> None:
    """Random, antipodal and close pairs with root mean square at least ``s`` stay below the constant."""
    gamma = scales(n, seed, kind)
    bound = rms_norm_on_floor(gamma, eps, s)
    y = vectors(2 * 300 * n, seed).reshape(2, 300, n)
    y = y / y.square().mean(-1, keepdim=True).sqrt() * s * (1 + vectors(600, seed + 1).abs().reshape(2, 300, 1))
    a, b = y
    b[:100], b[100:200] = -a[:100], a[100:200] * (1 + 1e-3)
    difference = (rms_norm(a, gamma, eps) - rms_norm(b, gamma, eps)).norm(dim=-1)
    assert (difference <= bound * (a - b).norm(dim=-1) * (1 + 1e-12) + 1e-13).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_floor_is_attained_by_an_antipodal_pair(n: int, kind: str) -> None:
    """The pair along the largest scale has exactly this quotient."""
    gamma, eps, s = scales(n, 7, kind), 1e-3, 0.5
    x = torch.zeros(n, dtype=torch.float64)
    x[int(gamma.abs().argmax())] = s * math.sqrt(n)
    quotient = float((rms_norm(x, gamma, eps) - rms_norm(-x, gamma, eps)).norm() / (2 * x).norm())
    assert quotient == pytest.approx(rms_norm_on_floor(gamma, eps, s), rel=1e-12)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 6), kinds, seeds, st.sampled_from((1e-5, 0.1)), st.sampled_from((0.0, 0.2, 10.0)))
def test_ball_is_never_exceeded(n: int, kind: str, seed: int, eps: float, radius: float) -> None:
    """Jacobians at points of the ball stay below the bound."""
    x, gamma = vectors(n, seed), scales(n, seed, kind)
    bound = rms_norm_on_ball(x, radius, gamma, eps)
    steps = vectors(100 * n, seed + 1).reshape(100, n)
    steps[0] = -x
    steps = steps / steps.norm(dim=-1, keepdim=True) * radius * (1 - 1e-15)
    assert rms_norm_at(x + steps, gamma, eps) <= bound * (1 + 1e-9)


def test_ball_is_attained_and_special_cases() -> None:
    """The point nearest to zero has the norm of the bound; one element has its own derivative."""
    x, gamma = vectors(4, 1), torch.full((4,), -2.0).double()
    nearest = x * (1 - 0.5 / x.norm())
    assert rms_norm_on_ball(x, 0.5, gamma, 0.01) == pytest.approx(rms_norm_at(nearest, gamma, 0.01), rel=1e-10)
    one = torch.tensor([3.0], dtype=torch.float64)
    assert rms_norm_on_ball(one, 1.0, torch.ones(1), 0.5) == pytest.approx(0.5 / 4.5**1.5, rel=1e-12)
    assert rms_norm_on_ball(one, 1.0, torch.ones(1), 0.0) == 0.0
    assert rms_norm_on_ball(one, 4.0, torch.ones(1), 0.0) == math.inf


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(1, 7), kinds, seeds)
def test_range_holds_and_is_attained(n: int, kind: str, seed: int) -> None:
    """Outputs stay in the ball and box; the axis of the largest scale reaches both."""
    gamma, beta = scales(n, seed, kind), vectors(n, seed)
    y = rms_norm(vectors(40 * n, seed, 1e3).reshape(40, n), gamma, 1e-12) + beta
    spread = rms_norm_range(gamma, beta)
    assert (y.norm(dim=-1) <= spread.radius * (1 + 1e-12)).all()
    assert (y <= spread.high + 1e-9).all()
    assert (y >= spread.low - 1e-9).all()
    peak = rms_norm(torch.eye(n, dtype=torch.float64) * 1e6, gamma, 1e-12)
    assert float(peak.abs().max()) == pytest.approx(rms_norm_range(gamma).radius, rel=1e-9)


def test_batches_and_errors() -> None:
    """One norm per vector; shapes must fit."""
    x, gamma = vectors(12, 1).reshape(2, 2, 3), vectors(3, 2)
    each = rms_norm_each(x, gamma, 1e-3)
    assert each.shape == (2, 2)
    truth = jacobian_norm(lambda z: torch.nn.functional.rms_norm(z, (3,), gamma, 1e-3), x)
    assert float(each.max()) == pytest.approx(truth, rel=1e-10)
    with pytest.raises(InputError, match="last axes"):
        rms_norm_at(torch.zeros(3), torch.ones(4), 1e-5)
    with pytest.raises(InputError, match="eps"):
        rms_norm_global(torch.ones(3), -1.0)
