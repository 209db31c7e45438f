"""Eigenpairs at both ends of the spectrum of a symmetric operator, by Lanczos with thick restarts; and quadrature."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.linalg.accumulated import dot, dots, length, orthogonalized

Apply = Callable[[Tensor], Tensor]
#: Bytes that the stored basis may use by default.
BASIS_BYTES = 2**30
#: Basis vectors besides two per eigenvalue: the fewest with which restarts make progress, and the most that help.
FEWEST, USEFUL = 4, 60
#: A residual of this many units in the last place of the largest eigenvalue is not improved further.
FLOOR = 2.0
#: Components left by rounding, relative to the rest, above which they are taken out once more.
SMALL = 1e-2


@dataclass(frozen=True)
class Eigenpairs:
    r"""Eigenpairs of a symmetric operator ``A``, largest eigenvalue first."""

    values: np.ndarray  #: Ritz values :math:`\theta_i`
    residuals: np.ndarray  #: :math:`\|A x_i - \theta_i x_i\|`; an eigenvalue lies within this distance
    #: estimates of :math:`|\lambda_i - \theta_i|`, the residual squared over the gap to the other Ritz values (never
    #: above the residual)
    errors: np.ndarray
    converged: np.ndarray  #: whether each residual is small enough
    vectors: Tensor  #: unit vectors :math:`x_i`, one per row
    products: int  #: products with ``A`` that were made
    stopped: bool = False  #: whether the user stopped the work
    #: the last orthonormal basis of the Krylov space, one vector per row, if it was requested
    basis: Tensor | None = None
    matrix: np.ndarray | None = None  #: ``A`` on that basis
    coupling: float = 0.0  #: length of the part of ``A`` times the last basis vector that lies outside the basis


def eigenpairs(
    apply: Apply,
    start: Tensor,
    *,
    largest: int = 5,
    smallest: int = 0,
    tolerance: float = 1e-5,
    max_products: int = 300,
    size: int | None = None,
    project: Apply | None = None,
    keep_basis: bool = False,
    progress: Callable[[int, np.ndarray], None] | None = None,
) -> Eigenpairs:
    r"""Return the largest and smallest eigenvalues of a symmetric operator, with vectors, residuals and errors.

    Every new vector is made orthogonal to all before it twice, with inner products in float64. When the basis is full,
    the Ritz vectors nearest to both ends are kept with the last residual vector, and the recurrence continues. A pair
    has converged when its residual is at most ``tolerance`` times its value, or as small as rounding lets it become.

    Args:
        apply: multiplies a vector by the operator.
        start: a start vector: random, or the sum of eigenvectors of a nearby operator.
        largest: how many of the largest eigenvalues.
        smallest: how many of the smallest.
        tolerance: relative residual to reach.
        max_products: the most products to make.
        size: vectors of the basis; by default as many as are useful and fit into :data:`BASIS_BYTES`.
        project: an orthogonal projector ``P``; the operator is then ``P A P`` on the range of ``P``.
        keep_basis: also return the basis and the operator on it.
        progress: called after each product with their number and the wanted Ritz values.

    Returns:
        The pairs. Those that have not converged are marked. A ``KeyboardInterrupt`` ends the iteration and returns the
        current pairs.

    Raises:
        InputError: if no eigenvalue is wanted, or more than there are.

    >>> d = torch.arange(1.0, 51.0, dtype=torch.float64)
    >>> found = eigenpairs(lambda v: d * v, torch.ones(50, dtype=torch.float64), largest=2, smallest=1)
    >>> found.values.round(6).tolist(), bool(found.converged.all())
    ([50.0, 49.0, 1.0], True)
    """
    dimension, wanted = start.numel(), largest + smallest
    if min(largest, smallest) < 0 or not 0 < wanted <= dimension:
        raise InputError(f"Expected between 1 and {dimension} eigenvalues, got {wanted}.")
    affordable = BASIS_BYTES // max(1, start.numel() * start.element_size())
    size = min(dimension, size or max(2 * wanted + FEWEST, min(2 * wanted + USEFUL, affordable)))
    if size < min(dimension, wanted + 2):
        raise InputError(f"Expected a basis of at least {wanted + 2} vectors, got {size}.")
    run = Lanczos(apply, project or (lambda v: v), start, size, largest, smallest, tolerance)
    try:
        while run.products < max_products and not run.done():
            run.step()
            if progress is not None:
                progress(run.products, run.ritz()[0])
    except KeyboardInterrupt:
        run.stopped = True
    return run.result(keep_basis=keep_basis)


class Lanczos:
    """The state of the recurrence: a basis, the operator on it, and the coupling to the next vector."""

    def __init__(
        self,
        apply: Apply,
        project: Apply,
        start: Tensor,
        size: int,
        largest: int = 1,
        smallest: int = 0,
        tolerance: float = 0.0,
    ) -> None:
        self.apply, self.project, self.tolerance = apply, project, tolerance
        self.largest, self.smallest = largest, smallest
        self.dimension = start.numel()
        self.basis = torch.empty(size + 1, self.dimension, dtype=start.dtype, device=start.device)
        self.matrix = np.zeros((size, size))
        self.filled, self.products, self.coupling = 0, 0, 0.0
        self.stopped = self.exhausted = False
        self.scale, self.before = 0.0, np.zeros(0)
        self.generator = torch.Generator(device="cpu").manual_seed(0)
        first = project(start.clone().reshape(-1))
        norm = length(first)
        self.exhausted = not (norm > 0.0 and self._fresh(first / norm if norm else first, 0))

    def _fresh(self, vector: Tensor, at: int) -> bool:
        """Orthogonalize a vector and add it to the basis; return whether it was independent."""
        vector = orthogonalized(vector.clone(), self.basis[:at])
        norm = length(vector)
        if norm <= 100 * torch.finfo(vector.dtype).eps:
            return False
        torch.div(vector, norm, out=self.basis[at])
        return True

    def step(self) -> None:
        """Compute one product and one more basis vector; restart first if the basis is full."""
        if self.filled == len(self.matrix):
            self._restart()
        k, basis = self.filled, self.basis
        image = self.project(self.apply(basis[k]))
        self.products += 1
        image = image.clone() if image.data_ptr() == basis[k].data_ptr() else image
        self.matrix[k, k] = dot(basis[k], image)
        self._orthogonalize(image, k)
        self.coupling = length(image)
        self.filled = k + 1
        self.scale = max(self.scale, float(np.abs(self.matrix[: k + 1, : k + 1]).max()), self.coupling)
        if self.coupling > 4 * torch.finfo(basis.dtype).eps * self.scale and self.filled < self.dimension:
            torch.div(image, self.coupling, out=basis[k + 1])
            if self.filled < len(self.matrix):
                self.matrix[k, k + 1] = self.matrix[k + 1, k] = self.coupling
            return
        # The space is invariant: an eigenvalue may have more vectors outside it. Continue with random directions
        # outside the space until one adds nothing to the wanted values.
        self.coupling = 0.0
        values = self.ritz()[0]
        same = len(values) == len(self.before) == self.largest + self.smallest
        settled = same and np.allclose(values, self.before, rtol=1e-6, atol=1e-9 * self.scale)
        self.before = values
        random = torch.randn(self.dimension, generator=self.generator, dtype=torch.float64).to(basis)
        self.exhausted = settled or self.filled >= self.dimension or not self._fresh(self.project(random), k + 1)

    def _orthogonalize(self, image: Tensor, k: int) -> None:
        """Subtract the components known from the recurrence, then those left by rounding, twice if they are large."""
        known = np.flatnonzero(self.matrix[k, : k + 1])
        factors = torch.as_tensor(self.matrix[k, known], device=image.device).to(image.dtype)
        for place, factor in zip(known.tolist(), factors.tolist(), strict=True):
            image.add_(self.basis[place], alpha=-factor)
        left = dots(self.basis[: k + 1], image)
        image.sub_(left.to(image.dtype) @ self.basis[: k + 1])
        if float(left.norm()) > SMALL * length(image):
            orthogonalized(image, self.basis[: k + 1])

    def ritz(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the wanted Ritz values, their coordinates, residuals and errors, largest value first."""
        values, vectors = np.linalg.eigh(self.matrix[: self.filled, : self.filled])
        chosen = self._ends(len(values), self.largest, self.smallest)
        rounding = float(torch.finfo(self.basis.dtype).eps) * self.scale  # the recurrence does not see it
        residuals = np.maximum(np.abs(self.coupling * vectors[-1, chosen]), rounding)
        others = np.abs(values[None, :] - values[chosen][:, None])
        others[np.arange(len(chosen)), chosen] = np.inf
        gaps = others.min(axis=1, initial=np.inf)
        errors = np.minimum(residuals, residuals**2 / np.maximum(gaps, 1e-300))
        return values[chosen], vectors[:, chosen], residuals, errors

    @staticmethod
    def _ends(count: int, largest: int, smallest: int) -> np.ndarray:
        """Return the indices of the largest and smallest of some ascending values, the largest first."""
        top = list(range(count - 1, max(count - largest, 0) - 1, -1))
        bottom = [i for i in range(min(smallest, count) - 1, -1, -1) if i not in top]
        return np.array([*top, *bottom], dtype=int)

    def accurate(self, values: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """Return which residuals are small enough."""
        floor = FLOOR * torch.finfo(self.basis.dtype).eps * self.scale
        small: np.ndarray = residuals <= np.maximum(self.tolerance * np.abs(values), floor)
        return small

    def done(self) -> bool:
        """Return whether every wanted pair has converged, or the whole space is known."""
        if self.exhausted:
            return True
        if self.filled < self.largest + self.smallest or self.coupling == 0.0:
            return False
        values, _, residuals, _ = self.ritz()
        return bool(self.accurate(values, residuals).all())

    def _restart(self) -> None:
        """Keep the Ritz vectors nearest to the ends, and the last residual vector."""
        values, vectors = np.linalg.eigh(self.matrix)
        count = len(values)
        spare = max(0, (count - self.largest - self.smallest - 1) // 2)
        more = spare if not self.smallest else spare * self.largest // (self.largest + self.smallest)
        kept = self._ends(count, self.largest + more, self.smallest + (spare - more if self.smallest else 0))
        rotation = torch.as_tensor(vectors[:, kept].T.copy(), device=self.basis.device).to(self.basis.dtype)
        for at in range(0, self.dimension, 2**16):
            piece = slice(at, at + 2**16)
            self.basis[: len(kept), piece] = rotation @ self.basis[:count, piece]
        self.basis[len(kept)] = self.basis[count]
        self.matrix = np.zeros_like(self.matrix)
        self.matrix[range(len(kept)), range(len(kept))] = values[kept]
        self.matrix[len(kept), : len(kept)] = self.matrix[: len(kept), len(kept)] = self.coupling * vectors[-1, kept]
        self.filled = len(kept)

    def result(self, *, keep_basis: bool) -> Eigenpairs:
        """Return the eigenpairs found so far."""
        if not self.filled:
            none = np.zeros(0)
            return Eigenpairs(none, none, none, none.astype(bool), self.basis[:0].clone(), self.products, self.stopped)
        values, coordinates, residuals, errors = self.ritz()
        rows = torch.as_tensor(coordinates.T.copy(), device=self.basis.device).to(self.basis.dtype)
        vectors = rows @ self.basis[: self.filled]
        for vector in vectors:
            vector /= length(vector)
        basis, matrix = self.basis[: self.filled], self.matrix[: self.filled, : self.filled]
        accurate = self.accurate(values, residuals)
        found = Eigenpairs(values, residuals, errors, accurate, vectors, self.products, self.stopped)
        return replace(found, basis=basis, matrix=matrix, coupling=self.coupling) if keep_basis else found


def rayleigh(apply: Apply, vectors: Tensor) -> tuple[np.ndarray, np.ndarray]:
    r"""Return :math:`x^T A x` and :math:`\|A x - (x^T A x) x\|` of unit vectors, by one product each.

    >>> d = torch.tensor([1.0, 2.0])
    >>> [a.tolist() for a in rayleigh(lambda v: d * v, torch.eye(2))]
    [[1.0, 2.0], [0.0, 0.0]]
    """
    values, residuals = [], []
    for vector in vectors:
        image = apply(vector)
        values.append(dot(vector, image))
        residuals.append(length(image.double() - values[-1] * vector.double()))
    return np.array(values), np.array(residuals)


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
    run = Lanczos(apply, project or (lambda v: v), start, min(steps, start.numel()))
    if run.exhausted:
        return Quadrature(np.zeros(1), np.ones(1))
    for _ in range(len(run.matrix)):
        run.step()
        if run.coupling == 0.0:  # the space is invariant
            break
    nodes, vectors = np.linalg.eigh(run.matrix[: run.filled, : run.filled])
    return Quadrature(nodes, vectors[0] ** 2)
