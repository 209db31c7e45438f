"""Global response normalization: the constant C^1.5 is never beaten and is approached."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from networks import jacobian_norm as network_jacobian_norm
from networks import points, program_of, upper_of
from normscope.core.errors import InputError
from normscope.operators.expression import atom_expr
from normscope.operators.nonlinear import Range
from normscope.operators.normalizers.global_response_norm import (
    GlobalResponse,
    response_core_global,
    response_norm_at,
    response_norm_global,
    response_norm_on_ball,
)
from operators.normalizers.truth import jacobian_norm, kinds, scales, seeds, vectors
from operators.refute import model_of, refuted


def core(x: Tensor, eps: float) -> Tensor:
    """Return ``x N(x)`` for one sample of shape (channels, positions)."""
    length = x.square().sum(1).sqrt()
    return x * (length / (length.mean() + eps))[:, None]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.integers(1, 5), st.integers(1, 4), kinds, seeds, st.sampled_from((0.0, 1e-6, 0.1, 3.0)), st.booleans())
def test_at_a_point_equals_automatic_differentiation(
    channels: int, positions: int, kind: str, seed: int, eps: float, identity: bool
) -> None:
    """The block structure of the Jacobian gives its exact norm."""
    x, gamma = vectors(channels * positions, seed).reshape(channels, positions), scales(channels, seed, kind)
    truth = jacobian_norm(lambda z: gamma[:, None] * core(z, eps) + (z if identity else 0.0), x)
    bound = response_norm_at(x, gamma, eps, identity=identity)
    assert bound == pytest.approx(truth, rel=1e-10, abs=1e-13 * float(gamma.abs().max()))
    assert bound >= truth * (1 - 1e-13)
    assert bound <= response_norm_global(gamma) * (1 + 1e-12)


def ascend(channels: int, positions: int, seed: int, steps: int = 120) -> float:
    """Return the largest Jacobian norm of ``x N(x)`` that gradient ascent finds."""
    z = vectors(channels * positions, seed, 3.0).reshape(channels, positions)
    z[seed % channels] *= 30.0 ** (seed % 3)
    z.requires_grad_()
    optimizer = torch.optim.Adam([z], lr=0.2)
    best = 0.0
    for _ in range(steps):
        jacobian = torch.func.jacrev(lambda y: core(y, 1e-6))(z).reshape(z.numel(), z.numel())
        norm = torch.linalg.matrix_norm(jacobian, 2)
        optimizer.zero_grad()
        (-norm).backward()
        optimizer.step()
        best = max(best, norm.item())
    return best


@pytest.mark.turns(3)
@pytest.mark.parametrize(("channels", "positions"), [(1, 2), (2, 1), (2, 3), (4, 2)])
def test_adversarial_ascent_comes_close_and_never_above(channels: int, positions: int) -> None:
    """Gradient ascent on the Jacobian norm reaches 99.9 percent of the constant."""
    best = max(ascend(channels, positions, seed) for seed in range(3))
    constant = response_core_global(channels)
    assert 0.999 * constant <= best <= constant * (1 + 1e-12)


@pytest.mark.parametrize("channels", [2, 3, 10, 40])
def test_one_dominant_channel_approaches_the_constant(channels: int) -> None:
    """With one channel far above the others the Jacobian norm tends to ``C^{3/2}``."""
    x = torch.full((channels, 1), 1e-6, dtype=torch.float64)
    x[0] = 1e6
    norm = response_norm_at(x, torch.ones(channels), 1e-6, identity=False)
    assert norm == pytest.approx(channels**1.5, rel=1e-6)
    assert norm <= response_core_global(channels)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.integers(2, 60), seeds, st.floats(0.1, 6.0))
def test_the_radial_matrix_never_exceeds_its_bound(channels: int, seed: int, power: float) -> None:
    """``||2 diag(p) - p^2 1^T|| <= sqrt(C)`` over the simplex, from flat to very peaked."""
    p = vectors(channels, seed).abs() ** power
    p = p / p.sum()
    K = 2 * torch.diag(p) - (p**2)[:, None].expand(channels, channels)
    norm = torch.linalg.matrix_norm(K, 2).item()
    assert norm <= math.sqrt(channels) * (1 + 1e-12)
    q = p.max().item()
    assert norm <= math.sqrt(q * (4 - 4 * q + channels * q * q)) * (1 + 1e-12)
    tau = math.sqrt(channels * q)
    assert norm <= q * max(2.0, (math.sqrt(8 + tau * tau) + tau) / 2) * (1 + 1e-12)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.integers(1, 6), st.integers(1, 3), kinds, seeds, st.sampled_from((0.0, 0.1, 1.0, 50.0)), st.booleans())
def test_ball_is_never_exceeded(
    channels: int, positions: int, kind: str, seed: int, radius: float, identity: bool
) -> None:
    """Jacobians at points of the ball stay below the bound, which stays below the global one."""
    shape = (channels, positions)
    x, gamma = vectors(channels * positions, seed).reshape(shape), scales(channels, seed, kind)
    bound = response_norm_on_ball(x, radius, gamma, 1e-3, identity=identity)
    for k in range(8):
        step = vectors(channels * positions, seed + k + 1).reshape(shape)
        if k == 0:
            step = -x.clone()
            step[seed % channels] *= -1  # let one channel dominate
        step = step / step.norm() * radius * (1 - 1e-15)
        assert response_norm_at(x + step, gamma, 1e-3, identity=identity) <= bound * (1 + 1e-9)
    assert bound <= response_norm_global(gamma) * (1 + 1e-12)


def test_ball_of_equal_channels_is_exact() -> None:
    """Equal channels have the Jacobian norm 2, and so has the bound of the ball of radius zero."""
    x = torch.ones(16, 3)
    assert response_norm_at(x, torch.ones(16), 0.0, identity=False) == pytest.approx(2.0, rel=1e-12)
    assert response_norm_on_ball(x, 0.0, torch.ones(16), 0.0, identity=False) == pytest.approx(2.0, rel=1e-12)


@pytest.mark.parametrize("eps", [0.0, 0.1, 1.0])
def test_ball_of_no_radius_is_never_below_the_point(eps: float) -> None:
    """However unequal the channels are: the factor of the largest share is more than two."""
    draw = torch.Generator().manual_seed(0)
    for power in torch.linspace(0.1, 4.0, 40).tolist():
        x = torch.rand(8, 1, generator=draw, dtype=torch.float64) ** power + 1e-3
        at = response_norm_at(x, torch.ones(8), eps, identity=False)
        assert at <= response_norm_on_ball(x, 0.0, torch.ones(8), eps, identity=False)


def test_difference_quotients_of_far_pairs() -> None:
    """The constant holds for pairs far apart, also across channels that vanish."""
    for channels in (1, 2, 5):
        x, y = vectors(2 * 300 * channels * 2, channels).reshape(2, 300, channels, 2) ** 3
        x[:100, 0] = 0.0
        a, b = (torch.stack([core(v, 1e-6) for v in z]) for z in (x, y))
        quotient = (a - b).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
        assert quotient.max() <= response_core_global(channels)


def test_a_silent_sample() -> None:
    """At zero the layer is the identity if stabilized, and not defined otherwise."""
    assert response_norm_at(torch.zeros(3, 2), torch.ones(3), 1e-6) == pytest.approx(1.0, rel=1e-12)
    assert response_norm_at(torch.zeros(3, 2), torch.ones(3), 0.0) == math.inf


def test_errors() -> None:
    """Sizes must fit."""
    with pytest.raises(InputError, match="at least one channel"):
        response_core_global(0)
    with pytest.raises(InputError, match="one entry per channel"):
        response_norm_at(torch.ones(3, 2), torch.ones(2))


def _response(x: Tensor) -> Tensor:
    size = x.norm(p=2, dim=(1, 2), keepdim=True)
    return x * (size / (size.mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_nothing_refutes_it_in_a_network(channels: int) -> None:
    """At many scales, with the constant of C channels."""
    checked = refuted(_response, 2, 2, channels)
    assert checked.opaque == []
    assert checked.upper["everywhere"] < math.inf


def test_with_scale_shift_and_skip() -> None:
    """Gamma x N(x) + beta + x, as the block has it."""
    gamma, beta = points(4), points(4, seed=1)
    function = lambda x: gamma * _response(x) + beta + x  # noqa: E731
    checked = refuted(function, 2, 2, 4)
    upper = math.exp(checked.upper["everywhere"])
    core = upper_of(program_of(model_of(_response), points(2, 2, 2, 4)))
    assert upper <= 1 + float(gamma.abs().max()) * core + 1e-9
    (site,) = program_of(model_of(function), points(2, 2, 2, 4)).sites
    assert site.gamma is not None
    assert torch.equal(site.gamma.flatten(), gamma)


def test_one_channel_is_nearly_the_identity() -> None:
    """N = 1 up to eps: the Jacobian is close to one, and the bound at least that."""
    x = points(1, 3, 3, 1)
    upper = upper_of(program_of(model_of(_response), torch.cat([x, x])))
    assert network_jacobian_norm(model_of(_response), x) == pytest.approx(1.0, abs=1e-5)
    assert upper >= 1.0


def test_the_range_behind_it_is_rounded_up() -> None:
    """Entries, rows and norms are never below C times those of the input."""
    for size in (0.1 * i for i in range(1, 100)):
        context = SimpleNamespace(range=lambda expr, size=size: Range(-size, size, size, size))
        image = GlobalResponse(atom_expr(None, (3,)), 3).image(context)  # type: ignore[arg-type]
        assert min(map(Fraction, (image.sup, -image.low, image.row, image.norm))) >= 3 * Fraction(size)
