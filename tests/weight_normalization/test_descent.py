"""Smoothness, strong convexity and certificates as formulas, at their edges."""

from __future__ import annotations

import math

import pytest

from normscope.core.errors import InputError
from normscope.weight_normalization.descent import restricted_strong_convexity, smoothness_bound, step_certificate


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
