"""Matrix norms against singular values and closed forms."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from normscope.core.errors import InputError, NonFiniteError
from normscope.linalg import dense
from normscope.linalg.bounds import NormBounds
from normscope.linalg.dense import (
    certified_eigenpair,
    gram_matrix,
    largest_matrix_norm,
    matrix_norm,
    streamed_norm,
    symmetric_product,
)
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
    with pytest.raises(InputError, match="Expected a matrix"):
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
    with pytest.raises(InputError, match="stack of matrices"):
        largest_matrix_norm(torch.ones(2, 2))
    with pytest.raises(NonFiniteError):
        largest_matrix_norm(torch.full((6, 2, 2), math.nan))


def test_a_large_gram_matrix_is_computed_by_half() -> None:
    """The same up to rounding; what lies above the blocks on the diagonal mirrors what lies below."""
    A = torch.randn(70, 1100, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = symmetric_product(A)
    assert torch.equal(found[:256, 256:], found[256:, :256].mT)
    assert torch.allclose(found, A.mT @ A, rtol=1e-13, atol=1e-12)


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
    monkeypatch.setattr(dense, "RAISES", 0)
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


def test_the_error_of_the_gram_matrix_is_part_of_the_certificate() -> None:
    """A Gram matrix known up to 0.21 proves no less than the root of its eigenvalue and that."""
    one = LinearMap.from_function(lambda x: 1.0 * x, (3,), dtype=torch.float64)
    lower, upper = dense._by_eigenpair(one, torch.eye(3, dtype=torch.float64), 0.21, 0.0)
    assert lower <= 1.0
    assert 1.1 <= upper < 1.1001


@pytest.mark.parametrize("shape", [(300, 40), (40, 300), (50, 50), (1, 70), (70, 1), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_blocks_enclose_the_dense_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Encloses the dense norm."""
    A = random(shape).to(dtype)
    truth = float(torch.linalg.matrix_norm(A.double(), ord=2))
    bounds = streamed_norm(A, numbers=64)
    assert bounds.lower <= truth * (1 + 1e-12)
    assert bounds.upper >= truth * (1 - 1e-12)
    assert bounds.width < 1e-6


def test_blocks_do_not_change_the_answer() -> None:
    """Blocks do not change the answer."""
    A = random((200, 30))
    one, many = streamed_norm(A, numbers=10**9), streamed_norm(A, numbers=30)
    assert math.isclose(one.upper, many.upper, rel_tol=1e-9)


@pytest.mark.parametrize("exponent", [-1070, -1000, 1000])
def test_extreme_scales_in_blocks_neither_overflow_nor_vanish(exponent: int) -> None:
    """Extreme scales neither overflow nor vanish."""
    A = torch.ldexp(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), torch.tensor(exponent))
    bounds = streamed_norm(A)
    log = (exponent + 0.5) * math.log(2)
    assert bounds.log_lower <= log <= bounds.log_upper
    assert bounds.log_upper - bounds.log_lower < 1e-8


def test_nearly_equal_singular_values_are_still_enclosed_in_blocks() -> None:
    """Nearly equal singular values are still enclosed."""
    Q = torch.linalg.qr(random((60, 60)))[0]
    values = torch.ones(60, dtype=torch.float64)
    values[0] = 1 + 1e-8
    A = (Q * values) @ torch.linalg.qr(random((60, 60), 1))[0]
    bounds = streamed_norm(A)
    assert bounds.lower <= 1 + 1e-8 + 1e-14
    assert bounds.upper >= 1 + 1e-8 - 1e-14
    assert bounds.width < 1e-6


def test_zero_and_empty_in_blocks() -> None:
    """Zero and empty."""
    assert streamed_norm(torch.zeros(4, 3)).upper == 0.0
    assert streamed_norm(torch.zeros(0, 3)).upper == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_blocks_that_are_not_finite_are_refused(bad: float) -> None:
    """Refuses what is not finite."""
    A = torch.ones(5, 4)
    A[3, 2] = bad
    with pytest.raises(NonFiniteError):
        streamed_norm(A, numbers=4)


@pytest.mark.parametrize("shape", [(40, 30), (30, 40)])
def test_the_worst_rounding_of_a_gram_matrix_is_allowed_for(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inner products of n equal positive terms may err by n u times their value: on all-equal entries n u ||A||^2."""
    given: list[tuple[LinearMap, float]] = []
    original = dense.gram_norm

    def noted(mapping: LinearMap, gram: torch.Tensor, error: float, *rest: float, **more: int) -> NormBounds:
        given.append((mapping, error))
        return original(mapping, gram, error, *rest, **more)

    monkeypatch.setattr(dense, "gram_norm", noted)
    matrix_norm(torch.full(shape, 0.7, dtype=torch.float64) + 1e-3 * random(shape))
    ((mapping, error),) = given
    assert error >= max(shape) * 2.0**-53 * float(torch.linalg.matrix_norm(mapping.matrix(), 2)) ** 2
