"""Cholesky certificates against eigenvalues known exactly or computed densely."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from normscope.core.errors import InputError, NonFiniteError
from normscope.linalg.cholesky import certify_largest_eigenvalue, cholesky_margin


def gram(n: int, seed: int, dtype: torch.dtype, batch: tuple[int, ...] = ()) -> torch.Tensor:
    """Return random positive semidefinite matrices."""
    A = torch.randn(*batch, n, n, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return A @ A.mH


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("n", [1, 2, 17, 120])
@pytest.mark.parametrize("quality", [0.0, 0.9, 1.0, 1.0 - 1e-9])
def test_certificate_is_above_and_close_from_any_guess_below(dtype: torch.dtype, n: int, quality: float) -> None:
    """From a good, a bad or no guess, the bound is above the largest eigenvalue and within 1e-6 of it."""
    G = gram(n, n, dtype, (3,))
    truth = torch.linalg.eigvalsh(G)[:, -1]
    bound = certify_largest_eigenvalue(G, truth * quality)
    assert bool((bound >= truth * (1 - 1e-14 * n)).all())
    assert bool((bound <= truth * (1 + 1e-6)).all())


def test_certificate_holds_in_exact_arithmetic_for_a_known_spectrum() -> None:
    """The second-difference matrix has the eigenvalue 2 + 2 cos(pi/(n+1)), and exact entries."""
    for n in (5, 64, 300):
        G = 2 * torch.eye(n, dtype=torch.float64) - torch.diag(torch.ones(n - 1, dtype=torch.float64), 1)
        G = G - torch.diag(torch.ones(n - 1, dtype=torch.float64), -1)
        exact = 2 + 2 * math.cos(math.pi / (n + 1))
        bound = float(certify_largest_eigenvalue(G, exact))
        assert exact * (1 - 1e-15) <= bound <= exact * (1 + 1e-10)


def test_a_guess_above_is_kept_as_a_valid_bound() -> None:
    """A guess that is too large is certified as it is: nothing is claimed to be tight."""
    G = gram(6, 1, torch.float64)
    truth = float(torch.linalg.eigvalsh(G)[-1])
    assert float(certify_largest_eigenvalue(G, 2 * truth)) == pytest.approx(2 * truth, rel=1e-9)


def test_only_the_lower_triangle_is_read() -> None:
    """The matrix meant is the Hermitian one of the lower triangle."""
    G = gram(5, 2, torch.float64)
    truth = float(torch.linalg.eigvalsh(G)[-1])
    assert float(certify_largest_eigenvalue(G.tril(), truth)) == pytest.approx(truth, rel=1e-9)


def test_the_error_of_the_gram_matrix_is_added() -> None:
    """Whatever is said to be wrong with the matrix comes on top."""
    G = torch.eye(3, dtype=torch.float64)
    assert float(certify_largest_eigenvalue(G, 1.0, gram_error=0.25)) >= 1.25


def test_margin_covers_the_backward_error_of_the_factor() -> None:
    """R R^T computed exactly differs from A by less than the margin, in the Frobenius norm, as rationals."""
    n = 12
    A = gram(n, 3, torch.float64)
    L, info = torch.linalg.cholesky_ex(A)
    assert int(info) == 0
    rows = [[Fraction(x) for x in row] for row in L.tolist()]
    square = Fraction(0)
    for i in range(n):
        for j in range(i + 1):
            entry = sum(rows[i][k] * rows[j][k] for k in range(j + 1)) - Fraction(float(A[i, j]))
            square += entry * entry * (1 if i == j else 2)
    assert square > 0
    assert math.sqrt(square) <= cholesky_margin(n, float(A.diagonal().sum()))


def test_margin_cannot_be_zero_on_a_singular_matrix() -> None:
    """With tau at the eigenvalue itself the factorisation may succeed by rounding: the bound is still above."""
    for seed in range(20):
        G = gram(8, seed, torch.float64)
        truth = float(torch.linalg.eigvalsh(G)[-1])
        assert float(certify_largest_eigenvalue(G, truth, slack=0.0)) >= truth * (1 - 4e-16)


def test_wrong_input_is_refused() -> None:
    """Rectangles, float32 and NaN are errors."""
    with pytest.raises(InputError, match="square"):
        certify_largest_eigenvalue(torch.ones(2, 3, dtype=torch.float64), 1.0)
    with pytest.raises(InputError, match="float64"):
        certify_largest_eigenvalue(torch.eye(2), 1.0)
    with pytest.raises(NonFiniteError):
        certify_largest_eigenvalue(torch.full((2, 2), math.nan, dtype=torch.float64), 1.0)
    assert certify_largest_eigenvalue(torch.zeros(2, 0, 0, dtype=torch.float64), 1.0).tolist() == [0.0, 0.0]
