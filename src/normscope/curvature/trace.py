"""Trace, Frobenius norm and stable rank of a matrix known by products, whole and layer by layer, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from normscope.linalg.accumulated import dot, length, orthogonalized
from normscope.linalg.thick_restart import Eigenpairs

Apply = Callable[[Tensor], Tensor]
#: Confidence of the intervals.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number with the interval that covers it in 95 of 100 runs.

    Attributes:
        value: the estimate.
        low: lower end of the interval.
        high: upper end.
        probes: random vectors it is made of; 0 if it is exact.
    """

    value: float
    low: float
    high: float
    probes: int

    @classmethod
    def of(cls, exact: float, samples: np.ndarray) -> Estimate:
        """Return an exact part plus the mean of samples, with Student's interval."""
        n = len(samples)
        if not n:
            return cls(exact, exact, exact, 0)
        mean = exact + float(samples.mean())
        if n == 1:
            return cls(mean, -math.inf, math.inf, 1)
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * samples.std(ddof=1) / math.sqrt(n))
        return cls(mean, mean - half, mean + half, n)


@dataclass(frozen=True)
class Moments:
    """First and second moments of a symmetric matrix ``A``.

    Attributes:
        trace: ``tr A``.
        square: ``||A||_F^2``.
        layers: the trace of the block of each parameter on the diagonal; they sum to the trace.
        products: products that were made for them, those of the deflated space not counted.
    """

    trace: Estimate
    square: Estimate
    layers: dict[str, Estimate]
    products: int

    @property
    def frobenius(self) -> float:
        """Return the estimate of ``||A||_F``."""
        return math.sqrt(max(0.0, self.square.value))

    def stable_rank(self, norm: float) -> float:
        """Return ``||A||_F^2/||A||^2``: how many eigenvalues are about as large as the largest."""
        return self.square.value / norm**2 if norm else 0.0


def moments(
    apply: Apply,
    start: Tensor,
    *,
    probes: int = 30,
    blocks: Mapping[str, slice] | None = None,
    deflate: Eigenpairs | None = None,
    project: Apply | None = None,
    seed: int = 0,
) -> Moments:
    r"""Return trace and Frobenius norm by Hutchinson's estimator on what a Lanczos space does not hold.

    With an orthonormal basis ``Q`` of a space on which ``A`` is known and :math:`u = (I - QQ^T) z`, ``z`` random signs,

    .. math:: tr A = tr(Q^T A Q) + E[u^T A u], \qquad \|A\|_F^2 = \|A Q\|_F^2 + E\|A u\|^2,

    and the trace of the block of layer ``l`` is :math:`\sum_j (q_j)_l \cdot (A q_j)_l + E[u_l \cdot (A u)_l]`. The
    Krylov space of the largest eigenvalues holds most of the trace, and the products that built it give ``A Q`` free.

    Args:
        apply: multiplies a vector by the symmetric matrix.
        start: a vector of the right size, dtype and device; its content does not matter.
        probes: random vectors, one product each.
        blocks: places of the layers in the vector.
        deflate: eigenpairs whose basis was kept (``keep_basis=True``).
        project: a projector ``P`` to be applied on both sides of the matrix.
        seed: of the probes.

    >>> d = torch.arange(1.0, 5.0, dtype=torch.float64)
    >>> moments(lambda v: d * v, d, probes=2).trace.value  # exact: random signs see a diagonal matrix fully
    10.0
    """
    inside = project or (lambda v: v)
    places = dict(blocks or {})
    basis = start[:0].reshape(0, start.numel())
    exact, square, layered = 0.0, 0.0, dict.fromkeys(places, 0.0)
    if deflate is not None and deflate.basis is not None and deflate.matrix is not None and len(deflate.basis) > 1:
        basis, exact, square, layered = _known(deflate, places)
    traces, squares = np.zeros(probes), np.zeros(probes)
    parts = {name: np.zeros(probes) for name in places}
    for probe in range(probes):
        generator = torch.Generator().manual_seed(7919 * (seed + 1) + probe)
        signs = (2.0 * torch.randint(0, 2, (start.numel(),), generator=generator) - 1.0).to(start)
        u = orthogonalized(inside(signs).clone(), basis) if len(basis) else inside(signs)
        image = inside(apply(u))
        traces[probe], squares[probe] = dot(u, image), length(image) ** 2
        for name, place in places.items():
            parts[name][probe] = dot(u[place], image[place])
    return Moments(
        Estimate.of(exact, traces),
        Estimate.of(square, squares),
        {name: Estimate.of(layered[name], parts[name]) for name in places},
        probes,
    )


def _known(deflate: Eigenpairs, places: Mapping[str, slice]) -> tuple[Tensor, float, float, dict[str, float]]:
    """Return the basis on which the images are known, and its parts of trace, square and layers.

    The recurrence gives ``A q_j`` for all vectors but the last, whose image has a part outside the basis.
    """
    assert deflate.basis is not None
    assert deflate.matrix is not None
    known = len(deflate.basis) - 1
    matrix = torch.as_tensor(deflate.matrix, device=deflate.basis.device)
    columns = matrix[:known]  # A q_j = sum_i T_ji q_i
    layered = {}
    for name, place in places.items():
        gram = deflate.basis[:, place].double() @ deflate.basis[:known, place].double().mT
        layered[name] = float((columns.mT * gram).sum())
    exact = float(columns[:, :known].diagonal().sum())
    return deflate.basis[:known], exact, float(columns.square().sum()), layered
