"""The largest eigenvalue of a slowly changing symmetric operator, started from earlier eigenvectors."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normscope.core.errors import InputError, NonFiniteError
from normscope.linalg.accumulated import dots, length
from normscope.linalg.thick_restart import BASIS_BYTES

Apply = Callable[[Tensor], Tensor]
#: Eigenvectors to keep for the next operator, if they fit into :data:`normscope.linalg.thick_restart.BASIS_BYTES`.
KEPT = 8
#: The fewest basis vectors with which the iteration makes progress, whatever the memory limit.
FEWEST = 6
#: Factor on the tolerance without earlier eigenvectors: the residual may first become small at the second eigenvalue.
COLD = 0.1
#: Safety factor on how much one direction may have grown, beyond an equal share of the deviation observed.
DOUBT = 2.0
#: Vectors by which the basis grows at a time.
GROWTH = 8
#: One pass of Gram-Schmidt is enough where at least this part of the vector is left.
MUCH = 0.7
#: A direction is multiplied only if at least this part of it is new.
NEW = 1e-3


@dataclass(frozen=True)
class TrackedEigenpair:
    r"""The largest eigenpair of an operator ``A``, and the start for the next operator."""

    #: the largest Ritz value :math:`\theta` over the directions that were multiplied; attained, so the largest
    #: eigenvalue is not below it
    value: float
    residual: float  #: :math:`\|A x - \theta x\|`; an eigenvalue lies within this distance
    estimate: float  #: the largest eigenvalue of the model of ``A``, earlier eigenvectors included
    converged: bool  #: whether the residual is small enough and the check of other directions found nothing larger
    products: int  #: number of products with ``A``
    vectors: Tensor  #: orthonormal rows near the leading eigenvectors, for the next operator
    values: np.ndarray  #: their eigenvalues in the model
    search: Tensor  #: a direction outside these vectors, to be checked next time


class EigenvalueTracker:
    r"""Computes the largest eigenvalue of an operator, a few products at a time.

    The operator is modelled by a matrix ``M`` on a basis ``V``, at first :math:`\operatorname{diag}(\theta)` on the
    eigenvectors of an earlier operator. Each product is with the new part of the model's leading eigenvector
    :math:`x = V^T c`; the part of :math:`A x` outside the basis is added to it, and the model becomes the nearest one
    that is exact on ``x``,

    .. math:: M \leftarrow (I - c c^T) M (I - c c^T) + y c^T + c y^T - (c^T y) c c^T, \qquad y = V A x .

    So earlier eigenvectors of nearby eigenvalues, which a Krylov method would have to find again, cost no products;
    without any this is the Lanczos method. If a product is smaller than the model predicts, all earlier eigenvalues
    shrink by the same factor. The value is the Rayleigh-Ritz value over the directions multiplied with this operator;
    earlier eigenvalues do not enter it.

    A small residual does not prove that the eigenvalue is the largest: another one may have overtaken it. So a run that
    starts from earlier eigenvectors ends with a product with the sum of all directions not multiplied yet, among them
    one outside the basis that a power iteration continues from run to run. One of these directions may have grown by as
    much as the product differs from the model; if that could make it the largest, the product itself is multiplied as
    well. If that finds a larger value, the iteration continues. A run from a random vector has no such directions; its
    residual must be smaller by the factor :data:`COLD` instead.

    Args:
        start: a random vector, or the result for an earlier operator.
        tolerance: the relative residual to reach when starting from an earlier result.

    Attributes:
        products: number of products so far.
        done: whether the eigenvalue has converged.

    >>> d = torch.arange(1.0, 101.0, dtype=torch.float64)
    >>> search = EigenvalueTracker(torch.ones(100, dtype=torch.float64), tolerance=1e-4)
    >>> search.advance(lambda v: d * v, 60)
    >>> round(search.found().value, 4)
    100.0
    >>> search = EigenvalueTracker(search.found(), tolerance=1e-2)
    >>> search.advance(lambda v: d * v + 0.1 * v.flip(0), 4)
    >>> round(search.found().value, 2), search.done, search.products
    (100.0, True, 2)
    """

    def __init__(self, start: Tensor | TrackedEigenpair, *, tolerance: float = 1e-2) -> None:
        self._tolerance = COLD * tolerance if isinstance(start, Tensor) else tolerance
        if isinstance(start, Tensor):
            self._model, self._search = _Model(start[None], np.zeros(1)), start
        else:
            self._model, self._search = _Model(start.vectors, start.values), start.search
        self._looks = 0 if isinstance(start, Tensor) else 2  # products left for checking other directions
        self.products, self.done = 0, False

    def advance(self, apply: Apply, products: int) -> None:
        """Compute products until convergence, at most a given number.

        Args:
            apply: multiplies a vector by the operator; the same operator in every call.
            products: the maximum number of products.

        Raises:
            InputError: if no product is allowed.
            NonFiniteError: if a product is not finite.
        """
        if products < 1:
            raise InputError(f"Expected at least one product, got {products}.")
        most = self.products + products
        while not self.done and self.products < most:
            self._make_room()
            looking = self._model.settled(self._tolerance)
            if not looking:
                direction = self._model.leading_direction()
            elif self._looks == 2:  # first at the sum of all directions not multiplied yet
                direction = self._model.unmultiplied(self._search)
            else:  # then at the new part of its image
                direction = self._model.last_image()
            if direction is None:  # the basis is the whole space
                self.done = True
                return
            image, possible = self._model.refresh(direction, apply)
            self.products += 1
            if looking:
                self._search = image
                self._looks = self._looks - 1 if possible > self._model.ritz()[0] else 0
            self.done = self._looks <= 0 and self._model.settled(self._tolerance)

    def _make_room(self) -> None:
        """Make room for two more basis vectors; if memory is short, keep only the leading eigenvectors."""
        model, most = self._model, max(FEWEST, _affordable(self._search))
        if model.filled + 2 > most:
            self._model = _Model(*model.leading(min(KEPT, most // 2)))
        if self._model.filled + 2 > len(self._model.basis):
            self._model.grow()

    def found(self) -> TrackedEigenpair:
        """Return the result after at least one product."""
        value, residual = self._model.ritz()
        vectors, values = self._model.leading(min(KEPT, _affordable(self._search)))
        converged = self.done and self._model.settled(self._tolerance)
        return TrackedEigenpair(
            value, residual, float(values[0]), converged, self.products, vectors, values, self._search
        )


def _affordable(like: Tensor) -> int:
    """Return how many vectors fit into the memory limit, at least one."""
    return max(1, BASIS_BYTES // (like.numel() * like.element_size()))


class _Model:
    """A model of the operator on a basis: exact on multiplied directions, from earlier eigenvalues elsewhere."""

    def __init__(self, vectors: Tensor, values: np.ndarray) -> None:
        self.basis = vectors.new_empty(len(vectors) + GROWTH, vectors.shape[1])
        self.old, self.share = np.zeros(0), 1.0  # earlier eigenvalues, and a common factor on them
        self.known = self.images = np.zeros(
            (0, 0)
        )  # multiplied directions and their images, one row each, in basis coordinates
        for vector, value in zip(vectors, values, strict=True):
            if self._join(vector) > 0.0:
                self.old[-1] = value

    @property
    def filled(self) -> int:
        """Return the number of vectors of the basis."""
        return len(self.old)

    def grow(self) -> None:
        """Make room for more vectors of the basis."""
        more = self.basis.new_empty(GROWTH, self.basis.shape[1])
        self.basis = torch.cat([self.basis[: self.filled], more])

    def _join(self, vector: Tensor, coordinates: Tensor | None = None) -> float:
        """Add the component of a vector outside the basis to the basis; return its length (zero if only rounding).

        Args:
            vector: the vector, left unchanged.
            coordinates: its inner products with the basis, if known.
        """
        rows, new = self.basis[: self.filled], self.basis[self.filled]
        before = length(vector)
        new.copy_(vector)
        self._subtract(new, dots(rows, vector) if coordinates is None else coordinates)
        rest = length(new)
        if rest < MUCH * before:  # so much cancelled that its rounding matters
            self._subtract(new, dots(rows, new))
            rest = length(new)
        if not rest > 100 * torch.finfo(vector.dtype).eps * before:
            return 0.0
        new.div_(rest)
        self.old = np.pad(self.old, (0, 1))
        self.known, self.images = (np.pad(m, ((0, 0), (0, 1))) for m in (self.known, self.images))
        return rest

    def _subtract(self, vector: Tensor, coordinates: Tensor) -> None:
        """Subtract a combination of the basis from a vector."""
        if self.filled:
            vector.addmv_(self.basis[: self.filled].mT, coordinates.to(vector), alpha=-1)

    def _fresh(self, coordinates: np.ndarray) -> np.ndarray | None:
        """Return the normalized part of a direction not multiplied yet, or ``None`` if it is too small."""
        scale = float(np.linalg.norm(coordinates))
        for _ in range(2):
            coordinates = coordinates - (self.known @ coordinates) @ self.known
        rest = float(np.linalg.norm(coordinates))
        return coordinates / rest if rest > NEW * scale else None

    def leading_direction(self) -> np.ndarray | None:
        """Return the new part of the model's leading eigenvector, or else the newest direction of the basis."""
        leading = self._fresh(np.linalg.eigh(self.matrix())[1][:, -1])
        return self.newest_direction() if leading is None else leading

    def newest_direction(self) -> np.ndarray | None:
        """Return the newest direction of the basis that was not multiplied yet."""
        units = np.eye(self.filled)[::-1]
        return next((c for c in map(self._fresh, units) if c is not None), None)

    def unmultiplied(self, vector: Tensor) -> np.ndarray | None:
        """Return the sum of all directions not multiplied yet, after adding a vector to the basis."""
        self._join(vector)
        return self._fresh(np.ones(self.filled))

    def last_image(self) -> np.ndarray | None:
        """Return the new part of the last product, or else the newest direction of the basis."""
        image = self._fresh(self.images[-1])
        return self.newest_direction() if image is None else image

    def refresh(self, direction: np.ndarray, apply: Apply) -> tuple[Tensor, float]:
        """Multiply a direction, and make the model exact on it.

        Returns:
            The product, and the largest eigenvalue that a direction not multiplied yet may have (meaningful if the
            direction is the sum of all of those).
        """
        rows = self.basis[: self.filled]
        vector = torch.as_tensor(direction, device=rows.device).to(rows.dtype) @ rows
        product = apply(vector)
        if not math.isfinite(length(product)):
            raise NonFiniteError("A product with the operator is not finite.")
        coordinates = dots(rows, product)
        rest = self._join(product, coordinates)
        new = self.filled - len(rows)
        image = np.append(coordinates.cpu().numpy(), [rest] * new)
        direction = np.append(direction, [0.0] * new)
        expected, found = direction @ self.matrix() @ direction, direction @ image
        if expected > 0.0:
            self.share *= min(1.0, max(0.0, found / expected))
        possible = self._possible(image - self.matrix() @ direction)
        self.known = np.vstack([self.known, direction])
        self.images = np.vstack([self.images, image])
        return product, possible

    def _possible(self, deviation: np.ndarray) -> float:
        """Return the largest eigenvalue a direction not multiplied may have, given a deviation from the model."""
        rest = np.linalg.svd(self.known, full_matrices=True)[2][len(self.known) :]
        values, vectors = np.linalg.eigh(rest @ self.matrix() @ rest.T)
        parts = np.abs(vectors.T @ (rest @ deviation))
        return float((values + DOUBT * len(values) ** 0.5 * parts).max(initial=-math.inf))

    def matrix(self) -> np.ndarray:
        """Return the model as a matrix: exact on multiplied directions, earlier eigenvalues on the rest."""
        rest = np.eye(self.filled) - self.known.T @ self.known
        mixed = self.images.T @ self.known
        twice = self.known.T @ (self.known @ self.images.T) @ self.known
        model = self.share * (rest @ np.diag(self.old) @ rest) + mixed + mixed.T - twice
        return (model + model.T) / 2

    def _pair(self) -> tuple[float, np.ndarray]:
        """Return the largest Ritz value over the multiplied directions, and its weights."""
        small = self.known @ self.images.T
        values, vectors = np.linalg.eigh((small + small.T) / 2)
        return float(values[-1]), vectors[:, -1]

    def ritz(self) -> tuple[float, float]:
        """Return the largest Ritz value and the residual of its vector."""
        value, weights = self._pair()
        return value, float(np.linalg.norm(weights @ self.images - value * (weights @ self.known)))

    def settled(self, tolerance: float) -> bool:
        """Return whether the residual is small enough and no earlier eigenvalue is larger."""
        if not len(self.known):
            return False
        value, residual = self.ritz()
        return max(residual, float(np.linalg.eigvalsh(self.matrix())[-1]) - value) <= tolerance * abs(value)

    def leading(self, count: int) -> tuple[Tensor, np.ndarray]:
        """Return the leading eigenvectors of the model and their eigenvalues, largest first."""
        values, vectors = np.linalg.eigh(self.matrix())
        chosen = vectors[:, ::-1][:, :count].T.copy()
        rows = torch.as_tensor(chosen, device=self.basis.device).to(self.basis.dtype)
        return rows @ self.basis[: self.filled], values[::-1][:count].copy()
