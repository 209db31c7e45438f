"""VC dimension: affine classifiers shatter as many points as said, and the printed bound is above the cited one."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy.optimize import linprog

from normscope.core.errors import InputError
from normscope.core.value import Kind
from normscope.generalization import vc_bound, vc_bound_printed, vc_dimension_linear, vc_dimension_network, vc_gap


def _separable(points: torch.Tensor, signs: tuple[int, ...]) -> bool:
    """Return whether an affine classifier gives these signs: is there ``s (w . x + b) >= 1``?"""
    n = points.shape[1]
    rows = [[-s * float(v) for v in (*p, 1.0)] for p, s in zip(points, signs, strict=True)]
    found = linprog([0.0] * (n + 1), A_ub=rows, b_ub=[-1.0] * len(rows), bounds=[(None, None)] * (n + 1))
    return bool(found.status == 0)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_linear_classifiers_shatter_as_many_points(n: int) -> None:
    """All signs of a simplex of ``n + 1`` points, and not all of ``n + 2`` random ones (Radon)."""
    simplex = torch.cat([torch.zeros(1, n), torch.eye(n)])
    d = vc_dimension_linear(n)
    assert len(simplex) == d
    assert all(_separable(simplex, signs) for signs in itertools.product((-1, 1), repeat=d))
    more = torch.randn(d + 1, n, generator=torch.Generator().manual_seed(n))
    assert not all(_separable(more, signs) for signs in itertools.product((-1, 1), repeat=d + 1))


@pytest.mark.parametrize("samples", [10, 1000, 10**6])
@pytest.mark.parametrize("dimension", [1, 3, 10])
@pytest.mark.parametrize("delta", [0.5, 1e-3])
def test_printed_is_implied(dimension: int, samples: int, delta: float) -> None:
    """Wherever it may be used."""
    assert vc_bound(dimension, samples, delta).value <= vc_bound_printed(dimension, samples, delta).value
    assert vc_bound(dimension, samples, delta).kind is Kind.PROBABILISTIC


def test_refused() -> None:
    """More dimensions than samples, as in modern networks; no probability."""
    with pytest.raises(InputError, match="samples >= dimension"):
        vc_bound(11_000_000, 50_000, 0.05)
    with pytest.raises(InputError, match="between 0 and 1"):
        vc_bound(1, 10, math.nan)
    with pytest.raises(InputError):
        vc_dimension_linear(0)


def test_gap_for_any_number_of_samples() -> None:
    """The classical bound where there are enough samples, above one where there are too few."""
    assert vc_gap(10, 1000, 0.05).value == pytest.approx(vc_bound(10, 1000, 0.05).value)
    assert vc_gap(1e9, 50_000, 0.05).value > 1
    assert vc_gap(99_999, 50_000, 0.05).value <= vc_gap(1e9, 50_000, 0.05).value
    with pytest.raises(InputError):
        vc_gap(0, 10, 0.1)


def test_dimension_of_a_network() -> None:
    """By hand for two layers, above the true dimension for one linear unit, growing with every size."""
    r = 1 * 5 + 2 * 1
    expected = 2 + (15 + 21) * math.log2(4 * math.e * r * math.log2(2 * math.e * r))
    assert vc_dimension_network([15, 21], [5, 1]) == pytest.approx(expected)
    assert vc_dimension_network([3], [1]) >= vc_dimension_linear(2)
    assert vc_dimension_network([15, 21], [5, 1], breakpoints=2) > expected
    with pytest.raises(InputError):
        vc_dimension_network([], [])
