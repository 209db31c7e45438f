"""Norms of matrices, and of maps small enough for a Gram matrix, certified up to rounding."""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from normscope.core.errors import InputError, NonFiniteError
from normscope.core.statement import statement
from normscope.linalg.bounds import NormBounds, largest_norm
from normscope.linalg.cholesky import certify_largest_eigenvalue, cholesky_factor, cholesky_margin
from normscope.linalg.lanczos import attained_norm, lanczos_norm
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF, binary_exponent, divided, gamma, root_above, to_unit_scale
from normscope.operators.linear_map import LinearMap

#: Sides up to which eigenvalues are cheaper than a Lanczos run.
EIGENVALUES_UP_TO = 256
#: Fewer matrices than this are measured one by one.
FEW = 4
#: How many numbers of a stack of matrices, or of a large matrix, to hold in float64 at once (32 MiB).
BLOCK_NUMBERS = 2**22
#: Entries beyond which a matrix is converted to float64 in blocks only (128 MiB).
LARGEST_COPIED = 2**24


@statement("rump2006", "Corollary 2.4", holds="float64; the Gram matrix and its rounding error are bounded")
def matrix_norm(matrix: Tensor, *, seed: int = 0) -> NormBounds:
    r"""Return certified bounds on the spectral norm of a matrix, about 1e-9 apart.

    :math:`\|A\|_2^2 = \lambda_{\max}(A A^T)` on the smaller side. From above: Cholesky of :math:`\tau I - A A^T` with
    every rounding accounted for. From below: :math:`\|A v\| / \|v\|` at a computed singular vector.

    Args:
        matrix: two axes, any real floating dtype (converted to float64 exactly).
        seed: the seed of the start vector of Lanczos.

    Returns:
        The bounds, deterministic.

    Raises:
        InputError: if the tensor does not have two axes.
        NonFiniteError: if an entry is NaN or infinite.

    >>> bounds = matrix_norm(torch.tensor([[3.0, 0.0], [4.0, 5.0]]))
    >>> bounds.lower <= math.sqrt(45) <= bounds.upper, bounds.width < 1e-9
    (True, True)
    """
    if matrix.ndim != 2:
        raise InputError(f"Expected a matrix, got a tensor of shape {tuple(matrix.shape)}. Reshape it first.")
    if matrix.numel() > LARGEST_COPIED:
        return streamed_norm(matrix, seed=seed)
    A, log_factor = to_unit_scale(matrix)
    if A.numel() == 0 or not bool(A.any()):
        return NormBounds.exact(0.0, method="zero")
    if min(A.shape) == 1:
        length = math.sqrt(math.fsum(x * x for x in A.flatten().tolist()))
        return NormBounds.exact(length, method="vector").scaled(log_factor)
    if _is_monomial(A):
        return NormBounds.exact(float(A.abs().max()), method="monomial").scaled(log_factor)
    A = A if A.shape[0] >= A.shape[1] else A.mT
    frobenius = float(torch.linalg.matrix_norm(A)) * (1.0 + A.numel() * UNIT_ROUNDOFF)
    gram_error = gamma(A.shape[0]) * frobenius**2
    apply_error = gamma(A.shape[1]) * frobenius
    bounds = gram_norm(LinearMap.from_matrix(A), symmetric_product(A), gram_error, apply_error, seed=seed)
    return bounds.scaled(log_factor)


