"""Certified eigenpairs against dense eigenvalues, known spectra and exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from normscope.core.errors import NonFiniteError
from normscope.linalg import eigenpair
from normscope.linalg.eigenpair import certified_eigenpair


def with_spectrum(values: list[float], seed: int = 0) -> torch.Tensor:
    """Return a symmetric matrix with these eigenvalues, up to rounding."""
    n = len(values)
    Q = torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).Q
    G = Q @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ Q.mT
    return (G + G.mT) / 2


@pytest.mark.parametrize("n", [1, 2, 3, 17, 64, 200])
def test_bound_and_vector_surround_the_largest_eigenvalue(n: int) -> None:
    """The bound lies above, the Rayleigh quotient below, both within 1e-11 of the dense value."""
    A = torch.randn(n, 2 * n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    G = A @ A.mT
    truth = float(torch.linalg.eigvalsh(G)[-1])
    bound, x = certified_eigenpair(G)
    assert truth * (1 - 1e-14) <= bound <= truth * (1 + 1e-11)
    assert float(x.norm()) == pytest.approx(1.0, abs=1e-12)
    assert float(x @ G @ x) == pytest.approx(truth, rel=1e-11)


@pytest.mark.parametrize(
    "values",
    [
        [3.0, 3.0, 3.0, 1.0],
        [1.0, 1.0 - 1e-13, 0.5],
        [1.0, 1.0 - 1e-9, 0.5],
        [1.0, 0.0, 0.0, 0.0, 0.0],
        [1e-200, 1e-201],
        [1e150, 1.0, 1e-150],
    ],
)
def test_ties_gaps_and_extreme_scales(values: list[float]) -> None:
    """Near-ties, rank one and any scale: the quotient at the vector is as large as the eigenvalue."""
    G = with_spectrum(values)
    bound, x = certified_eigenpair(G)
    assert bound >= max(values) * (1 - 1e-14)
    assert bound <= max(values) * (1 + 1e-11)
    assert float(x @ (G / max(values)) @ x) == pytest.approx(1.0, abs=1e-11)


@pytest.mark.parametrize("n", [2, 3, 8, 31])
def test_a_leading_vector_of_alternating_signs_is_found(n: int) -> None:
    """The second difference has eigenvalue 2 + 2 cos(pi / (n + 1)), whose vector alternates: no start is orthogonal."""
    off = torch.diag(torch.ones(n - 1, dtype=torch.float64), 1)
    bound, x = certified_eigenpair(2 * torch.eye(n, dtype=torch.float64) - off - off.mT)
    exact = 2 + 2 * math.cos(math.pi / (n + 1))
    assert exact * (1 - 1e-15) <= bound <= exact * (1 + 1e-11)
    assert bool((x[1:] * x[:-1] < 0).all())


def test_the_bound_holds_in_exact_arithmetic() -> None:
    """The shifted matrix is positive definite over the rationals: all pivots of elimination are positive."""
    for seed in range(20):
        A = torch.randn(6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        G = A @ A.mT
        G = (G + G.mT) / 2
        bound, _ = certified_eigenpair(G)
        rows = [[Fraction(bound) * (i == j) - Fraction(float(G[i, j])) for j in range(6)] for i in range(6)]
        for k in range(6):
            assert rows[k][k] > 0
            for i in range(k + 1, 6):
                factor = rows[i][k] / rows[k][k]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]


def test_where_no_factorisation_succeeds_the_certificate_still_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an attempt at a factor both parts come from the slower way."""
    monkeypatch.setattr(eigenpair, "RAISES", 0)
    G = with_spectrum([5.0, 2.0, 1.0])
    bound, x = certified_eigenpair(G)
    assert 5.0 * (1 - 1e-14) <= bound <= 5.0 * (1 + 1e-9)
    assert float(x @ G @ x) == pytest.approx(5.0, rel=1e-13)


def test_zero_is_zero() -> None:
    """The zero matrix has the eigenvalue zero, and the bound is as small as a number can be."""
    bound, x = certified_eigenpair(torch.zeros(3, 3, dtype=torch.float64))
    assert 0.0 <= bound < 1e-300
    assert float(x.norm()) == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_none_are_refused(bad: float) -> None:
    """NaN and infinity have no eigenvalues."""
    G = torch.eye(3, dtype=torch.float64)
    G[1, 1] = bad
    with pytest.raises(NonFiniteError, match="finite"):
        certified_eigenpair(G)


def test_the_generator_of_the_user_is_left_alone() -> None:
    """The start vector comes from a generator of its own."""
    before = torch.get_rng_state()
    certified_eigenpair(torch.eye(4, dtype=torch.float64))
    assert torch.equal(before, torch.get_rng_state())
