"""The largest eigenvalue of a symmetric operator that has changed a little since it was last looked at."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from normscope.core.errors import InputError, NonFiniteError
from normscope.linalg.accumulated import dots, length, orthogonalized
from normscope.linalg.thick_restart import BASIS_BYTES, FEWEST, eigenpairs

Apply = Callable[[Tensor], Tensor]
#: Vectors to remember, if they fit into :data:`normscope.linalg.thick_restart.BASIS_BYTES`.
KEPT = 8
#: A direction of which less than this is new is not worth a product.
NEW = 1e-3


@dataclass(frozen=True)
class Followed:
    r"""The largest eigenpair of an operator ``A``, and what to start from the next time.

    Attributes:
        value: the largest Ritz value :math:`\theta` over the directions that were multiplied; attained, so the largest
            eigenvalue is not below it.
        residual: :math:`\|A x - \theta x\|`; an eigenvalue lies within this distance.
        estimate: the largest eigenvalue of the model of ``A``, which also holds what is remembered.
        converged: whether the residual is small enough.
        products: products with ``A`` that were made.
        vectors: orthonormal rows near the leading eigenvectors, to be remembered.
        values: their eigenvalues in the model.
        search: where to look next for what the remembered vectors do not see.
    """

    value: float
    residual: float
    estimate: float
    converged: bool
    products: int
    vectors: Tensor
    values: np.ndarray
    search: Tensor


def begin(apply: Apply, start: Tensor, *, tolerance: float = 1e-2, max_products: int = 20) -> Followed:
    """Return the largest eigenvalue of an operator of which nothing is remembered yet, by Lanczos.

    Raises:
        NonFiniteError: if a product is not finite.

    >>> d = torch.arange(1.0, 21.0, dtype=torch.float64)
    >>> round(begin(lambda v: d * v, torch.ones(20, dtype=torch.float64), tolerance=1e-6).value, 6)
    20.0
    """
    size = max(2 + FEWEST, _affordable(start, max_products + 3))
    found = eigenpairs(
        partial(_finite, apply),
        start,
        largest=1,
        tolerance=tolerance,
        max_products=max_products,
        size=size,
        keep_basis=True,
    )
    assert found.basis is not None
    assert found.matrix is not None
    values, rotation = np.linalg.eigh(found.matrix)
    chosen = rotation[:, ::-1][:, : _affordable(start, KEPT)].T.copy()
    vectors = torch.as_tensor(chosen, device=start.device).to(start.dtype) @ found.basis
    value, residual = float(found.values[0]), float(found.residuals[0])
    estimate = value + float(found.errors[0])
    kept = values[::-1][: len(chosen)].copy()
    return Followed(value, residual, estimate, bool(found.converged[0]), found.products, vectors, kept, start)


def _finite(apply: Apply, vector: Tensor) -> Tensor:
    """Return a product, or refuse one that no eigenvalue can be taken from."""
    product = apply(vector)
    if not math.isfinite(length(product)):
        raise NonFiniteError("A product with the operator is not finite.")
    return product


def _affordable(like: Tensor, wanted: int) -> int:
    """Return how many vectors to hold: those wanted, or as many as memory is set aside for."""
    return max(1, min(wanted, BASIS_BYTES // (like.numel() * like.element_size())))


def follow(
    apply: Apply, before: Followed, *, tolerance: float = 1e-2, min_products: int = 2, max_products: int = 4
) -> Followed:
    r"""Return the largest eigenvalue of an operator from what was found of an earlier one, by few products.

    The operator is modelled by a matrix ``M`` on a basis ``V``, at first :math:`\operatorname{diag}(\theta)` on the
    remembered vectors. Each product is made with what is new in the leading eigenvector :math:`x = V^T c` of the model;
    the part of :math:`A x` outside the basis joins it, and the model becomes the nearest one that is right on ``x``,

    .. math:: M \leftarrow (I - c c^T) M (I - c c^T) + y c^T + c y^T - (c^T y) c c^T, \qquad y = V A x .

    So old eigenvectors of nearby eigenvalues, which a Krylov space would have to find again, cost no products. If a
    product gives less than the model expected, all that is remembered shrinks by the same factor. The value is the
    Rayleigh-Ritz value over the directions multiplied now; nothing remembered enters it. A product that is left over
    is one step of a power iteration across all that is remembered, which finds what has overtaken it in time.

    Raises:
        InputError: if no product is allowed.
        NonFiniteError: if a product is not finite.

    >>> d = torch.arange(1.0, 101.0, dtype=torch.float64)
    >>> old = begin(lambda v: d * v, torch.ones(100, dtype=torch.float64), tolerance=1e-4, max_products=60)
    >>> now = follow(lambda v: d * v + 0.1 * v.flip(0), old)
    >>> round(now.value, 2), now.converged, now.products
    (100.0, True, 2)
    """
    if max_products < 1:
        raise InputError(f"Expected at least one product, got {max_products}.")
    model = _Model(before.vectors, before.values, max_products + 1)
    search, products = before.search, 0
    while products < max_products:
        settled = products > 0 and model.settled(tolerance)
        if settled and products >= min_products:
            break
        direction = model.across(search) if settled else None
        looking = direction is not None
        direction = model.leading_direction() if direction is None else direction
        if direction is None:
            break
        image = model.refresh(direction, apply)
        search = image if looking else search
        products += 1
    value, residual = model.ritz()
    vectors, values = model.leading(_affordable(search, KEPT))
    return Followed(value, residual, float(values[0]), model.settled(tolerance), products, vectors, values, search)


class _Model:
    """An operator on a basis: right on the directions it was multiplied with, remembered elsewhere."""

    def __init__(self, vectors: Tensor, values: np.ndarray, room: int) -> None:
        count, dimension = vectors.shape
        self.basis = torch.empty(count + room, dimension, dtype=vectors.dtype, device=vectors.device)
        self.old, self.share = np.zeros(count + room), 1.0  # remembered values, and how much of them still holds
        self.known = np.zeros((0, count + room))  # directions that were multiplied, in coordinates, one a row
        self.images = self.known
        self.filled = 0
        for vector, value in zip(vectors, values, strict=True):
            if self._join(vector.clone()) > 0.0:
                self.old[self.filled - 1] = value

    def _join(self, vector: Tensor) -> float:
        """Add what a vector has outside the basis to it, and return its length; rounding is left out."""
        before = length(vector)
        rest = length(orthogonalized(vector, self.basis[: self.filled]))
        if not rest > 100 * torch.finfo(vector.dtype).eps * before or self.filled == len(self.basis):
            return 0.0
        torch.div(vector, rest, out=self.basis[self.filled])
        self.filled += 1
        return rest

    def _eigh(self) -> tuple[np.ndarray, np.ndarray]:
        """Return eigenvalues and eigenvectors of the model, ascending."""
        values, vectors = np.linalg.eigh(self.matrix()[: self.filled, : self.filled])
        return values, np.pad(vectors, ((0, len(self.old) - self.filled), (0, 0)))

    def _fresh(self, coordinates: np.ndarray) -> np.ndarray | None:
        """Return the unit direction of what was not multiplied yet, if that is enough."""
        scale = float(np.linalg.norm(coordinates))
        for _ in range(2):
            coordinates = coordinates - (self.known @ coordinates) @ self.known
        rest = float(np.linalg.norm(coordinates))
        return coordinates / rest if rest > NEW * scale else None

    def leading_direction(self) -> np.ndarray | None:
        """Return what is new in the model's leading eigenvector, or else the newest direction of the basis."""
        newest = np.eye(len(self.old))[: self.filled][::-1]
        return next((c for c in map(self._fresh, (self._eigh()[1][:, -1], *newest)) if c is not None), None)

    def across(self, vector: Tensor) -> np.ndarray | None:
        """Return the direction of a vector outside the basis, if it has any."""
        return np.eye(len(self.old))[self.filled - 1] if self._join(vector.clone()) > 0.0 else None

    def refresh(self, direction: np.ndarray, apply: Apply) -> Tensor:
        """Multiply a direction, make the model right on it, and return the product."""
        rows = self.basis[: self.filled]
        vector = torch.as_tensor(direction[: self.filled], device=rows.device).to(rows.dtype) @ rows
        product = _finite(apply, vector)
        image = np.zeros(len(self.old))
        image[: self.filled] = dots(rows, product).cpu().numpy()
        rest = self._join(product.clone())
        image[self.filled - 1] += rest
        expected, found = direction @ self.matrix() @ direction, direction @ image
        if expected > 0.0:
            self.share *= min(1.0, max(0.0, found / expected))
        self.known = np.vstack([self.known, direction])
        self.images = np.vstack([self.images, image])
        return product

    def matrix(self) -> np.ndarray:
        """Return the model: right on what was multiplied, what is remembered on the rest."""
        rest = np.eye(len(self.old)) - self.known.T @ self.known
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
        """Tell whether the residual is small enough, and nothing that is remembered leads instead."""
        value, residual = self.ritz()
        return max(residual, float(self._eigh()[0][-1]) - value) <= tolerance * abs(value)

    def leading(self, count: int) -> tuple[Tensor, np.ndarray]:
        """Return the leading eigenvectors of the model, as vectors, and their values, largest first."""
        values, vectors = self._eigh()
        chosen = vectors[: self.filled, ::-1][:, :count].T.copy()
        rows = torch.as_tensor(chosen, device=self.basis.device).to(self.basis.dtype)
        return rows @ self.basis[: self.filled], values[::-1][:count].copy()
