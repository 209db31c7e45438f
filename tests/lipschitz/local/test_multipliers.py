"""The search for multipliers: its form against dense matrices, its steps against differences, its end against more."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from networks import points
from normscope.lipschitz.local import multipliers
from normscope.lipschitz.local.multipliers import QuadraticForm, search

C, M = 3, 6  # entries of y, units


def _form(seed: int, *, symmetric: bool = True) -> QuadraticForm:
    """Return a random form; of sectors [0, s] and [-s, 0], or of any."""
    N = 0.5 * points(M, M, seed=seed).triu(1).numpy()
    radius = np.random.default_rng(seed).uniform(0.1, 0.4, M)
    centre = radius * np.where(np.arange(M) % 2, 1.0, -1.0) if symmetric else 0.3 * np.cos(np.arange(M))
    rows = points(5, C + M, seed=seed + 1).numpy()
    return QuadraticForm(rows.T @ rows, C, points(M, C, seed=seed + 2).numpy(), N, centre, radius)


def _dense(form: QuadraticForm, T: np.ndarray) -> np.ndarray:
    """Return the matrix of the form over (y, w), term by term."""
    total = -form.gram
    for j in range(M):
        q = np.concatenate([form.B[j], form.N[j]])
        own = np.eye(C + M)[C + j]
        free = own - form.centre[j] * q
        total = total + T[j] * (np.outer(free, free) - form.radius[j] ** 2 * np.outer(q, q))
    return total


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_blocks_are_those_of_the_dense_form(seed: int, symmetric: bool) -> None:
    form, T = _form(seed, symmetric=symmetric), np.random.default_rng(seed).uniform(1, 2, M)
    ww, wy, yy = form.blocks(T)
    dense = _dense(form, T)
    np.testing.assert_allclose(np.triu(ww), np.triu(dense[C:, C:]), atol=1e-12)
    np.testing.assert_allclose(wy, dense[C:, :C], atol=1e-12)
    np.testing.assert_allclose(yy, dense[:C, :C], atol=1e-12)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_where_the_dense_form_stops_to_be_negative(seed: int, symmetric: bool) -> None:
    form, T = _form(seed, symmetric=symmetric), np.full(M, 60.0)
    peak = form.peak(T, 0.02)
    level = np.diag([1.0] * C + [0.0] * M)
    below, at = (np.linalg.eigvalsh(_dense(form, T) + (f * peak.value) ** 2 * level)[0] for f in (1 - 1e-6, 1 + 1e-9))
    assert below < 0 <= at


def test_steps_are_the_slopes_of_the_bound() -> None:
    form, T = _form(0), np.full(M, 60.0)
    value, free, bound = form.step(T, 1e-6)  # the largest eigenvalue alone
    for j in range(M):
        moved = T.copy()
        moved[j] += 1e-5
        slope = (form.peak(moved, 1e-6).value ** 2 - value**2) / 1e-5
        assert slope == pytest.approx(bound[j] - free[j], rel=1e-4, abs=1e-9)


def test_without_a_bound_there_is_nothing() -> None:
    form = _form(0)
    assert form.peak(np.full(M, 1e-3), 0.02) is None
    assert form.peak(np.full(M, math.inf), 0.02) is None
    nothing = QuadraticForm(np.zeros((C + M, C + M)), C, 0 * form.B, form.N, form.centre, form.radius)
    assert nothing.peak(np.ones(M), 0.02).value < 1e-100


def test_factors_in_single_precision_are_those_in_double() -> None:
    A = points(7, 7)
    form = (A @ A.T + torch.eye(7).double()).numpy()
    double, single = multipliers._factor(form), multipliers._factor(form.astype(np.float32))
    np.testing.assert_allclose(double @ double.T, form)
    torch.testing.assert_close(single.tril().double(), double, rtol=1e-4, atol=1e-5)
    assert multipliers._factor((form - 10 * np.eye(7)).astype(np.float32)) is None
    assert multipliers._factor(form - 10 * np.eye(7)) is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_search_ends_near_a_long_one_and_refining_it_comes_nearer(dtype: type) -> None:
    form = _form(1)
    form = QuadraticForm(*(a.astype(dtype) if isinstance(a, np.ndarray) else a for a in vars(form).values()))
    first = np.full(M, 60.0, dtype=dtype)
    T, level = search(form, first, 40)
    _, finer = search(form, T, 40, refine=True)
    least = search(form, first, 2_000)[1]
    assert T.dtype == dtype
    assert least * (1 - 1e-5) <= finer <= level * (1 + 1e-6)
    assert level < 1.02 * least < form.peak(first, 0.02).value