@statement("rump2006", "Corollary 2.4", holds="float64; the Gram matrix and its rounding error are bounded")
def streamed_norm(matrix: Tensor, *, numbers: int = BLOCK_NUMBERS, seed: int = 0) -> NormBounds:
    r"""Return certified bounds on the spectral norm of a large matrix; only its smaller Gram matrix is held in float64.

    With the rows in blocks :math:`A_b` and ``m`` the longer side, :math:`A^T A = \sum_b A_b^T A_b`, every entry a sum
    of ``m`` products: the computed sum errs by at most :math:`\gamma_m \|A\|_F^2` in norm, however it is ordered. The
    rest is as in :func:`matrix_norm`; at most ``numbers`` entries are converted to float64 at once.

    >>> bounds = streamed_norm(torch.tensor([[3.0, 0.0], [4.0, 5.0]]), numbers=2)
    >>> bounds.lower <= math.sqrt(45) <= bounds.upper, bounds.width < 1e-8
    (True, True)
    """
    A = matrix.detach()
    A = A if A.shape[0] >= A.shape[1] else A.mT
    m, n = A.shape
    parts = A.split(max(1, numbers // max(1, n)))
    exponent = max((e for part in parts if (e := binary_exponent(part.double())) is not None), default=None)
    if exponent is None:
        return NormBounds.exact(0.0, method="zero")

    def blocks() -> Iterator[Tensor]:
        return (divided(part.double(), exponent) for part in parts)

    def apply(x: Tensor) -> Tensor:
        return torch.cat([block @ x for block in blocks()])

    def adjoint(y: Tensor) -> Tensor:
        return sum((b.mT @ part for b, part in zip(blocks(), y.split(len(parts[0])), strict=True)), y.new_zeros(n))

    gram = torch.zeros(n, n, dtype=torch.float64, device=A.device)
    for block in blocks():
        gram += symmetric_product(block)
    # The trace is the square of the Frobenius norm, all of its terms non-negative.
    frobenius = math.sqrt(float(gram.diagonal().sum())) * (1.0 + gamma(m + n))
    gram_error, apply_error = gamma(m) * frobenius**2 * (1.0 + 1e-12), gamma(n) * frobenius
    bounds = gram_norm(
        LinearMap(apply, adjoint, (n,), (m,), device=A.device),
        gram,
        gram_error,
        apply_error,
        seed=seed,
        good_width=1e-6,
    )
    return replace(bounds, method="cholesky in blocks").scaled(exponent * math.log(2.0))


@statement("rump2006", "Corollary 2.4", holds="float64; the Gram matrices and their rounding errors are bounded")
def largest_matrix_norm(matrices: Tensor, *, seed: int = 0) -> NormBounds:
    r"""Return certified bounds on the largest spectral norm of several matrices: that of their block-diagonal map.

    :math:`\max_i \|A_i\|_2`. From below the norm of the one that LAPACK finds largest. From above, where the matrices
    are small, Cholesky factorisations of :math:`\tau_i I - A_i A_i^T`, :math:`\tau_i` at the value LAPACK finds.

    >>> bounds = largest_matrix_norm(torch.stack([torch.eye(2), 3 * torch.eye(2)]))
    >>> bounds.lower <= 3.0 <= bounds.upper, bounds.width < 1e-9
    (True, True)
    """
    if matrices.ndim != 3:
        raise InputError(f"Expected a stack of matrices, got a tensor of shape {tuple(matrices.shape)}.")
    if len(matrices) < FEW or min(matrices.shape[1:]) > EIGENVALUES_UP_TO:
        return largest_norm(matrix_norm(matrix, seed=seed) for matrix in matrices)
    A, log_factor = to_unit_scale(matrices)
    if not bool(A.any()):
        return NormBounds.exact(0.0, method="zero")
    A = A if A.shape[1] <= A.shape[2] else A.mT
    tops, squares = [], []
    for part in A.split(max(1, BLOCK_NUMBERS // A[0].numel())):
        mass = part.square().sum((1, 2)) * (1.0 + A[0].numel() * UNIT_ROUNDOFF)
        gram = part @ part.mT
        tops.append(torch.linalg.eigvalsh(gram)[:, -1])
        squares.append(certify_largest_eigenvalue(gram, tops[-1], gram_error=gamma(A.shape[2]) * mass, slack=SLACK))
    largest = matrix_norm(A[int(torch.cat(tops).argmax())], seed=seed)
    upper = root_above(float(torch.cat(squares).max()))
    return NormBounds.between(largest.lower, max(upper, largest.lower), "cholesky").scaled(log_factor)


def gram_norm(
    map: LinearMap,
    gram: Tensor,
    gram_error: float,
    apply_error: float,
    *,
    seed: int = 0,
    good_width: float = 2e-9,
) -> NormBounds:
    r"""Return certified bounds on the norm of a map from its Gram matrix :math:`A^T A`.

    Args:
        map: the map :math:`A`, whose domain is the side of the Gram matrix.
        gram: :math:`A^T A` as computed, float64.
        gram_error: a bound on its error in norm.
        apply_error: a bound on :math:`\|fl(A x) - A x\|` for unit ``x``.
        seed: the seed of the start vector of Lanczos.
        good_width: the width beyond which all eigenvalues are computed to improve it.

    >>> A = torch.tensor([[1.0, 2.0]], dtype=torch.float64).mT
    >>> bounds = gram_norm(LinearMap.from_matrix(A), A.mT @ A, 1e-15, 1e-15)
    >>> bounds.lower <= math.sqrt(5) <= bounds.upper
    True
    """
    if gram.shape[0] <= EIGENVALUES_UP_TO:
        return NormBounds.between(*_by_eigenpair(map, gram, gram_error, apply_error), "cholesky")
    # On the Gram matrix itself: a step is cheaper there, and every eigenvalue squared lies further from the next.
    run = lanczos_norm(LinearMap.from_matrix(gram), tolerance=1e-7, max_steps=200, seed=seed, apply_error=0.0)
    lower = attained(map, run.vector, apply_error)
    upper = root_above(float(certify_largest_eigenvalue(gram, lower * lower, gram_error=gram_error)))
    if upper > lower * (1.0 + good_width) + gram_error / max(upper, 1e-300):
        reached, certified = _by_eigenpair(map, gram, gram_error, apply_error)
        lower, upper = max(lower, reached), min(upper, certified)
    return NormBounds.between(lower, upper, "cholesky")


def symmetric_product(A: Tensor) -> Tensor:
    r"""Return :math:`A^T A`, exactly symmetric.

    On the CPU by NumPy, which computes half of such a product and mirrors it; torch computes all of it.

    >>> symmetric_product(torch.tensor([[1.0, 2.0]])).tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """
    if A.device.type != "cpu":
        return A.mT @ A
    entries = A.detach().numpy()
    return torch.from_numpy(entries.T @ entries)


def gram_matrix(map: LinearMap, *, numbers: int = 2**24) -> Tensor:
    r"""Return :math:`A^T A` of a map as a dense matrix, column block by column block.

    >>> gram_matrix(LinearMap.from_function(lambda x: 2 * x, (2,))).tolist()
    [[4.0, 0.0], [0.0, 4.0]]
    """
    n = map.domain_dimension
    gram = torch.empty(n, n, dtype=map.dtype, device=map.device)
    step = max(1, numbers // max(n, map.range_dimension))
    for start in range(0, n, step):
        stop = min(start + step, n)
        basis = torch.zeros(stop - start, n, dtype=map.dtype, device=map.device)
        basis.diagonal(offset=start).fill_(1)
        images = map.apply_batch(basis.reshape(-1, *map.domain_shape))
        gram[start:stop] = map.adjoint_batch(images).reshape(stop - start, n)
    return gram


def _by_eigenpair(map: LinearMap, gram: Tensor, gram_error: float, apply_error: float) -> tuple[float, float]:
    """Return the norm attained at the leading eigenvector of the Gram matrix, and the certificate."""
    square, vector = certified_eigenpair(gram)
    return attained(map, vector, apply_error), root_above(square + gram_error * (1.0 + 2.0**-50))


def attained(map: LinearMap, vector: Tensor, apply_error: float) -> float:
    """Return the norm attained at a flat vector, minus the absolute error of one application."""
    value = attained_norm(map, vector.reshape(map.domain_shape), apply_error=0.0)
    return max(0.0, (value - apply_error) * (1.0 - 4 * UNIT_ROUNDOFF))


def _is_monomial(A: Tensor) -> bool:
    """Return whether every row and every column has at most one non-zero entry (diagonal up to permutation)."""
    if int(torch.count_nonzero(A)) > min(A.shape):
        return False
    occupied = A.ne(0)
    return bool(occupied.sum(0).max() <= 1) and bool(occupied.sum(1).max() <= 1)


#: How far above the computed eigenvalue to factorise, relative to it, and how often to go 16 times further away.
SLACK, RAISES = 1e-12, 4
#: Steps of inverse iteration: each multiplies the leading part by the gap over the slack.
STEPS = 3


@statement("rump2006", "Corollary 2.4", holds="float64, no underflow, factorisation by inner products")
def certified_eigenpair(gram: Tensor) -> tuple[float, Tensor]:
    r"""Return a certified bound on the largest eigenvalue of a symmetric matrix, and a unit vector nearly attaining it.

    With :math:`\tau` just above the largest of the eigenvalues, computed without vectors, the Cholesky factor of
    :math:`\tau I - G` proves :math:`\lambda_{\max} \le \tau + c` (:func:`.cholesky_margin`), and inverse iteration
    :math:`x \leftarrow (\tau I - G)^{-1} x / \|\cdot\|` with the same factor finds the vector: less than half the work
    of all eigenvectors. Where leading eigenvalues lie closer to each other than to :math:`\tau`, the vector is a
    mixture of their eigenvectors, whose Rayleigh quotient is as large.

    Args:
        gram: the positive semidefinite matrix, float64. Only its lower triangle is read.

    >>> bound, vector = certified_eigenpair(torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64)))
    >>> 4.0 <= bound < 4.0 + 1e-10, vector.abs().round().tolist()
    (True, [0.0, 1.0])
    """
    n = len(gram)
    trace = float(gram.trace())
    if not math.isfinite(trace):
        raise NonFiniteError("Expected finite entries, got NaN or infinity. Check the weights.")
    top = float(torch.linalg.eigvalsh(gram)[-1])
    slack = SLACK
    for _ in range(RAISES):
        tau = top * (1.0 + slack)
        shifted = -gram
        diagonal = shifted.diagonal()
        diagonal += tau
        factor = cholesky_factor(shifted)
        if factor is not None:
            # The trace of what was factorised, all of its terms positive.
            margin = cholesky_margin(n, float(diagonal.sum()) * (1.0 + 2 * n * 2.0**-53))
            return (tau + margin) * (1.0 + 2.0**-50), _inverse_iteration(factor)
        slack *= 16.0
    return float(certify_largest_eigenvalue(gram, top)), torch.linalg.eigh(gram)[1][:, -1]


def _inverse_iteration(factor: Tensor) -> Tensor:
    """Return the leading eigenvector of the inverse of a factorised matrix."""
    # A fixed random start: one of equal entries is orthogonal to the leading vector of many matrices people write down.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(factor), 1, generator=generator, dtype=torch.float64).to(factor)
    for _ in range(STEPS):
        x = torch.cholesky_solve(x, factor)
        x /= x.abs().max()  # before squares of it overflow
    return x[:, 0] / torch.linalg.vector_norm(x)
