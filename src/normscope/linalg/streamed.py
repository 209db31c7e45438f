"""Norms of matrices too large to hold in float64: the Gram matrix is summed over blocks of rows."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from normscope.core.errors import InputError, NonFiniteError
from normscope.core.statement import statement
from normscope.linalg.bounds import NormBounds
from normscope.linalg.cholesky import certify_largest_eigenvalue
from normscope.linalg.dense import certified_eigenpair, symmetric_product
from normscope.linalg.lanczos import lanczos_norm
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF, gamma, root_above
from normscope.operators.linear_map import LinearMap

#: Numbers converted to float64 at once (32 MiB).
BLOCK_NUMBERS = 2**22
#: Widths beyond which the attained value is improved by an eigenvector computation.
GOOD_WIDTH = 1e-6


@statement("rump2006", "Corollary 2.4", holds="float64; the Gram matrix and its rounding error are bounded")
def streamed_norm(matrix: Tensor, *, numbers: int = BLOCK_NUMBERS, seed: int = 0) -> NormBounds:
    r"""Return certified bounds on the spectral norm of a large matrix; only its smaller Gram matrix is held in float64.

    With the rows in blocks :math:`A_b` and ``m`` the longer side, :math:`A^T A = \sum_b A_b^T A_b`, every entry a sum
    of ``m`` products: the computed sum errs by at most :math:`\gamma_m \|A\|_F^2` in norm, however it is ordered. From
    above: Cholesky of :math:`\tau I - A^T A`. From below: :math:`\|A v\| / \|v\|` at a computed eigenvector.

    The bounds are those of :func:`normscope.linalg.dense.matrix_norm`, usually about 1e-9 apart; so many ``numbers``
    are converted to float64 at once.

    >>> bounds = streamed_norm(torch.tensor([[3.0, 0.0], [4.0, 5.0]]), numbers=2)
    >>> bounds.lower <= math.sqrt(45) <= bounds.upper, bounds.width < 1e-8
    (True, True)
    """
    if matrix.ndim != 2:
        raise InputError(f"Expected a matrix, got a tensor of shape {tuple(matrix.shape)}. Reshape it first.")
    A = matrix.detach()
    A = A if A.shape[0] >= A.shape[1] else A.mT
    if A.numel() == 0:
        return NormBounds.exact(0.0, method="zero")
    exponent = _exponent(A, numbers)
    if exponent is None:
        return NormBounds.exact(0.0, method="zero")
    m, n = A.shape
    gram = torch.zeros(n, n, dtype=torch.float64, device=A.device)
    for block in _blocks(A, numbers, exponent):
        gram += symmetric_product(block)
    # The trace is the square of the Frobenius norm, all of its terms non-negative.
    frobenius = math.sqrt(float(gram.diagonal().sum())) * (1.0 + gamma(m + n))
    gram_error = gamma(m) * frobenius**2 * (1.0 + 1e-12)
    run = lanczos_norm(LinearMap.from_matrix(gram), tolerance=1e-9, max_steps=200, seed=seed, apply_error=0.0)
    lower = _attained(A, run.vector, numbers, exponent, frobenius)
    upper = root_above(float(certify_largest_eigenvalue(gram, lower * lower, gram_error=gram_error)))
    if upper > lower * (1.0 + GOOD_WIDTH):
        square, vector = certified_eigenpair(gram)
        lower = max(lower, _attained(A, vector, numbers, exponent, frobenius))
        upper = min(upper, root_above(square + gram_error * (1.0 + 2.0**-50)))
    return NormBounds.between(lower, upper, "cholesky in blocks").scaled(exponent * math.log(2.0))


def _exponent(A: Tensor, numbers: int) -> int | None:
    """Return the power of two above the largest entry, or ``None`` for the zero matrix."""
    top = 0.0
    for block in _blocks(A, numbers, 0):
        largest = float(block.abs().max())
        if not math.isfinite(largest):
            raise NonFiniteError("Expected finite weights, got NaN or infinity. Check the weights of this layer.")
        top = max(top, largest)
    return math.frexp(top)[1] if top > 0 else None


def _blocks(A: Tensor, numbers: int, exponent: int) -> Iterator[Tensor]:
    """Yield blocks of rows in float64, divided by a power of two."""
    # In two halves: 2**-exponent alone overflows for subnormal weights.
    half = exponent // 2
    step = max(1, numbers // A.shape[1])
    for start in range(0, A.shape[0], step):
        block = A[start : start + step].to(torch.float64)
        yield block * math.ldexp(1.0, -half) * math.ldexp(1.0, half - exponent) if exponent else block


def _attained(A: Tensor, vector: Tensor, numbers: int, exponent: int, frobenius: float) -> float:
    r"""Return :math:`\|A v\| / \|v\|`, lowered by its rounding (``gamma_n`` in each entry of ``A v``)."""
    length = float(torch.linalg.vector_norm(vector))
    if length == 0.0:
        return 0.0
    square = math.fsum(float((block @ vector).square().sum()) for block in _blocks(A, numbers, exponent))
    apply_error = gamma(A.shape[1]) * frobenius
    value = math.sqrt(square) / length * (1.0 - (sum(A.shape) + 16) * UNIT_ROUNDOFF) - apply_error
    return max(0.0, value * (1.0 - 4 * UNIT_ROUNDOFF))
