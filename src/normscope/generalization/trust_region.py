"""Quadratic functions on a ball: their exact extremes, which the errors of linear models need."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.statement import statement

#: Relative size below which a component of the linear term is taken as zero.
_TINY = 1e-14


@statement("normscope", "Proposition GEN-1", holds="symmetric matrices; up to rounding")
def least_on_ball(matrix: Tensor, vector: Tensor, radius: float) -> Tensor:
    """Return a minimizer of ``w^T A w - 2 b^T w`` over ``||w|| <= B``, for any symmetric ``A``.

    ``w`` is a minimizer if and only if ``(A + m I) w = b`` for some ``m >= 0`` with ``A + m I`` positive semidefinite
    and ``m (B - ||w||) = 0``. With the eigenvalues of ``A`` the norm of ``w(m)`` is a decreasing function of ``m``,
    whose crossing of ``B`` is found by bisection; where it stays below, an eigenvector of the least eigenvalue
    fills up.

    Args:
        matrix: ``A``.
        vector: ``b``.
        radius: ``B``, positive.

    Raises:
        InputError: if the shapes do not fit, or the radius is not positive.

    >>> least_on_ball(torch.eye(2, dtype=torch.float64), torch.tensor([3.0, 4.0], dtype=torch.float64), 1.0).tolist()
    [0.6, 0.8]
    """
    if matrix.dim() != 2 or matrix.shape != (vector.numel(),) * 2 or not (math.isfinite(radius) and radius > 0):
        raise InputError(f"Expected a square matrix, a matching vector and a positive radius, got radius {radius}.")
    eigenvalues, basis = torch.linalg.eigh(matrix.double())
    rotated = basis.T @ vector.double()
    scale = max(float(eigenvalues.abs().max()), float(rotated.abs().max()), 1e-300)
    least = float(eigenvalues[0])

    def norm(shift: float) -> float:
        return float(torch.linalg.vector_norm(_divided(rotated, eigenvalues + shift, scale)))

    start = max(0.0, -least)
    inside = _divided(rotated, eigenvalues + start, scale)
    blocked = (eigenvalues + start <= _TINY * scale) & (rotated.abs() > _TINY * scale)
    if not bool(blocked.any()) and float(torch.linalg.vector_norm(inside)) <= radius:
        if least < 0:  # the minimum is on the sphere: go along a direction that costs nothing to first order
            free = math.sqrt(max(0.0, radius**2 - float(inside @ inside)))
            inside = inside.clone()
            inside[0] += free if float(inside[0]) >= 0 else -free
        return basis @ inside
    low, high = start, start + scale + float(torch.linalg.vector_norm(rotated)) / radius
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if norm(middle) > radius else (low, middle)
    return basis @ _divided(rotated, eigenvalues + high, scale)


def _divided(vector: Tensor, by: Tensor, scale: float) -> Tensor:
    """Return a quotient, zero where both parts vanish, huge where only the divisor does."""
    zero = by <= _TINY * scale
    small = zero & (vector.abs() <= _TINY * scale)
    return torch.where(small, torch.zeros_like(vector), vector / torch.where(zero, torch.full_like(by, 1e-300), by))


@statement("normscope", "Proposition GEN-1", holds="symmetric matrices; up to rounding")
def largest_magnitude_on_ball(matrix: Tensor, vector: Tensor, constant: float, radius: float) -> float:
    """Return ``max |w^T A w - 2 b^T w + c|`` over ``||w|| <= B``: the larger of its two extremes.

    >>> zero = torch.zeros(1, dtype=torch.float64)
    >>> largest_magnitude_on_ball(torch.eye(1, dtype=torch.float64), zero, -3.0, 2.0)
    3.0
    """
    extremes = []
    for sign in (1.0, -1.0):
        w = least_on_ball(sign * matrix, sign * vector, radius)
        extremes.append(float(w @ matrix.double() @ w - 2 * (vector.double() @ w)) + constant)
    return max(map(abs, extremes))
