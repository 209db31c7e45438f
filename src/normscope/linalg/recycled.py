"""The largest eigenvalue of a symmetric operator that has changed a little since it was last looked at."""

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
#: Vectors to remember, if they fit into :data:`normscope.linalg.thick_restart.BASIS_BYTES`.
KEPT = 8
#: Vectors of a basis with which the search makes progress, whatever memory is set aside.
FEWEST = 6
#: How much smaller the residual of a search without memory must be: at first it may be small at the second eigenvalue.
COLD = 0.1
#: How much more a direction may have grown than its equal part of a product shows.
DOUBT = 2.0
#: Vectors by which a basis grows.
GROWTH = 8
#: The part of a vector that is left where one subtraction of its components along a basis is enough.
MUCH = 0.7
#: A direction of which less than this is new is not worth a product.
NEW = 1e-3


@dataclass(frozen=True)
class Followed:
    r"""The largest eigenpair of an operator ``A``, and what to start from the next time."""

    #: the largest Ritz value :math:`\theta` over the directions that were multiplied; attained, so the largest
    #: eigenvalue is not below it
    value: float
    residual: float  #: :math:`\|A x - \theta x\|`; an eigenvalue lies within this distance
    estimate: float  #: the largest eigenvalue of the model of ``A``, which also holds what is remembered
    converged: bool  #: whether the residual is small enough, and a look at other directions found nothing larger
    products: int  #: products with ``A`` that were made
    vectors: Tensor  #: orthonormal rows near the leading eigenvectors, to be remembered
    values: np.ndarray  #: their eigenvalues in the model
    search: Tensor  #: where to look next for what the remembered vectors do not see


