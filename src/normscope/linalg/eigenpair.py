"""The largest eigenvalue of a matrix, proved from above, and its vector: one factorisation gives both."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normscope.core.errors import NonFiniteError
from normscope.core.statement import statement
from normscope.linalg.cholesky import certify_largest_eigenvalue, cholesky_margin

#: How far above the computed eigenvalue to factorise, relative to it, and how often to go 16 times further away.
SLACK, RAISES = 1e-12, 4
#: Steps of inverse iteration: each multiplies the leading part by the gap over the slack.
STEPS = 3


@statement("rump2006", "Corollary 2.4", holds="float64, no underflow, factorisation by inner products")
def certified_eigenpair(gram: Tensor) -> tuple[float, Tensor]:
    r"""Return a certified bound on the largest eigenvalue of a symmetric matrix, and a unit vector that nearly has it.

    With :math:`\tau` just above the largest of the eigenvalues, computed without vectors, the Cholesky factor of
    :math:`\tau I - G` proves :math:`\lambda_{\max} \le \tau + c` (:func:`.cholesky_margin`), and inverse iteration
    :math:`x \leftarrow (\tau I - G)^{-1} x / \|\cdot\|` with the same factor finds the vector: less than half the work
    of all eigenvectors. Where eigenvalues lie closer together than :math:`\tau` to them, the vector is a mixture of
    theirs, whose quotient is as large.

    Args:
        gram: the positive semidefinite matrix, float64. Only its lower triangle is read.

    Returns:
        The bound and the vector.

    Raises:
        NonFiniteError: if an entry on the diagonal is NaN or infinite.

    >>> bound, vector = certified_eigenpair(torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64)))
    >>> 4.0 <= bound < 4.0 + 1e-10, vector.abs().round().tolist()
    (True, [0.0, 1.0])
    """
    n = len(gram)
    trace = float(gram.trace())
    if not math.isfinite(trace):
        raise NonFiniteError("a certificate needs a finite matrix; NaN or infinity came: check the weights")
    top = float(torch.linalg.eigvalsh(gram)[-1])
    slack = SLACK
    for _ in range(RAISES):
        tau = top * (1.0 + slack)
        shifted = -gram
        diagonal = shifted.diagonal()
        diagonal += tau
        factor, info = torch.linalg.cholesky_ex(shifted)
        if int(info) == 0 and math.isfinite(float(factor.diagonal().sum())):
            # The trace of what was factorised, all of its terms positive.
            margin = cholesky_margin(n, float(diagonal.sum()) * (1.0 + 2 * n * 2.0**-53))
            return (tau + margin) * (1.0 + 2.0**-50), _inverse_iteration(factor)
        slack *= 16.0
    return float(certify_largest_eigenvalue(gram, top)), torch.linalg.eigh(gram)[1][:, -1]


def _inverse_iteration(factor: Tensor) -> Tensor:
    """Return the vector that the inverse of a factorised matrix stretches most."""
    # A fixed random start: one of equal entries is orthogonal to the leading vector of many matrices people write down.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(factor), 1, generator=generator, dtype=torch.float64).to(factor)
    for _ in range(STEPS):
        x = torch.cholesky_solve(x, factor)
        x /= x.abs().max()  # before squares of it overflow
    return x[:, 0] / torch.linalg.vector_norm(x)
