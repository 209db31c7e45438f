"""Matrix norms against singular values and closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.core.errors import InputError, NonFiniteError
from normscope.linalg.dense import gram_matrix, largest_matrix_norm, matrix_norm, symmetric_product
from normscope.operators.linear_map import LinearMap


def random(shape: tuple[int, int], seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return a seeded Gaussian matrix."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("shape", [(2, 2), (5, 3), (3, 70), (64, 64), (193, 400), (700, 250)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_certified_to_one_billionth(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Both bounds surround the dense singular value, at most 1e-9 apart, for every dtype as it is stored."""
    A = random(shape, dtype=dtype)
    truth = float(torch.linalg.matrix_norm(A.double(), 2))
    bounds = matrix_norm(A)
    assert bounds.lower <= truth * (1 + 1e-14)
    assert bounds.upper >= truth * (1 - 1e-14)
    assert bounds.width <= 1e-9
    assert bounds.delta == 0.0


def test_closed_forms_are_met() -> None:
    """Vectors, monomial matrices and zero need no eigenvalues."""
    assert matrix_norm(torch.tensor([[3.0, 4.0]])).upper == pytest.approx(5.0, rel=1e-14)
    assert matrix_norm(torch.tensor([[3.0], [4.0]])).lower == pytest.approx(5.0, rel=1e-14)
    assert matrix_norm(torch.zeros(4, 3)).upper == 0.0
    assert matrix_norm(torch.zeros(0, 3)).upper == 0.0
    permuted = torch.diag(torch.tensor([1.0, -7.0, 2.0]))[[2, 0, 1]]
    bounds = matrix_norm(permuted)
    assert bounds.lower <= 7.0 <= bounds.upper
    assert (bounds.method, bounds.width < 1e-14) == ("monomial", True)


def test_hilbert_and_second_difference_matrices() -> None:
    """The first-difference matrix has norm 2 cos(pi/(2n)); rounding cannot push a bound past it."""
    for n in (10, 300):
        D = torch.eye(n, dtype=torch.float64)[: n - 1] - torch.eye(n, dtype=torch.float64)[1:]
        exact = 2 * math.cos(math.pi / (2 * n))
        bounds = matrix_norm(D)
        assert bounds.lower <= exact * (1 + 1e-15)
        assert bounds.upper >= exact * (1 - 1e-15)
        assert bounds.width <= 1e-9


@pytest.mark.parametrize("spread", [0.0, 1e-12, 1e-7, 1e-3])
def test_crowded_largest_singular_values(spread: float) -> None:
    """Orthogonal matrices and near-ties at the top are as certain as any other."""
    n = 260
    Q = torch.linalg.qr(random((n, n), 1)).Q
    A = (Q * torch.linspace(1 - spread, 1, n, dtype=torch.float64)) @ torch.linalg.qr(random((n, n), 2)).Q
    truth = float(torch.linalg.matrix_norm(A, 2))
    bounds = matrix_norm(A)
    assert bounds.lower <= truth * (1 + 1e-14) <= bounds.upper * (1 + 2e-14)
    assert bounds.width <= 2e-9


@pytest.mark.parametrize("exponent", [-1050, -500, 500, 1000])
def test_extreme_scales(exponent: int) -> None:
    """Squares would overflow or vanish; the logarithm does not."""
    A = random((6, 4), 3)
    shifted = A * math.ldexp(1.0, exponent // 2) * math.ldexp(1.0, exponent - exponent // 2)
    truth = math.log(float(torch.linalg.matrix_norm(A, 2))) + exponent * math.log(2.0)
    bounds = matrix_norm(shifted)
    slack = 1e-12 if exponent > -1000 else 1e-6  # subnormal entries have lost digits already
    assert bounds.log_lower - slack <= truth <= bounds.log_upper + slack
    assert bounds.width <= 1e-9


def test_wide_range_of_rows() -> None:
    """Rows of very different size: the small ones may be lost, the norm is not."""
    A = random((30, 20), 4) * torch.logspace(0, -200, 30, dtype=torch.float64)[:, None]
    truth = float(torch.linalg.matrix_norm(A, 2))
    bounds = matrix_norm(A)
    assert bounds.lower <= truth * (1 + 1e-14) <= bounds.upper * (1 + 2e-14)
    assert bounds.width <= 1e-9


def test_gram_matrix_of_a_map_in_chunks() -> None:
    """Built two columns at a time, it is A^T A."""
    A = random((7, 5), 5)
    torch.testing.assert_close(gram_matrix(LinearMap.from_matrix(A), numbers=14), A.mT @ A, rtol=1e-14, atol=1e-14)


def test_wrong_input_is_refused() -> None:
    """More than two axes, NaN and infinity are errors."""
    with pytest.raises(InputError, match="two axes"):
        matrix_norm(torch.ones(2, 2, 2))
    for bad in (math.nan, math.inf):
        with pytest.raises(NonFiniteError):
            matrix_norm(torch.tensor([[1.0, bad], [0.0, 1.0]]))


@pytest.mark.parametrize("shape", [(1, 5, 7), (3, 4, 4), (40, 6, 3), (9, 1, 5), (5, 30, 300), (5, 260, 270)])
@pytest.mark.parametrize("scale", [1.0, 1e-160, 1e150])
def test_largest_of_several_matrices(shape: tuple[int, int, int], scale: float) -> None:
    """Whether one by one or all in one batch, both bounds surround the largest dense singular value."""
    A = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    truth = math.log(float(torch.linalg.matrix_norm(A, 2).max())) + math.log(scale)
    bounds = largest_matrix_norm(A * scale)
    assert bounds.log_lower <= truth + 1e-13 * (1 + abs(truth))
    assert bounds.log_upper >= truth - 1e-13 * (1 + abs(truth))
    assert bounds.width <= 1e-9
    assert bounds.delta == 0.0


def test_a_runner_up_within_rounding_cannot_hide() -> None:
    """Of many nearly equal matrices the certificate covers every one, also the one a hair above the attained."""
    base = random((8, 8), 4)
    nearly = torch.stack([base * (1 + k * 2.0**-52) for k in range(20)])
    truth = max(matrix_norm(matrix).lower for matrix in nearly)
    assert largest_matrix_norm(nearly).upper >= truth


def test_stacks_without_entries_and_with_bad_ones() -> None:
    """Zero is zero; another number of axes and NaN are refused."""
    assert largest_matrix_norm(torch.zeros(6, 3, 4)).upper == 0.0
    assert largest_matrix_norm(torch.zeros(0, 3, 4)).upper == 0.0
    with pytest.raises(InputError, match="three axes"):
        largest_matrix_norm(torch.ones(2, 2))
    with pytest.raises(NonFiniteError):
        largest_matrix_norm(torch.full((6, 2, 2), math.nan))


def test_a_large_gram_matrix_is_computed_by_half() -> None:
    """The same up to rounding; what lies above the blocks on the diagonal mirrors what lies below."""
    A = torch.randn(70, 1100, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = symmetric_product(A)
    assert torch.equal(found[:256, 256:], found[256:, :256].mT)
    assert torch.allclose(found, A.mT @ A, rtol=1e-13, atol=1e-12)
