"""The norm of a product of many matrices, in the log domain and with its rounding accounted for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.core.value import log_sum
from normscope.lipschitz.spectral.bounds import NormBounds
from normscope.lipschitz.spectral.dense import matrix_norm
from normscope.lipschitz.spectral.rounding import UNIT_ROUNDOFF, gamma, to_unit_scale

LOG_2 = math.log(2.0)


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
    whole, exponent = forward[-1]
    log_scale = exponent * LOG_2
    given = [-math.inf] * len(matrices) if log_errors is None else log_errors
    errors = []
    for j, (matrix, error) in enumerate(zip(matrices, given, strict=True)):
        neighbours = [*forward[max(j - 1, 0) : j], *backward[j + 1 : j + 2]]
        around = sum(_log_size(m) + power * LOG_2 for m, power in neighbours)
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
    # The logarithm of two and its multiple are rounded: two units in the last place of the sum.
    return bounds.widen(relative + 4.0 * UNIT_ROUNDOFF * abs(log_scale)).scaled(log_scale)


def _products(matrices: Sequence[Tensor]) -> list[tuple[Tensor, int]]:
    """Return all partial products as (matrix of unit scale, power of two taken out): scaling rounds nothing."""
    partial: list[tuple[Tensor, int]] = []
    current, exponent = None, 0
    for matrix in matrices:
        factor, log = to_unit_scale(matrix)
        current, more = to_unit_scale(factor if current is None else factor @ current)
        exponent += round(log / LOG_2) + round(more / LOG_2)
        partial.append((current, exponent))
    return partial


def _log_size(matrix: Tensor) -> float:
    """Return the logarithm of the Frobenius norm."""
    scaled, log = to_unit_scale(matrix)  # squares of very large or small entries leave the float range
    size = float(torch.linalg.matrix_norm(scaled))
    return math.log(size) + log if size > 0 else -math.inf