class Search:
    r"""Looks for the largest eigenvalue of an operator, some products at a time.

    The operator is modelled by a matrix ``M`` on a basis ``V``, at first :math:`\operatorname{diag}(\theta)` on the
    vectors that are remembered of an earlier operator. Each product is made with what is new in the leading eigenvector
    :math:`x = V^T c` of the model; the part of :math:`A x` outside the basis joins it, and the model becomes the
    nearest one that is right on ``x``,

    .. math:: M \leftarrow (I - c c^T) M (I - c c^T) + y c^T + c y^T - (c^T y) c c^T, \qquad y = V A x .

    So old eigenvectors of nearby eigenvalues, which a Krylov space would have to find again, cost no products; without
    any this is the Lanczos method. If a product gives less than the model expected, all that is remembered shrinks by
    the same factor. The value is the Rayleigh-Ritz value over the directions multiplied now; nothing remembered enters
    it.

    A small residual does not tell that the eigenvalue is the largest: another direction may have overtaken. So a search
    from remembered vectors ends with a product of the sum of all directions that were not multiplied, among them one
    outside the basis that is followed from search to search by a power iteration. By how much that differs from what
    the model expects, one of them may have grown; if that could make it the largest, what came out of the product is
    multiplied as well. Where this finds something larger, the search goes on. A search from a random vector has no such
    directions; its residual must be smaller by the factor :data:`COLD` instead.

    Args:
        start: a random vector, or what was found of an earlier operator.
        tolerance: relative residual to reach from what was found earlier.

    Attributes:
        products: products made so far.
        done: whether nothing more is to be found.

    >>> d = torch.arange(1.0, 101.0, dtype=torch.float64)
    >>> search = Search(torch.ones(100, dtype=torch.float64), tolerance=1e-4)
    >>> search.advance(lambda v: d * v, 60)
    >>> round(search.found().value, 4)
    100.0
    >>> search = Search(search.found(), tolerance=1e-2)
    >>> search.advance(lambda v: d * v + 0.1 * v.flip(0), 4)
    >>> round(search.found().value, 2), search.done, search.products
    (100.0, True, 2)
    """

    def __init__(self, start: Tensor | Followed, *, tolerance: float = 1e-2) -> None:
        self._tolerance = COLD * tolerance if isinstance(start, Tensor) else tolerance
        if isinstance(start, Tensor):
            self._model, self._search = _Model(start[None], np.zeros(1)), start
        else:
            self._model, self._search = _Model(start.vectors, start.values), start.search
        self._looks = 0 if isinstance(start, Tensor) else 2  # at what was not multiplied, still to be made
        self.products, self.done = 0, False

    def advance(self, apply: Apply, products: int) -> None:
        """Make at most so many products, fewer if that is enough.

        Args:
            apply: multiplies a vector by the operator; the same operator each time.
            products: the most products to make.

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
            direction = self._unseen() if looking else self._model.leading_direction()
            if direction is None:  # the basis is the whole space
                self.done = True
                return
            image, possible = self._model.refresh(direction, apply)
            self.products += 1
            if looking:
                self._search = image
                self._looks = self._looks - 1 if possible > self._model.ritz()[0] else 0
            self.done = self._looks <= 0 and self._model.settled(self._tolerance)

    def _unseen(self) -> np.ndarray | None:
        """Return the sum of all that was not multiplied, or what is new in what came out of that."""
        return self._model.unmultiplied(self._search) if self._looks == 2 else self._model.last_image()

    def _make_room(self) -> None:
        """See to it that the basis can take two more vectors; if memory is short, keep the leading eigenvectors."""
        model, most = self._model, max(FEWEST, _affordable(self._search))
        if model.filled + 2 > most:
            self._model = _Model(*model.leading(min(KEPT, most // 2)))
        if self._model.filled + 2 > len(self._model.basis):
            self._model.grow()

    def found(self) -> Followed:
        """Return what is known after at least one product."""
        value, residual = self._model.ritz()
        vectors, values = self._model.leading(min(KEPT, _affordable(self._search)))
        converged = self.done and self._model.settled(self._tolerance)
        return Followed(value, residual, float(values[0]), converged, self.products, vectors, values, self._search)


def _affordable(like: Tensor) -> int:
    """Return how many vectors fit into the memory that is set aside, at least one."""
    return max(1, BASIS_BYTES // (like.numel() * like.element_size()))


class _Model:
    """An operator on a basis: right on the directions it was multiplied with, remembered elsewhere."""

    def __init__(self, vectors: Tensor, values: np.ndarray) -> None:
        self.basis = vectors.new_empty(len(vectors) + GROWTH, vectors.shape[1])
        self.old, self.share = np.zeros(0), 1.0  # remembered values, and how much of them still holds
        self.known = self.images = np.zeros((0, 0))  # directions that were multiplied, in coordinates, one a row
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
        """Add what a vector has outside the basis to it, and return its length; rounding is left out.

        Args:
            vector: the vector; it is not changed.
            coordinates: its inner products with the basis, if they are known.
        """
        rows, new = self.basis[: self.filled], self.basis[self.filled]
        before = length(vector)
        new.copy_(vector)
        self._subtract(new, dots(rows, vector) if coordinates is None else coordinates)
        rest = length(new)
        if rest < MUCH * before:  # much was subtracted, and its rounding is large beside what is left
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
        """Return the unit direction of what was not multiplied yet, if that is enough."""
        scale = float(np.linalg.norm(coordinates))
        for _ in range(2):
            coordinates = coordinates - (self.known @ coordinates) @ self.known
        rest = float(np.linalg.norm(coordinates))
        return coordinates / rest if rest > NEW * scale else None

    def leading_direction(self) -> np.ndarray | None:
        """Return what is new in the model's leading eigenvector, or else the newest direction of the basis."""
        leading = self._fresh(np.linalg.eigh(self.matrix())[1][:, -1])
        return self.newest_direction() if leading is None else leading

    def newest_direction(self) -> np.ndarray | None:
        """Return the newest direction of the basis that was not multiplied yet."""
        units = np.eye(self.filled)[::-1]
        return next((c for c in map(self._fresh, units) if c is not None), None)

    def unmultiplied(self, vector: Tensor) -> np.ndarray | None:
        """Return the sum of all directions that were not multiplied; a vector outside the basis becomes one of them."""
        self._join(vector)
        return self._fresh(np.ones(self.filled))

    def last_image(self) -> np.ndarray | None:
        """Return what is new in the last product, or else the newest direction of the basis."""
        image = self._fresh(self.images[-1])
        return self.newest_direction() if image is None else image

    def refresh(self, direction: np.ndarray, apply: Apply) -> tuple[Tensor, float]:
        """Multiply a direction, and make the model right on it.

        Returns:
            The product; and if the direction is the sum of all that were not multiplied, the largest eigenvalue that
            one of them may have.
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

    def _possible(self, surprise: np.ndarray) -> float:
        """Return the largest eigenvalue that a direction not multiplied may have if one of them is what surprised."""
        rest = np.linalg.svd(self.known, full_matrices=True)[2][len(self.known) :]
        values, vectors = np.linalg.eigh(rest @ self.matrix() @ rest.T)
        parts = np.abs(vectors.T @ (rest @ surprise))
        return float((values + DOUBT * len(values) ** 0.5 * parts).max(initial=-math.inf))

    def matrix(self) -> np.ndarray:
        """Return the model: right on what was multiplied, what is remembered on the rest."""
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
        """Return that value with the residual of its vector."""
        value, weights = self._pair()
        return value, float(np.linalg.norm(weights @ self.images - value * (weights @ self.known)))

    def settled(self, tolerance: float) -> bool:
        """Return whether the residual is small enough, and nothing that is remembered leads instead."""
        if not len(self.known):
            return False
        value, residual = self.ritz()
        return max(residual, float(np.linalg.eigvalsh(self.matrix())[-1]) - value) <= tolerance * abs(value)

    def leading(self, count: int) -> tuple[Tensor, np.ndarray]:
        """Return the leading eigenvectors of the model, as vectors, and their values, largest first."""
        values, vectors = np.linalg.eigh(self.matrix())
        chosen = vectors[:, ::-1][:, :count].T.copy()
        rows = torch.as_tensor(chosen, device=self.basis.device).to(self.basis.dtype)
        return rows @ self.basis[: self.filled], values[::-1][:count].copy()
