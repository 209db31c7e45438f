"""Norms of matrix-free maps against dense singular values."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from normscope.linalg.matrix_free import operator_norm
from normscope.operators.linear_map import LinearMap


@pytest.mark.parametrize("tall", [False, True])
def test_attained_and_probable_surround_the_dense_norm(tall: bool) -> None:
    """Convolution, pooling and a projection in one map."""
    generator = torch.Generator().manual_seed(0)
    kernel = torch.randn(6, 3, 3, 3, generator=generator, dtype=torch.float64)
    matrix = torch.randn(500 if tall else 7, 6 * 16, generator=generator, dtype=torch.float64)

    def function(x: torch.Tensor) -> torch.Tensor:
        return matrix @ functional.avg_pool2d(functional.conv2d(x[None], kernel, padding=1), 2).flatten()

    A = LinearMap.from_function(function, (3, 8, 8))
    truth = float(
        torch.linalg.matrix_norm(torch.stack([A.apply(e.reshape(3, 8, 8)) for e in torch.eye(192).double()]), 2)
    )
    bounds = operator_norm(A, tolerance=1e-3)
    assert bounds.lower <= truth * (1 + 1e-12)
    assert truth <= bounds.probable * (1 + 1e-12)
    assert bounds.probable_width <= 1e-3
    assert bounds.upper == math.inf


def test_large_maps_get_a_probable_bound_and_no_certificate() -> None:
    """The discrete gradient of a long signal has norm 2 cos(pi/(2n))."""
    n = 3_000
    A = LinearMap.from_function(lambda x: x[1:] - x[:-1], (n,))
    bounds = operator_norm(A, tolerance=2e-2)
    assert bounds.lower <= 2 * math.cos(math.pi / (2 * n)) <= bounds.probable
    assert bounds.upper == math.inf
    assert bounds.probable_width <= 2e-2
    assert bounds.delta == 1e-9


def test_zero_maps() -> None:
    """The zero map is found to be zero, with probability, and an empty one surely is."""
    zero = operator_norm(LinearMap.from_function(lambda x: 0 * x, (4000,)))
    assert (zero.lower, zero.probable, zero.upper) == (0.0, 0.0, math.inf)
    assert zero.delta > 0.0
    assert operator_norm(LinearMap.from_function(lambda x: x, (0,))).upper == 0.0
