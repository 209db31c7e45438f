"""Trace, Frobenius norm and stable rank of a matrix known by products, whole and layer by layer, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from normscope.linalg.accumulated import dot, dots, length, orthogonalized
from normscope.linalg.thick_restart import Eigenpairs

Apply = Callable[[Tensor], Tensor]
#: Confidence of the intervals.
CONFIDENCE = 0.95
#: Random vectors after which it is decided whether subtracting a known part reduces the variance.
PILOT = 4


@dataclass(frozen=True)
class Estimate:
    """An estimate with its 95 % confidence interval."""

    value: float  #: the estimate
    low: float  #: lower end of the interval
    high: float  #: upper end
    probes: int  #: number of random vectors; 0 if it is exact

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
class MatrixMoments:
    """First and second moments of a symmetric matrix ``A``."""

    trace: Estimate  #: ``tr A``
    square: Estimate  #: ``||A||_F^2``
    layers: dict[str, Estimate]  #: the trace of the block of each parameter on the diagonal; they sum to the trace
    products: int  #: products that were made for them, those of the deflated space not counted

    @property
    def frobenius(self) -> float:
        """Return the estimate of ``||A||_F``."""
        return math.sqrt(max(0.0, self.square.value))

    def stable_rank(self, norm: float) -> float:
        """Return ``||A||_F^2/||A||^2``: how many eigenvalues are about as large as the largest."""
        return self.square.value / norm**2 if norm else 0.0


@dataclass(frozen=True)
class KnownPart:
    """A part of a matrix whose trace is known."""

    apply: Apply  #: multiplies a vector by it
    layers: Mapping[str, float]  #: the trace of the block of each parameter


def moments(
    apply: Apply,
    start: Tensor,
    *,
    products: int = 30,
    blocks: Mapping[str, slice] | None = None,
    deflate: Eigenpairs | None = None,
    part: KnownPart | None = None,
    seed: int = 0,
) -> MatrixMoments:
    r"""Return trace and Frobenius norm by Hutchinson's estimator, with known subspaces deflated.

    With an orthonormal basis ``Q`` of a space on which ``A`` is known and :math:`u = (I - QQ^T) z`, ``z`` random signs,

    .. math:: tr A = tr(Q^T A Q) + E[u^T A u], \qquad \|A\|_F^2 = \|A Q\|_F^2 + E\|A u\|^2,

    and the trace of the block of layer ``l`` is :math:`\sum_j (q_j)_l \cdot (A q_j)_l + E[u_l \cdot (A u)_l]`. The
    Krylov space of the largest eigenvalues contains much of the trace, and the products behind it also give ``A Q``.

    Where the trace of a part ``G`` is known, such as the Gauss-Newton matrix, :math:`tr A = tr G + E[z^T (A - G) z]`
    with the same ``z``; the first few vectors decide which of the two estimates is worth its products.

    Args:
        apply: multiplies a vector by the symmetric matrix.
        start: a vector of the right size, dtype and device; its content does not matter.
        products: how many to make, those with the part included.
        blocks: places of the layers in the vector.
        deflate: eigenpairs whose basis was kept (``keep_basis=True``).
        part: a part of the matrix whose trace is known.
        seed: of the probes.

    >>> d = torch.arange(1.0, 5.0, dtype=torch.float64)
    >>> moments(lambda v: d * v, d, products=2).trace.value  # exact: random signs see a diagonal matrix fully
    10.0
    """
    places = dict(blocks or {}) | {"": slice(None)}  # the whole is one more layer
    known = None
    if deflate is not None and deflate.basis is not None and deflate.matrix is not None and len(deflate.basis) > 1:
        known = _KnownSpace(deflate.basis, deflate.matrix, places)
    basis = start[:0].reshape(0, start.numel()) if known is None else known.basis
    squares: list[float] = []
    rest: dict[str, list[float]] = {name: [] for name in places}
    left: dict[str, list[float]] = {name: [] for name in places}
    made = 0
    while made + 1 + (part is not None) <= products:
        generator = torch.Generator().manual_seed(7919 * (seed + 1) + len(squares))
        signs = (2.0 * torch.randint(0, 2, (start.numel(),), generator=generator) - 1.0).to(start)
        u = orthogonalized(signs.clone(), basis)
        image = apply(u)
        squares.append(length(image) ** 2)
        other = None if part is None else (image if known is None else known.whole(signs, image)) - part.apply(signs)
        made += 1 + (part is not None)
        for name, place in places.items():
            rest[name].append(dot(u[place], image[place]))
            if other is not None:
                left[name].append(dot(signs[place], other[place]))
        if part is not None and len(squares) == PILOT and 2 * np.var(left[""]) > np.var(rest[""]):
            part = None  # its products are better spent on more vectors
    layered, square = (dict.fromkeys(places, 0.0), 0.0) if known is None else (known.layers, known.square)
    exact = layered if part is None else {**part.layers, "": sum(part.layers.values())}
    samples = rest if part is None else left
    found = {name: Estimate.of(exact[name], np.array(samples[name])) for name in places}
    return MatrixMoments(found.pop(""), Estimate.of(square, np.array(squares)), found, made)


class _KnownSpace:
    """A subspace on which the matrix is known, and its contributions to the moments.

    The recurrence gives ``A q_j`` for all vectors but the last, whose image has a part outside the basis.
    """

    def __init__(self, basis: Tensor, matrix: np.ndarray, places: Mapping[str, slice]) -> None:
        self.every, known = basis, len(basis) - 1
        self.basis = basis[:known]
        self.columns = torch.as_tensor(matrix, device=basis.device)[:known]  # A q_j = sum_i T_ji q_i
        self.square = float(self.columns.square().sum())
        self.layers = {"": float(self.columns[:, :known].diagonal().sum())}
        for name, place in places.items():
            if name:
                self.layers[name] = float((self.columns.mT * self._gram(place)).sum())

    def _gram(self, place: slice) -> Tensor:
        """Return the inner products of all vectors with the known ones on one layer, in float64."""
        total = torch.zeros(len(self.every), len(self.basis), dtype=torch.float64, device=self.every.device)
        for at in range(place.start, place.stop, 2**16):
            piece = self.every[:, at : min(at + 2**16, place.stop)].double()
            total += piece @ piece[: len(self.basis)].mT
        return total

    def whole(self, vector: Tensor, image: Tensor) -> Tensor:
        """Return ``A z`` from the image of the component of ``z`` outside the subspace."""
        inside = dots(self.basis, vector) @ self.columns
        return image + inside.to(self.every.dtype) @ self.every
