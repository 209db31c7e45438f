"""Local response normalization: no Jacobian exceeds the bound, on all inputs and where entries are bounded."""

from __future__ import annotations

import math
from types import SimpleNamespace

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from networks import points, program_of
from normscope.operators.expression import atom_expr
from normscope.operators.nonlinear import Range
from normscope.operators.normalizer import site_constants
from normscope.operators.normalizers.local_response_norm import (
    LocalResponse,
    LocalResponseDivision,
    local_response_bound,
)
from operators.normalizers.truth import jacobian_norm, seeds, vectors
from operators.refute import refuted


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.integers(1, 6),
    st.integers(1, 8),
    seeds,
    st.sampled_from((0.1, 0.75, 2.0)),
    st.sampled_from((0.5, 1.0, 3.0)),
    st.floats(-2, 3),
)
def test_no_jacobian_exceeds_it(size: int, channels: int, seed: int, beta: float, k: float, power: float) -> None:
    """At points of any size, flat or peaked; the bound of their largest entry holds as well."""
    numbers = LocalResponse(size, 1.0, beta, k)
    x = vectors(channels, seed).reshape(1, channels, 1) * 10**power
    truth = jacobian_norm(numbers, x)
    assert truth <= local_response_bound(numbers, float(x.abs().max())) * (1 + 1e-12)
    assert truth <= local_response_bound(numbers) * (1 + 1e-12)


def test_it_is_attained_near_zero_and_within_a_factor_elsewhere() -> None:
    """At zero the constant is ``k^-beta``; a large power comes within a factor of three of the bound on all inputs."""
    numbers = LocalResponse(3, 1.0, 2.0, 1.0)
    assert local_response_bound(numbers, 0.0) == pytest.approx(jacobian_norm(numbers, torch.zeros(1, 4, 1).double()))
    large = LocalResponse(5, 1.0, 20.0, 1.0)
    found = max(jacobian_norm(large, torch.full((1, 9, 1), float(s)).double()) for s in torch.linspace(0, 1, 40))
    assert local_response_bound(large) <= 3 * max(found, 1.0)


@pytest.mark.parametrize("shape", [(6, 5), (6, 4, 4), (6, 2, 3, 2)])
def test_it_is_found_in_a_network(shape: tuple[int, ...]) -> None:
    """In one, two and three dimensions, with torch's own layer."""
    layer = nn.LocalResponseNorm(4, 2.0, 0.5, 3.0)
    (site,) = program_of(nn.Sequential(nn.ReLU(), layer).double(), points(2, *shape)).sites
    assert site.kind == "local_response_norm"
    bound = local_response_bound(LocalResponse(4, 2.0, 0.5, 3.0))
    assert site_constants(site, None, "running").proved.value == pytest.approx(bound, rel=1e-14)


def test_nothing_refutes_it_in_a_network() -> None:
    """At many scales, from below by ascent."""
    checked = refuted(lambda x: nn.functional.local_response_norm(x, 3, 1.0, 0.75, 1.0), 5, 3)
    assert checked.opaque == []
    assert checked.upper["everywhere"] < math.inf


def test_another_window_is_none() -> None:
    """An average over other places is not taken for it."""

    def forward(x: Tensor) -> Tensor:
        mean = nn.functional.avg_pool1d(x.square(), 3, 1, 1)
        return x / (mean * 2.0 + 1.0) ** 0.75

    checked = refuted(forward, 5, 6)
    assert checked.upper["everywhere"] == math.inf


@pytest.mark.parametrize("size", [1, 5, 4096])
@pytest.mark.parametrize(("beta", "k"), [(0.0, 2.0), (1e-3, 1.0), (0.75, 2.0), (3.0, 1.0), (40.0, 3.0), (500.0, 1.5)])
def test_it_is_its_formula_to_the_last_digits(size: int, beta: float, k: float) -> None:
    """Also where ``alpha sup^2`` is lost in ``k``: never below the formula in many digits, and hardly above."""
    for square in (0.0, 1e-30, 1.05e-16, 1e-12, 1e-3, 0.3, 7.0, 1e300):
        bound = local_response_bound(LocalResponse(size, 1.0, beta, k), math.sqrt(square))
        truth = _formula(size, beta, k, mpmath.mpf(math.sqrt(square)) ** 2)
        assert truth <= bound <= truth * (1 + 1e-13)


def _formula(size: int, beta: float, k: float, excess: mpmath.mpf) -> mpmath.mpf:
    """Return ``k^-beta + 2 beta sqrt(n) (u - k) u^(-beta-1)`` in 50 digits."""
    with mpmath.workdps(50):
        beta, k = mpmath.mpf(beta), mpmath.mpf(k)
        more = min(excess, k / beta) if beta else excess
        return k**-beta + 2 * beta * mpmath.sqrt(size) * more * (k + more) ** (-beta - 1)


def test_a_power_that_underflows_is_not_zero() -> None:
    """The bound stays above its formula, and the range of the output above what an entry can be."""
    numbers = LocalResponse(4096, 1.0, 1100.0, 2.0)
    assert local_response_bound(numbers) >= _formula(4096, 1100.0, 2.0, mpmath.inf) > 0
    context = SimpleNamespace(range=lambda expr: Range(-1.0, 1.0, 1.0, 1.0))
    image = LocalResponseDivision(atom_expr(None, (3,)), numbers).image(context)  # type: ignore[arg-type]
    assert min(image.high, image.row, image.norm) > 0.0
