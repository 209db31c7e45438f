"""The norm of a product of many matrices, in the log domain and with its rounding accounted for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.core.value import log_sum
from normscope.lipschitz.spectral.bounds import NormBounds
from normscope.lipschitz.spectral.dense import matrix_norm
from normscope.lipschitz.spectral.rounding import gamma


def chain_norm(matrices: Sequence[Tensor], seed: int = 0, *, log_errors: Sequence[float] | None = None) -> NormBounds:
    r"""Return bounds on :math:`\|A_K \cdots A_1\|_2`, however large or small the product.

    Both :math:`M_j = A_j \cdots A_1` and :math:`P_j = A_K \cdots A_{j+1}` are kept as a matrix of unit scale and a
    logarithm. The error made in forming :math:`M_j` from :math:`M_{j-1}` reaches the end through :math:`P_j`, so

    .. math:: \|\Delta\| \le \sum_j \gamma_{n_j + 4}\, \|P_j\|_F \, \|A_j\|_F \, \|M_{j-1}\|_F,

    which stays relatively small for long products although the product of the norms does not.

    Args:
        matrices: :math:`A_1, ..., A_K`, the first applied first.
        seed: of the iterations inside.
        log_errors: logarithms of bounds on the errors the matrices carry already, in norm; none by default.

    >>> bounds = chain_norm([2 * torch.eye(2, dtype=torch.float64)] * 5000)
    >>> round(bounds.log_upper / math.log(2), 6), bounds.width < 1e-6
    (5000.0, True)
    """
    forward = _products([m.to(torch.float64) for m in matrices])
    backward = _products([m.to(torch.float64).mT for m in reversed(matrices)])[::-1]
    whole, log_scale = forward[-1]
    given = [-math.inf] * len(matrices) if log_errors is None else log_errors
    errors = []
    for j, (matrix, error) in enumerate(zip(matrices, given, strict=True)):
        before = (None, 0.0) if j == 0 else forward[j - 1]
        after = (None, 0.0) if j == len(matrices) - 1 else backward[j + 1]
        around = sum(_log_size(m) + log if m is not None else 0.0 for m, log in (before, after))
        errors.append(log_sum((_log_size(matrix) + math.log(gamma(matrix.shape[1] + 4)), error)) + around)
    if not bool(whole.any()):  # what rounding took away may still be there
        upper = log_sum(errors) + math.log(2.0)
        return NormBounds.certified(-math.inf, upper, "zero" if upper == -math.inf else "chain")
    bounds = matrix_norm(whole, seed=seed)
    # Twice the first-order error covers that the products in it are computed ones.
    relative = 2.0 * math.exp(min(50.0, log_sum(errors) - log_scale - bounds.log_upper)) + 1e-15 * len(matrices)
    if relative >= 0.5:
        parts = [
            log_sum((matrix_norm(m, seed=seed).log_upper, e), math.inf) for m, e in zip(matrices, given, strict=True)
        ]
        upper = math.inf if math.inf in parts else math.fsum(parts)
        return NormBounds.certified(-math.inf, upper, "product of norms")
    return bounds.widen(relative).scaled(log_scale)


def _products(matrices: Sequence[Tensor]) -> list[tuple[Tensor, float]]:
    """Return all partial products as (matrix of unit scale, logarithm of its factor)."""
    partial: list[tuple[Tensor, float]] = []
    current, log = None, 0.0
    for matrix in matrices:
        current = matrix.clone() if current is None else matrix @ current
        size = float(current.abs().max())
        if size > 0.0:
            exponent = math.frexp(size)[1]  # powers of two: scaling rounds nothing
            current = torch.ldexp(current, torch.tensor(-exponent, dtype=torch.float64))
            log += exponent * math.log(2.0)
        partial.append((current, log))
    return partial


def _log_size(matrix: Tensor) -> float:
    """Return the logarithm of the Frobenius norm."""
    size = float(torch.linalg.matrix_norm(matrix.to(torch.float64)))
    return math.log(size) if size > 0 else -math.inf
