"""Norms of matrix-free maps against dense singular values."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from normscope.lipschitz.spectral.general import DENSE_UP_TO, operator_norm
from normscope.operators.linear_map import LinearMap


@pytest.mark.parametrize("tall", [False, True])
def test_small_maps_are_certified(tall: bool) -> None:
    """Convolution, pooling and a projection in one map: the certificate surrounds the dense norm."""
    generator = torch.Generator().manual_seed(0)
    kernel = torch.randn(6, 3, 3, 3, generator=generator, dtype=torch.float64)
    matrix = torch.randn(500 if tall else 7, 6 * 16, generator=generator, dtype=torch.float64)

    def function(x: torch.Tensor) -> torch.Tensor:
        return matrix @ functional.avg_pool2d(functional.conv2d(x[None], kernel, padding=1), 2).flatten()

    A = LinearMap.from_function(function, (3, 8, 8))
    truth = float(
        torch.linalg.matrix_norm(torch.stack([A.apply(e.reshape(3, 8, 8)) for e in torch.eye(192).double()]), 2)
    )
    bounds = operator_norm(A)
    assert bounds.lower <= truth * (1 + 1e-12) <= bounds.upper * (1 + 2e-12)
    assert bounds.width <= 1e-8
    assert bounds.delta == 0.0


def test_large_maps_get_a_probable_bound_and_the_given_certificate() -> None:
    """The discrete gradient of a long signal has norm 2 cos(pi/(2n)), below the trivial bound 2."""
    n = 2 * DENSE_UP_TO
    A = LinearMap.from_function(lambda x: x[1:] - x[:-1], (n,))
    exact = 2 * math.cos(math.pi / (2 * n))
    bounds = operator_norm(A, tolerance=1e-2, certified_fallback=2.0)
    assert bounds.lower <= exact <= bounds.probable <= bounds.upper
    assert bounds.upper == pytest.approx(2.0)
    assert bounds.probable_width <= 1e-2 or bounds.probable == bounds.upper
    unknown = operator_norm(A, tolerance=2e-2)
    assert unknown.upper == math.inf
    assert unknown.probable_width <= 2e-2
    assert unknown.delta == 1e-9


def test_zero_maps() -> None:
    """The zero map is found to be zero, and an empty one is."""
    zero = operator_norm(LinearMap.from_function(lambda x: 0 * x, (4000,)), certified_fallback=1.0)
    assert zero.lower == 0.0
    assert zero.probable == 0.0
    assert operator_norm(LinearMap.from_function(lambda x: 0 * x, (4,))).upper < 1e-100
    assert operator_norm(LinearMap.from_function(lambda x: x, (0,))).upper == 0.0


@pytest.mark.parametrize("n", [10, 2 * DENSE_UP_TO])
def test_a_wrong_certificate_is_refused(n: int) -> None:
    """A given bound below an attained value is a mistake of the caller; one at it, up to rounding, is not."""
    identity = LinearMap.from_function(lambda x: 3 * x, (n,))
    with pytest.raises(ValueError, match="one of the two is wrong"):
        operator_norm(identity, certified_fallback=2.9)
    bounds = operator_norm(identity, certified_fallback=3.0)
    assert bounds.lower <= 3.0
    assert bounds.upper == pytest.approx(3.0, rel=1e-11)
