"""Certified norms of products of many matrices, in the log domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.core.value import log_sum
from normscope.linalg.bounds import NormBounds
from normscope.linalg.dense import matrix_norm
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF, gamma, to_unit_scale

LOG_2 = math.log(2.0)


@dataclass(frozen=True)
class _Ball:
    r"""A computed product of matrices, and how far the exact one may be from it: :math:`\|A - 2^e \hat A\|_2 \le r`."""

    matrix: Tensor  #: :math:`\hat A`, its largest entry in [1/2, 1)
    exponent: int  #: e
    log_radius: float  #: logarithm of r
    log_size: float  #: logarithm of a bound on :math:`2^e \|\hat A\|_F`

    @classmethod
    def of(cls, matrix: Tensor, log_radius: float, exponent: int = 0) -> _Ball:
        """Return the ball around a matrix times a power of two; the matrix is rescaled exactly."""
        scaled, log = to_unit_scale(matrix)
        exponent += round(log / LOG_2)
        size = float(torch.linalg.matrix_norm(scaled)) if scaled.numel() else 0.0
        # A billionth covers the rounding of the sum of squares and of the logarithms.
        log_size = math.log(size) + exponent * LOG_2 + 1e-9 if size > 0 else -math.inf
        return cls(scaled, exponent, log_radius, log_size)

    @property
    def log_norm(self) -> float:
        """Return the logarithm of a bound on the norm of the exact product."""
        return log_sum((self.log_size, self.log_radius), math.inf)

    def after(self, first: _Ball) -> _Ball:
        r"""Return the product, this factor applied last.

        :math:`\|A B - \hat A \hat B\| \le \|A\| \|B - \hat B\| + \|A - \hat A\| \|\hat B\|`, and rounding adds
        :math:`\gamma_n \|\hat A\|_F \|\hat B\|_F`.
        """
        roundings = math.log(gamma(self.matrix.shape[1] + 4))
        terms = (
            _plus(self.log_norm, first.log_radius),
            _plus(self.log_radius, first.log_size),
            _plus(self.log_size, first.log_size) + roundings,
        )
        product = self.matrix @ first.matrix
        return _Ball.of(product, log_sum(terms, math.inf) + 1e-9, self.exponent + first.exponent)


@statement("normscope", "Chain of matrices", holds="float64 products, summed in any order")
def chain_norm(matrices: Sequence[Tensor], seed: int = 0, *, log_errors: Sequence[float] | None = None) -> NormBounds:
    r"""Return bounds on :math:`\|A_K \cdots A_1\|_2`, however large or small the product.

    With :math:`\hat M_j` the computed product of the first j factors and :math:`P_j = A_K \cdots A_{j+1}`,

    .. math:: \|A_K \cdots A_1 - \hat M_K\| \le \sum_j \|P_j\| (e_j + \gamma_{n_j + 4} \|A_j\|_F) \|\hat M_{j-1}\|_F,

    which stays relatively small for long products although the product of the norms does not. The norms of the
    :math:`P_j` are bounded rigorously by products over a binary tree.

    Args:
        matrices: :math:`A_1, ..., A_K`, the first applied first.
        seed: of the iterations inside.
        log_errors: logarithms of bounds :math:`e_j` on the errors the matrices carry already, in norm; none by default.

    >>> bounds = chain_norm([2 * torch.eye(2, dtype=torch.float64)] * 5000)
    >>> round(bounds.log_upper / math.log(2), 6), bounds.width < 1e-6
    (5000.0, True)
    """
    given = [-math.inf] * len(matrices) if log_errors is None else list(log_errors)
    factors = [_Ball.of(m.to(torch.float64), error) for m, error in zip(matrices, given, strict=True)]
    whole, log_error = _forward(factors)
    log_scale = whole.exponent * LOG_2
    if not bool(whole.matrix.any()):  # what rounding took away may still be there
        upper = min(log_error, _product_of_norms(matrices, given, seed))
        return NormBounds.certified(-math.inf, upper, "zero" if upper == -math.inf else "chain")
    bounds = matrix_norm(whole.matrix, seed=seed)
    relative = math.exp(min(50.0, log_error - log_scale - bounds.log_lower)) if bounds.log_lower > -math.inf else 1.0
    if relative >= 0.5:
        together = log_sum((bounds.log_upper + log_scale, log_error), math.inf) + 1e-9
        separately = _product_of_norms(matrices, given, seed)
        method = "chain" if together <= separately else "product of norms"
        return NormBounds.certified(-math.inf, min(together, separately), method)
    # The logarithm of two and its multiple are rounded: two units in the last place of the sum.
    return bounds.widen(relative + 4.0 * UNIT_ROUNDOFF * abs(log_scale)).scaled(log_scale)


def _forward(factors: Sequence[_Ball]) -> tuple[_Ball, float]:
    """Return the computed product, and the logarithm of a bound on its error."""
    later = _norms_of_the_rest(factors)
    errors = []
    whole: _Ball | None = None
    for factor, log_rest in zip(factors, later, strict=True):
        if whole is None:
            whole, log_before = factor, 0.0
            own = factor.log_radius
        else:
            log_before = whole.log_size
            own = log_sum((factor.log_radius, factor.log_size + math.log(gamma(factor.matrix.shape[1] + 4))), math.inf)
            whole = _Ball.of(factor.matrix @ whole.matrix, -math.inf, factor.exponent + whole.exponent)
        errors.append(_plus(_plus(log_rest, own), log_before))
    if whole is None:
        raise ValueError("Expected at least one factor, got an empty chain.")
    return whole, log_sum(errors, math.inf) + 1e-9


def _norms_of_the_rest(factors: Sequence[_Ball]) -> list[float]:
    """Return for every factor the logarithm of a bound on the norm of the product of those after it.

    Each is a product of at most log2 K nodes of a tree, so that radii grow with the logarithm of the length.
    """
    rest = [0.0] * len(factors)
    nodes: dict[tuple[int, int], _Ball] = {}

    def node(low: int, high: int) -> _Ball:
        if high - low == 1:
            return factors[low]
        if (low, high) not in nodes:
            middle = (low + high) // 2
            nodes[low, high] = node(middle, high).after(node(low, middle))
        return nodes[low, high]

    def visit(low: int, high: int, after: _Ball | None) -> None:
        if high - low == 1:
            rest[low] = 0.0 if after is None else after.log_norm
            return
        middle = (low + high) // 2
        visit(middle, high, after)
        last = node(middle, high)
        visit(low, middle, last if after is None else after.after(last))

    if factors:
        visit(0, len(factors), None)
    return rest


def _product_of_norms(matrices: Sequence[Tensor], log_errors: Sequence[float], seed: int) -> float:
    """Return the logarithm of the product of bounds on the norms, zero winning over infinity."""
    logs = [
        log_sum((matrix_norm(m, seed=seed).log_upper, error), math.inf)
        for m, error in zip(matrices, log_errors, strict=True)
    ]
    if -math.inf in logs:
        return -math.inf
    return (
        math.inf if math.inf in logs else math.fsum(logs) * (1.0 + 4.0 * math.copysign(UNIT_ROUNDOFF, math.fsum(logs)))
    )


def _plus(a: float, b: float) -> float:
    """Multiply in the log domain, zero winning over infinity."""
    return -math.inf if -math.inf in (a, b) else a + b
