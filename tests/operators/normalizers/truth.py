"""Independent truth for normalizers: automatic differentiation with dense SVD, and many-digit arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import torch
from hypothesis import strategies as st
from torch import Tensor

mpmath.mp.dps = 50


def jacobian_norm(function: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Return the spectral norm of the Jacobian at ``x``, by reverse mode and a dense SVD in float64."""
    jacobian = torch.func.jacrev(function)(x)
    return torch.linalg.matrix_norm(jacobian.reshape(-1, x.numel()), 2).item()


def digits(x: Tensor) -> list[mpmath.mpf]:
    """Return the entries of a float64 tensor as exact many-digit numbers."""
    return [mpmath.mpf(v) for v in x.reshape(-1).tolist()]


def exact_norm(matrix: list[list[mpmath.mpf]]) -> mpmath.mpf:
    """Return the spectral norm of a small matrix with fifty digits."""
    A = mpmath.matrix(matrix)
    values = mpmath.eigsy(A * A.T, eigvals_only=True)
    return mpmath.sqrt(max(mpmath.mpf(0), max(values)))


def exact_normalizer(x: Tensor, gamma: Tensor, eps: float, centre: bool) -> mpmath.mpf:
    """Return the Jacobian norm of layer (``centre``) or root-mean-square normalization with fifty digits."""
    point, scale = digits(x), digits(gamma)
    n = len(point)
    mean = mpmath.fsum(point) / n if centre else mpmath.mpf(0)
    y = [v - mean for v in point]
    total = mpmath.fsum(v * v for v in y) / n + mpmath.mpf(eps)
    root = mpmath.sqrt(total)
    off = mpmath.mpf(1) / n if centre else mpmath.mpf(0)
    rows = [
        [scale[i] / root * ((1 if i == j else 0) - off - y[i] * y[j] / (n * total)) for j in range(n)] for i in range(n)
    ]
    return exact_norm(rows)


def vectors(n: int, seed: int, spread: float = 1.0, offset: float = 0.0) -> Tensor:
    """Return a random float64 vector."""
    return torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * spread + offset


def scales(n: int, seed: int, kind: str) -> Tensor:
    """Return a scale of a kind: general, negative, repeated, with zeros, one-hot, dominated by one, constant."""
    gamma = vectors(n, seed + 10_000)
    if kind == "negative":
        return -gamma.abs()
    if kind == "repeated":
        return gamma.mul(1.5).round()
    if kind == "zeros":
        return torch.where(torch.arange(n) % 2 == 0, gamma, torch.zeros_like(gamma))
    if kind == "one-hot":
        return torch.nn.functional.one_hot(torch.tensor(seed % n), n).double() * 2.5
    if kind == "dominated":
        gamma[seed % n] = 40.0
    if kind == "constant":
        return torch.full_like(gamma, -1.75)
    return gamma


KINDS = ("general", "negative", "repeated", "zeros", "one-hot", "dominated", "constant")
kinds = st.sampled_from(KINDS)
seeds = st.integers(0, 10_000)
stabilizers = st.sampled_from((0.0, 1e-12, 1e-5, 1e-3, 1e-1))
spreads = st.sampled_from((1e-4, 1.0, 30.0))
offsets = st.sampled_from((0.0, -3.0, 1e3))
