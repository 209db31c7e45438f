"""Stochastic Lanczos quadrature: the distribution of the eigenvalues of a symmetric operator from a few products."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from normscope.linalg.accumulated import dot, length, orthogonalized

Apply = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Quadrature:
    r"""Gauss quadrature of the spectral measure :math:`\mu_q(f) = q^T f(A) q` of a unit vector ``q``."""

    nodes: np.ndarray  #: Ritz values
    weights: np.ndarray  #: squares of the first coordinates of their vectors; they sum to one


def lanczos_quadrature(apply: Apply, start: Tensor, steps: int, *, project: Apply | None = None) -> Quadrature:
    r"""Return the Gauss quadrature of the spectral measure of a start vector, exact for degree ``2 steps - 1``.

    The basis is kept orthonormal, so that no eigenvalue is counted twice.

    Args:
        apply: multiplies a vector by the symmetric operator ``A``.
        start: the start vector; it is normalized.
        steps: products to make, at most.
        project: an orthogonal projector ``P``; the operator is then ``P A P`` on the range of ``P``.

    >>> d = torch.tensor([1.0, 3.0], dtype=torch.float64)
    >>> rule = lanczos_quadrature(lambda v: d * v, torch.ones(2, dtype=torch.float64), 2)
    >>> rule.nodes.round(9).tolist(), rule.weights.round(9).tolist()
    ([1.0, 3.0], [0.5, 0.5])
    """
    inside = project or (lambda v: v)
    vector = inside(start.clone().reshape(-1))
    norm = length(vector)
    if norm == 0.0:
        return Quadrature(np.zeros(1), np.ones(1))
    limit = min(steps, vector.numel())
    basis = torch.empty(limit, vector.numel(), dtype=vector.dtype, device=vector.device)
    torch.div(vector, norm, out=basis[0])
    diagonal, coupling = np.zeros(limit), np.zeros(limit)
    for k in range(limit):
        image = inside(apply(basis[k]))
        image = image.clone() if image.data_ptr() == basis[k].data_ptr() else image
        diagonal[k] = dot(basis[k], image)
        orthogonalized(image, basis[: k + 1])
        coupling[k] = length(image)
        scale = max(np.abs(diagonal[: k + 1]).max(), coupling[: k + 1].max())
        if k + 1 == limit or coupling[k] <= 4 * torch.finfo(basis.dtype).eps * scale:
            return _gauss(diagonal[: k + 1], coupling[:k])
        torch.div(image, coupling[k], out=basis[k + 1])
    raise AssertionError("the loop returns at its last step")


def _gauss(diagonal: np.ndarray, coupling: np.ndarray) -> Quadrature:
    """Return nodes and weights of a tridiagonal matrix."""
    if len(diagonal) == 1:
        return Quadrature(diagonal.copy(), np.ones(1))
    nodes, vectors = eigh_tridiagonal(diagonal, coupling)
    return Quadrature(nodes, vectors[0] ** 2)
