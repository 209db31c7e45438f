"""Thick-restart Lanczos against dense eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.linalg.thick_restart import eigenpairs, lanczos_quadrature, rayleigh


def _symmetric(n: int, seed: int = 0) -> Tensor:
    a = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (a + a.T) / 2


def _start(n: int, seed: int = 1) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("size", [None, 12, 20])
def test_both_ends_agree_with_dense_eigenvalues(size: int | None) -> None:
    a = _symmetric(120)
    truth = torch.linalg.eigvalsh(a).numpy()
    found = eigenpairs(lambda v: a @ v, _start(120), largest=3, smallest=2, tolerance=1e-9, size=size, max_products=900)
    assert found.converged.all()
    expected = np.concatenate([truth[::-1][:3], truth[:2][::-1]])
    np.testing.assert_allclose(found.values, expected, rtol=1e-10)
    values, residuals = rayleigh(lambda v: a @ v, found.vectors)
    np.testing.assert_allclose(values, found.values, rtol=1e-10)
    assert (residuals <= 1e-8 * np.abs(values).max()).all()


def test_residuals_hold_an_eigenvalue_and_errors_are_told_when_it_stops_early() -> None:
    a = _symmetric(150)
    truth = torch.linalg.eigvalsh(a).numpy()
    found = eigenpairs(lambda v: a @ v, _start(150), largest=4, tolerance=1e-12, max_products=25)
    assert not found.converged.all()
    assert found.products == 25
    for value, residual in zip(found.values, found.residuals, strict=True):
        assert np.abs(truth - value).min() <= residual * (1 + 1e-9)


def test_a_projector_takes_directions_out() -> None:
    d = torch.arange(1.0, 31.0, dtype=torch.float64)
    keep = torch.ones(30, dtype=torch.float64)
    keep[29] = 0.0
    found = eigenpairs(lambda v: d * v, _start(30), largest=1, project=lambda v: keep * v)
    assert found.values[0] == pytest.approx(29.0, rel=1e-9)


def test_multiple_and_zero_eigenvalues_are_found_by_going_on_after_an_invariant_space() -> None:
    d = torch.tensor([2.0, 2.0, 2.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    found = eigenpairs(lambda v: d * v, torch.ones(6, dtype=torch.float64), largest=4)
    np.testing.assert_allclose(found.values, [2.0, 2.0, 2.0, 0.0], atol=1e-12)
    zero = eigenpairs(torch.zeros_like, torch.ones(6, dtype=torch.float64), largest=2)
    assert zero.values.tolist() == [0.0, 0.0]


def test_a_warm_start_needs_few_products() -> None:
    a = _symmetric(200)
    b = a + 1e-3 * _symmetric(200, 5)
    before = eigenpairs(lambda v: a @ v, _start(200), largest=1, tolerance=1e-6)
    after = eigenpairs(lambda v: b @ v, before.vectors[0], largest=1, tolerance=1e-2, max_products=4)
    assert after.converged.all()
    assert after.products <= 4
    assert after.values[0] == pytest.approx(float(torch.linalg.eigvalsh(b)[-1]), rel=1e-3)


def test_float32_vectors_stay_orthonormal() -> None:
    n = 200_000
    d = torch.linspace(0, 1, n) ** 8
    found = eigenpairs(lambda v: d * v, _start(n).float(), largest=3, tolerance=1e-5, max_products=60, keep_basis=True)
    assert found.basis is not None
    wide = found.basis.double()
    assert float((wide @ wide.mT - torch.eye(len(wide))).abs().max()) < 1e-6


def test_stopping_returns_what_is_known() -> None:
    a, calls = _symmetric(100), []

    def apply(v: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 30:
            raise KeyboardInterrupt
        return a @ v

    found = eigenpairs(apply, _start(100), largest=2, tolerance=1e-13)
    assert found.stopped
    assert found.products == 30
    assert found.values[0] == pytest.approx(float(torch.linalg.eigvalsh(a)[-1]), rel=1e-4)


@pytest.mark.parametrize("wanted", [0, 7])
def test_impossible_numbers_are_refused(wanted: int) -> None:
    with pytest.raises(InputError, match="between 1 and 6 eigenvalues"):
        eigenpairs(lambda v: v, torch.ones(6), largest=wanted)


def test_quadrature_is_exact_for_polynomials_up_to_degree_2m_minus_1() -> None:
    generator = torch.Generator().manual_seed(0)
    d = torch.randn(60, generator=generator, dtype=torch.float64)
    q = torch.randn(60, generator=generator, dtype=torch.float64)
    rule = lanczos_quadrature(lambda v: d * v, q, 5)
    unit = q / q.norm()
    for degree in range(10):
        exact = float((unit.square() * d**degree).sum())
        assert np.isclose(float(rule.weights @ rule.nodes**degree), exact, rtol=1e-9, atol=1e-9), degree


def test_quadrature_does_not_see_projected_directions() -> None:
    d = torch.tensor([5.0, 1.0, 2.0], dtype=torch.float64)
    keep = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    rule = lanczos_quadrature(lambda v: d * v, torch.ones(3, dtype=torch.float64), 3, project=lambda v: keep * v)
    np.testing.assert_allclose(rule.nodes, [1.0, 2.0])
    nothing = lanczos_quadrature(lambda v: d * v, torch.ones(3), 3, project=torch.zeros_like)
    assert nothing.nodes.tolist() == [0.0]
