"""Local response normalization: no Jacobian exceeds the bound, on all inputs and where entries are bounded."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from networks import points, program_of
from normscope.operators.normalizer import site_constants
from normscope.operators.normalizers.local_response_norm import LocalResponse, local_response_bound
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
