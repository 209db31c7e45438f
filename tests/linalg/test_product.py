"""Products of many matrices against rational arithmetic and dense singular values."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
import torch
from torch import Tensor

from normscope.linalg.product import chain_norm

mpmath.mp.dps = 50


def _matrices(*sides: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(m, n, generator=generator, dtype=torch.float64) for n, m in itertools.pairwise(sides)]


@pytest.mark.parametrize("sides", [(3, 4), (5, 2, 7), (1, 6, 1, 3), (4, 4, 4, 4, 4)])
def test_short_products(sides: tuple[int, ...]) -> None:
    """The bounds surround the norm of the dense product."""
    matrices = _matrices(*sides)
    whole = matrices[0]
    for matrix in matrices[1:]:
        whole = matrix @ whole
    truth = float(torch.linalg.matrix_norm(whole, 2))
    bounds = chain_norm(matrices)
    assert bounds.lower <= truth * (1 + 1e-13)
    assert truth <= bounds.upper * (1 + 1e-13)
    assert bounds.width < 1e-9


@pytest.mark.parametrize("factor", [2.0, 3.0, 1e-3, 1e150, 1e-150])
def test_long_products_of_rotations(factor: float) -> None:
    """A thousand rotations times a factor: the norm is the factor's power, far outside the float range."""
    angle = torch.tensor(0.7, dtype=torch.float64)
    rotation = torch.tensor([[angle.cos(), -angle.sin()], [angle.sin(), angle.cos()]], dtype=torch.float64)
    matrix = rotation * factor
    a, b = (mpmath.mpf(v) for v in matrix[:, 0].tolist())
    exact = 500 * mpmath.log(a * a + b * b)  # |(a + ib)^1000| with fifty digits
    bounds = chain_norm([matrix] * 1000)
    assert bounds.log_lower <= exact <= bounds.log_upper
    assert bounds.log_upper - bounds.log_lower < 1e-6


def test_a_product_that_rounds_to_zero_is_not_zero() -> None:
    """The row sums to -2.8e-17 in truth and to 0.0 in float64."""
    column = torch.tensor([[0.1], [0.2], [0.30000000000000004]], dtype=torch.float64)
    row = torch.tensor([[1.0, 1.0, -1.0]], dtype=torch.float64)
    assert chain_norm([column, row]).upper >= 2.7e-17
    assert chain_norm([torch.zeros(2, 3, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)]).upper == 0.0


def test_errors_the_matrices_bring_along_are_carried_on() -> None:
    """An error of the first factor reaches the end times the norm of the rest."""
    one, two = torch.eye(2, dtype=torch.float64), 2 * torch.eye(2, dtype=torch.float64)
    bounds = chain_norm([one, two], log_errors=[math.log(1e-3), -math.inf])
    assert bounds.upper >= 2 * (1 + 1e-3)
    assert bounds.lower <= 2 * (1 - 1e-3)
    assert bounds.width < 2e-2
    hopeless = chain_norm([one, two], log_errors=[0.0, -math.inf])
    assert hopeless.upper >= 4.0 - 1e-9  # (1 + 1) * 2
    assert chain_norm([one, two], log_errors=[math.inf, -math.inf]).log_upper == math.inf


def _exact_norm(matrices: list[Tensor]) -> mpmath.mpf:
    """Return the norm of the product of the matrices as stored, with fifty digits."""
    whole = mpmath.eye(matrices[0].shape[1])
    for matrix in matrices:
        whole = mpmath.matrix(matrix.tolist()) * whole
    return max(mpmath.svd_r(whole, compute_uv=False))


def test_what_vanished_twice_is_still_there() -> None:
    """The row times the column is -2.8e-17 in truth and 0.0 in float64; so are the products of all later factors."""
    column = torch.tensor([[0.1], [0.2], [0.30000000000000004]], dtype=torch.float64)
    row = torch.tensor([[1.0, 1.0, -1.0]], dtype=torch.float64)
    for repeats in (1, 2, 3, 5):
        matrices = [column, row] * repeats
        exact = _exact_norm(matrices)
        assert exact > 0
        assert chain_norm(matrices).log_upper >= mpmath.log(exact)


@pytest.mark.parametrize("seed", range(12))
def test_products_that_cancel(seed: int) -> None:
    """Factors that nearly undo or annihilate each other, in any order: the bounds surround the exact norm."""
    generator = torch.Generator().manual_seed(seed)
    matrices: list[Tensor] = []
    for _ in range(12):
        A = torch.randn(3, 3, generator=generator, dtype=torch.float64)
        Q = torch.linalg.qr(A)[0]
        keep, kill = (
            torch.diag(torch.tensor([1.0, 1.0, 0.0])).double(),
            torch.diag(torch.tensor([0.0, 0.0, 1.0])).double(),
        )
        choice = int(torch.randint(4, (), generator=generator))
        matrices += [[A], [A, torch.linalg.inv(A)], [Q @ keep @ Q.T, Q @ kill @ Q.T], [1e8 * Q, 1e-8 * Q.T]][choice]
    log_exact = mpmath.log(_exact_norm(matrices))
    bounds = chain_norm(matrices)
    assert bounds.log_lower <= log_exact <= bounds.log_upper


@pytest.mark.parametrize("seed", range(6))
def test_no_perturbation_within_the_errors_leaves_the_bounds(seed: int) -> None:
    """Each factor moved by as much as its error allows, in a direction of rank one."""
    matrices = _matrices(3, 4, 2, 3, 3, seed=seed)
    errors = [1e-3, 1e-5, 0.0, 1e-2]
    bounds = chain_norm(matrices, log_errors=[math.log(e) if e else -math.inf for e in errors])
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20):
        moved = []
        for matrix, error in zip(matrices, errors, strict=True):
            u, v = (torch.randn(n, generator=generator, dtype=torch.float64) for n in matrix.shape)
            moved.append(matrix + 0.999 * error * torch.outer(u / u.norm(), v / v.norm()))
        log_exact = mpmath.log(_exact_norm(moved))
        assert bounds.log_lower <= log_exact <= bounds.log_upper
