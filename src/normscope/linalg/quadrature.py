"""Stochastic Lanczos quadrature: the distribution of the eigenvalues of a symmetric operator from a few products."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from normscope.linalg.thick_restart import Lanczos

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

    >>> import torch
    >>> d = torch.tensor([1.0, 3.0], dtype=torch.float64)
    >>> rule = lanczos_quadrature(lambda v: d * v, torch.ones(2, dtype=torch.float64), 2)
    >>> rule.nodes.round(9).tolist(), rule.weights.round(9).tolist()
    ([1.0, 3.0], [0.5, 0.5])
    """
    run = Lanczos(apply, project or (lambda v: v), start, min(steps, start.numel()))
    if run.exhausted:
        return Quadrature(np.zeros(1), np.ones(1))
    for _ in range(len(run.matrix)):
        run.step()
        if run.coupling == 0.0:  # the space is invariant
            break
    nodes, vectors = np.linalg.eigh(run.matrix[: run.filled, : run.filled])
    return Quadrature(nodes, vectors[0] ** 2)
