"""The norm of a scale after directions are shrunk, against many-digit eigenvalues."""

from __future__ import annotations

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normscope.operators.normalizers.secular_equation import shrunk_scale_norm
from operators.normalizers.truth import digits, exact_norm, kinds, scales, seeds, vectors


def exact(scale: Tensor, directions: tuple[Tensor, ...]) -> mpmath.mpf:
    """Return ``sqrt(lambda_max(G (I - sum w w^T) G))`` with fifty digits."""
    gamma, w = digits(scale), [digits(d) for d in directions]
    n = len(gamma)
    rows = [
        [gamma[i] * gamma[j] * ((1 if i == j else 0) - mpmath.fsum(d[i] * d[j] for d in w)) for j in range(n)]
        for i in range(n)
    ]
    values = mpmath.eigsy(mpmath.matrix(rows), eigvals_only=True)
    return mpmath.sqrt(max(mpmath.mpf(0), max(values)))


def orthogonal(n: int, count: int, seed: int, lengths: tuple[float, ...]) -> tuple[Tensor, ...]:
    """Return orthogonal directions of given lengths."""
    Q = torch.linalg.qr(torch.stack([vectors(n, seed + k) for k in range(count)], dim=1)).Q
    return tuple(Q[:, k] * lengths[k] * (1 - 1e-15) for k in range(count))


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.integers(1, 6), kinds, seeds, st.sampled_from((0.0, 0.3, 1.0)))
def test_one_direction(n: int, kind: str, seed: int, length: float) -> None:
    """One direction."""
    scale, w = scales(n, seed, kind), orthogonal(n, 1, seed, (length,))
    truth = exact(scale, w)
    bound = shrunk_scale_norm(scale[None], (w[0][None],)).item()
    assert bound >= truth
    assert bound**2 - truth**2 <= 1e-13 * float(scale.abs().max()) ** 2


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.integers(2, 5), kinds, seeds, st.sampled_from((0.0, 0.3, 1.0)), st.sampled_from((0.5, 1.0)))
def test_two_directions(n: int, kind: str, seed: int, first: float, second: float) -> None:
    """Two directions."""
    scale, w = scales(n, seed, kind), orthogonal(n, 2, seed, (first, second))
    truth = exact(scale, w)
    bound = shrunk_scale_norm(scale[None], (w[0][None], w[1][None])).item()
    assert bound >= truth
    assert bound**2 - truth**2 <= 1e-12 * float(scale.abs().max()) ** 2


@pytest.mark.parametrize("gap", [1e-15, 1e-12, 1e-9, 1e-6])
def test_nearly_equal_largest_scales(gap: float) -> None:
    """Nearly equal largest scales."""
    scale = torch.tensor([1.0, 1.0 - gap, 1.0 - 2 * gap, 0.5, 0.25], dtype=torch.float64)
    w = orthogonal(5, 2, 3, (1.0, 1.0))
    truth = exact(scale, w)
    bound = shrunk_scale_norm(scale[None], (w[0][None], w[1][None])).item()
    assert truth <= bound <= truth * (1 + 1e-13)


def test_a_scale_attained_three_times_survives_two_directions() -> None:
    """A scale attained three times survives two directions."""
    scale = torch.tensor([[2.0, -2.0, 2.0, 1.0]], dtype=torch.float64)
    w = orthogonal(4, 2, 0, (1.0, 1.0))
    assert 2.0 <= shrunk_scale_norm(scale, (w[0][None], w[1][None])).item() <= 2.0 * (1 + 1e-14)


def test_many_entries_agree_with_a_dense_decomposition() -> None:
    """Many entries agree with a dense decomposition."""
    n = 400
    scale, w = vectors(n, 1), orthogonal(n, 2, 2, (1.0, 0.9))
    B = torch.eye(n, dtype=torch.float64) - sum(torch.outer(d, d) for d in w)
    truth = torch.linalg.eigvalsh(scale[:, None] * B * scale).max().sqrt().item()
    bound = shrunk_scale_norm(scale[None], (w[0][None], w[1][None])).item()
    assert truth * (1 - 1e-13) <= bound <= truth * (1 + 1e-12)


def test_rows_with_different_scales_are_independent() -> None:
    """Rows with different scales are independent."""
    scale = torch.stack([scales(5, s, k) for s, k in enumerate(("general", "constant", "one-hot", "zeros"))])
    scale = torch.cat([scale, torch.zeros(1, 5, dtype=torch.float64)])
    w = torch.full((1, 5), 5**-0.5, dtype=torch.float64)
    together = shrunk_scale_norm(scale, (w,))
    assert together[-1] == 0.0
    assert torch.equal(together, torch.cat([shrunk_scale_norm(row[None], (w,)) for row in scale]))


def test_the_error_of_the_directions_is_added() -> None:
    """The error of the directions is added."""
    scale, w = vectors(4, 5)[None], (torch.full((1, 4), 0.5, dtype=torch.float64),)
    plain = shrunk_scale_norm(scale, w).item()
    wide = shrunk_scale_norm(scale, w, torch.tensor([1e-6], dtype=torch.float64)).item()
    top = float(scale.abs().max())
    assert wide**2 - plain**2 == pytest.approx(1e-6 * top**2, rel=1e-6)


def test_exact_norm_helper_agrees_with_numpy() -> None:
    """Exact norm helper agrees with numpy."""
    A = torch.arange(9.0).double().reshape(3, 3)
    rows = [digits(r) for r in A]
    assert float(exact_norm(rows)) == pytest.approx(torch.linalg.matrix_norm(A, 2).item(), rel=1e-14)
