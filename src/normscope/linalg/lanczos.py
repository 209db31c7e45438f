"""Lanczos on the Gram operator with a random start: attained lower bounds and probabilistic upper bounds."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.core.value import log_of
from normscope.linalg.bounds import NormBounds
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF
from normscope.operators.linear_map import LinearMap

#: Relative rounding error taken for granted of one ``apply``: ||fl(Ax) - Ax|| <= APPLY_ERROR ||A|| ||x||.
APPLY_ERROR = 1e-12
#: The most numbers a stored basis may hold (2 GiB of float64): in very large spaces it ends a run early.
BASIS_NUMBERS = 2**28
#: Dimensions up to which a run always reorthogonalises.
SMALL_SPACE = 4096
#: Steps between two checks of the Ritz values.
LOOK_EVERY = 4


@statement("kuczynski1992", "Theorem 4.2", holds="exact arithmetic, N >= 3, start uniform on the sphere")
def lanczos_relative_gap(dimension: int, steps: int, delta: float) -> float:
    r"""Return ``e`` such that :math:`P(\lambda_1 > \theta_k / (1 - e)) \le \delta` after ``k`` Lanczos steps.

    The theorem is :math:`P(\lambda_1 > \theta_k/(1-e)) \le 1.648 \sqrt N e^{-\sqrt e (2k-1)}`, hence
    :math:`e = \left(\ln(1.648 \sqrt N / \delta) / (2k-1)\right)^2`. It is proved in ``docs/theory.md``, with
    :math:`\sqrt{8/\pi} < 1.596` in the place of 1.648. N is the dimension of the space of the start vector.

    Raises:
        ValueError: if ``delta`` is not in (0, 1) or there is no step.

    >>> round(lanczos_relative_gap(10_000, 100, 1e-9), 4)
    0.0168
    """
    if not 0.0 < delta < 1.0 or steps < 1:
        raise ValueError(f"Expected delta in (0, 1) and at least one step, got {delta} and {steps}.")
    return min(1.0, (math.log(1.648 * math.sqrt(dimension) / delta) / (2 * steps - 1)) ** 2)


@statement("normscope", "Krylov certificate", holds="exact arithmetic, N >= 3, start uniform on the sphere")
def krylov_certificate(
    diagonal: np.ndarray, off_diagonal: np.ndarray, dimension: int, delta: float, *, overlap: float = 1.0
) -> float:
    r"""Return ``u`` with :math:`P(\lambda_1 > u) \le \delta`, from the Lanczos coefficients themselves.

    Let :math:`\pi_0, \dots, \pi_k` be the polynomials orthonormal for the spectral measure of the start vector
    ``q``; the Lanczos coefficients are their recurrence. For every polynomial ``p`` of degree at most ``k``,
    :math:`\langle v_1, q\rangle^2 p(\lambda_1)^2 \le \|p(G) q\|^2`, and the best ``p`` gives
    :math:`\langle v_1, q\rangle^2 \sum_{j \le k} \pi_j(\lambda_1)^2 \le 1`. A start uniform on the sphere of
    :math:`R^N` has :math:`|\langle v_1, q\rangle| \ge \delta \sqrt{\pi / (2 (N-1))}` with probability at least
    :math:`1-\delta`, so with that probability, for all ``k`` at once,

    .. math:: \sum_{j=0}^{k} \pi_j(\lambda_1)^2 \le \frac{2 (N-1)}{\pi \delta^2}.

    The left side increases beyond the largest Ritz value; ``u`` is where it meets the right side. The a-priori
    theorem assumes the worst spectrum; this bound uses the actual one, and is far better when the largest eigenvalues
    are well separated.

    Args:
        diagonal: the ``k`` diagonal Lanczos coefficients.
        off_diagonal: the ``k`` off-diagonal ones, the coupling to the next vector included.
        dimension: the dimension ``N >= 3`` of the space of the start vector.
        delta: the allowed probability of failure.
        overlap: the squared norm :math:`\|V\|_2^2` of the Lanczos basis, 1 when it is orthonormal; it takes the place
            of the 1 in the inequality above.

    >>> bool(krylov_certificate(np.array([1.0]), np.array([0.0]), 10, 1e-9) == 1.0)  # an invariant subspace
    True
    """
    theta, _ = _largest_ritz(diagonal, off_diagonal[:-1])
    if off_diagonal[-1] <= 0.0:
        return theta
    target = _log_target(dimension, delta) + math.log(overlap)
    smallest = max(theta, 1e-300) * 1e-13
    width = smallest
    while log_christoffel(diagonal, off_diagonal, theta + width) < target:
        width *= 4.0
    low, high = (0.0 if width == smallest else width / 4.0), width
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        reached = log_christoffel(diagonal, off_diagonal, theta + middle) >= target
        low, high = (low, middle) if reached else (middle, high)
    return theta + high


def log_christoffel(diagonal: np.ndarray, off_diagonal: np.ndarray, x: float) -> float:
    r"""Return :math:`\ln \sum_{j=0}^{k} \pi_j(x)^2` of the polynomials orthonormal for the Lanczos coefficients.

    The three-term recurrence is stable above the largest Ritz value, where all terms are positive.

    >>> round(math.exp(log_christoffel(np.array([1.0]), np.array([0.5]), 2.0)), 12)  # 1 + ((2 - 1) / 0.5)^2
    5.0
    """
    total, log_scale = 1.0, 0.0
    previous, current, coupling = 0.0, 1.0, 0.0
    for a, b in zip(diagonal.tolist(), off_diagonal.tolist(), strict=True):
        previous, current = current, ((x - a) * current - coupling * previous) / b
        coupling = b
        total += current * current
        if total > 1e200:
            previous, current, total = previous * 1e-100, current * 1e-100, total * 1e-200
            log_scale += 200.0 * math.log(10.0)
    return math.log(total) + log_scale


def _log_target(dimension: int, delta: float) -> float:
    r"""Return the logarithm of :math:`2 (N-1) / (\pi \delta^2)`."""
    return math.log(2.0 * (dimension - 1) / math.pi) - 2.0 * math.log(delta)


@dataclass(frozen=True)
class KrylovBounds:
    """Bounds on a norm from a Lanczos run."""

    lower: float  #: an attained value of the norm, rounding accounted for
    probable: float  #: an upper bound that holds with probability at least ``1 - delta`` (``inf`` if not requested)
    delta: float  #: that probability of failure
    ritz: float  #: the square root of the largest Ritz value
    steps: int  #: the number of Lanczos steps made
    exhausted: bool  #: whether the Krylov space became invariant, up to rounding
    vector: Tensor  #: a unit vector at which ``lower`` is attained, on the side that was iterated


def lanczos_norm(
    map: LinearMap,
    *,
    tolerance: float = 1e-3,
    delta: float | None = None,
    max_steps: int = 300,
    seed: int = 0,
    apply_error: float = APPLY_ERROR,
    start: Tensor | None = None,
    target: float = math.inf,
    reorthogonalise: bool = True,
) -> KrylovBounds:
    r"""Return an attained value of the norm of a map and, if ``delta`` is given, a probabilistic upper bound.

    Symmetric Lanczos on :math:`A^T A` or :math:`A A^T`, whichever acts on the smaller space, from a Gaussian start
    (uniform direction). Full reorthogonalisation keeps the basis orthonormal at the cost of ``k N`` numbers read per
    step. Without it the basis ``V`` slowly loses orthogonality; the recurrence still holds to rounding, and the upper
    bound stays valid with the sum of squares allowed to reach :math:`\|V\|_2^2` instead of 1.

    Args:
        map: the linear map, float64 for a rigorous result.
        tolerance: with ``delta``: stop when ``probable / lower - 1`` is at most this. Without: stop when the largest
            Ritz value has an error estimated below this (relative).
        delta: the allowed probability of failure of the upper bound; ``None`` for the lower bound alone.
        max_steps: the most Lanczos steps to make.
        seed: the seed of the start vector.
        apply_error: the relative rounding error of one application, subtracted from the attained value.
        start: a start vector on the iterated side, for a lower bound alone (``delta`` is ``None``).
        target: a value of the norm that is enough: stop when it is attained.
        reorthogonalise: whether to keep the basis orthonormal (needed to exhaust a space, costly in large ones).

    Returns:
        The bounds.

    Raises:
        ValueError: if both ``start`` and ``delta`` are given: an upper bound needs a random start.

    >>> A = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    >>> run = lanczos_norm(LinearMap.from_matrix(A), delta=1e-9)
    >>> run.exhausted, round(run.lower, 9), round(run.probable, 9)
    (True, 3.0, 3.0)
    """
    if start is not None and delta is not None:
        raise ValueError("A probabilistic bound needs a random start. Pass delta or start, not both.")
    small = map if map.domain_dimension <= map.range_dimension else map.transpose
    if start is None:  # a Gaussian vector: its direction is uniform on the sphere
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(small.domain_dimension, generator=generator, dtype=torch.float64)
    run = _Recurrence(small, start, max_steps, reorthogonalise)
    while run.may_continue:
        run.step()
        if run.may_continue and run.steps % LOOK_EVERY == 0 and _accurate_enough(run, delta, tolerance, target):
            break
    return _bounds(run, delta, apply_error)


class _Recurrence:
    r"""The three-term recurrence :math:`G v_k = b_{k-1} v_{k-1} + a_k v_k + b_k v_{k+1}` with :math:`G = A^T A`."""

    def __init__(self, map: LinearMap, start: Tensor, max_steps: int, reorthogonalise: bool) -> None:
        dimension = map.domain_dimension
        limit = min(max_steps, dimension, max(8, BASIS_NUMBERS // max(dimension, 1) - 1))
        self.map = map
        #: the vectors, one per row; one more than steps made, unless the space is exhausted
        self.basis = torch.empty(limit + 1, dimension, dtype=map.dtype, device=map.device)
        self.basis[0] = (start / torch.linalg.vector_norm(start)).to(map.device, map.dtype)
        self.diagonal, self.coupling = np.zeros(limit), np.zeros(limit)  # the coefficients a and b
        # In a small space orthogonality is cheap, and a run must be able to exhaust it.
        self.reorthogonalise = reorthogonalise or dimension <= SMALL_SPACE
        self.steps, self.exhausted = 0, False  # exhausted: the space became invariant, up to rounding
        #: exponent of a power of two taken out of the map, so that fourth powers of its norm stay in the float range
        self.exponent = 0

    @property
    def may_continue(self) -> bool:
        """Return whether another step is possible."""
        return self.steps < len(self.diagonal) and not self.exhausted

    def step(self) -> None:
        """Apply the map and its adjoint once each; append a pair of coefficients and a basis vector."""
        k, basis = self.steps, self.basis
        image = self._image(basis[k].reshape(self.map.domain_shape))
        following = self.map.adjoint(image).reshape(-1)
        self.diagonal[k] = float(torch.linalg.vector_norm(image)) ** 2
        # The recurrence takes out the two large components; one pass against all vectors removes what rounding left.
        following = torch.add(following, basis[k], alpha=-self.diagonal[k])
        if k:
            following.add_(basis[k - 1], alpha=-self.coupling[k - 1])
        if self.reorthogonalise:
            following = following - (basis[: k + 1] @ following) @ basis[: k + 1]
        self.coupling[k] = float(torch.linalg.vector_norm(following))
        self.steps = k + 1
        scale = max(float(self.diagonal[: k + 1].max()), float(self.coupling[: k + 1].max()))
        noise = 16.0 * torch.finfo(self.map.dtype).eps * scale
        if self.steps == self.map.domain_dimension:
            self.exhausted, self.coupling[k] = True, 0.0
        elif self.coupling[k] <= noise:
            # Invariant as far as rounding can tell: what may hide below it stays in the bound.
            self.exhausted, self.coupling[k] = True, noise
        else:
            torch.div(following, float(self.coupling[k]), out=basis[self.steps])

    def _image(self, vector: Tensor) -> Tensor:
        """Return the image of a vector; scale the map if the first image is very large or small."""
        image = self.map.apply(vector)
        if self.steps == 0 and image.numel():
            exponent = math.frexp(float(image.abs().max()))[1]  # 0 for zero, NaN and infinity
            room = math.frexp(torch.finfo(self.map.dtype).max)[1]
            if abs(exponent) > room // 10:
                self.exponent = max(24 - room, min(exponent, room - 24))  # its power of two has an inverse
                self.map = self.map.scaled(2.0**-self.exponent)
                return image * 2.0**-self.exponent
        return image

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the coefficients so far, the coupling to the next vector included."""
        return self.diagonal[: self.steps], self.coupling[: self.steps]

    def overlap(self) -> float:
        r"""Return :math:`\|V\|_2^2` of the basis: 1 if it was kept orthonormal."""
        if self.reorthogonalise:
            return 1.0
        stored = self.basis[: self.steps] if self.exhausted else self.basis[: self.steps + 1]
        return float(torch.linalg.eigvalsh(stored @ stored.mT)[-1])


def _bounds(run: _Recurrence, delta: float | None, apply_error: float) -> KrylovBounds:
    diagonal, coupling = run.coefficients()
    theta, weights = _largest_ritz(diagonal, coupling[:-1])
    vector = torch.as_tensor(weights, dtype=run.map.dtype, device=run.map.device) @ run.basis[: run.steps]
    lower = attained_norm(run.map, vector.reshape(run.map.domain_shape), apply_error=apply_error)
    probable = math.inf if delta is None else _probable(run, delta, apply_error)
    scale = 2.0**run.exponent
    return KrylovBounds(
        min(lower * scale, sys.float_info.max) if lower * scale > sys.float_info.min else 0.0,
        max(probable, lower) * scale,
        delta or 0.0,
        math.sqrt(max(theta, 0.0)) * scale,
        run.steps,
        run.exhausted,
        vector.reshape(-1),
    )


def attained_norm(map: LinearMap, vector: Tensor, *, apply_error: float = APPLY_ERROR) -> float:
    r"""Return :math:`\|A v\| / \|v\|` lowered by its rounding error: never above the norm of the map.

    >>> attained_norm(LinearMap.from_matrix(torch.eye(2, dtype=torch.float64)), torch.ones(2, dtype=torch.float64)) <= 1
    True
    """
    length = float(torch.linalg.vector_norm(vector.to(torch.float64)))
    if length == 0.0:
        return 0.0
    stretched = float(torch.linalg.vector_norm(map.apply(vector).to(torch.float64)))
    # Two Euclidean norms of n numbers each: relative error below (n/2 + 3) u, however they are summed.
    count = map.domain_dimension + map.range_dimension
    return stretched / length * max(0.0, 1.0 - apply_error - (count / 2 + 8) * UNIT_ROUNDOFF)


def _largest_ritz(diagonal: np.ndarray, off_diagonal: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the largest eigenvalue of a symmetric tridiagonal matrix and its eigenvector."""
    k = len(diagonal)
    if k == 1:
        return float(diagonal[0]), np.ones(1)
    from scipy.linalg import eigh_tridiagonal  # slow to load, and dense norms do without

    values, vectors = eigh_tridiagonal(diagonal, off_diagonal, select="i", select_range=(k - 1, k - 1))
    return float(values[0]), vectors[:, 0]


def _accurate_enough(run: _Recurrence, delta: float | None, tolerance: float, target: float) -> bool:
    diagonal, coupling = run.coefficients()
    theta, weights = _largest_ritz(diagonal, coupling[:-1])
    if math.sqrt(max(theta, 0.0)) >= target * 2.0**-run.exponent:
        return True
    if delta is not None:
        needed = _log_target(run.map.domain_dimension, delta)
        return log_christoffel(diagonal, coupling, theta * (1.0 + tolerance) ** 2) >= needed
    # The residual bounds the distance to an eigenvalue; the Ritz value itself is more accurate still.
    residual = abs(coupling[-1] * weights[-1])
    return bool(residual <= theta * tolerance)


def _probable(run: _Recurrence, delta: float, apply_error: float) -> float:
    """Return the upper bound on the norm with probability ``1 - delta``, widened by the rounding of the run."""
    square = krylov_certificate(*run.coefficients(), run.map.domain_dimension, delta, overlap=run.overlap())
    # The coefficients are within a small multiple of u ||G|| of those of an exact recurrence.
    margin = 4.0 * apply_error + 4.0 * run.steps * math.sqrt(run.steps) * UNIT_ROUNDOFF
    return math.sqrt(square) * (1.0 + margin)


def operator_norm(map: LinearMap, *, tolerance: float = 1e-2, delta: float = 1e-9, seed: int = 0) -> NormBounds:
    r"""Return an attained value and a probabilistic upper bound on the norm of a linear map, without a certificate.

    Returns:
        The bounds. They assume that one application is computed to relative accuracy ``APPLY_ERROR`` in norm.

    >>> bounds = operator_norm(LinearMap.from_function(lambda x: x[1:] - x[:-1], (50,)))
    >>> bounds.lower <= 2 * math.cos(math.pi / 100) <= bounds.probable, bounds.upper
    (True, inf)
    """
    small = map if map.domain_dimension <= map.range_dimension else map.transpose
    if small.domain_dimension == 0:
        return NormBounds.exact(0.0, method="zero")
    run = lanczos_norm(small, tolerance=tolerance, delta=delta, seed=seed, reorthogonalise=False)
    if run.ritz == 0.0:  # a random vector is mapped to zero
        return NormBounds(-math.inf, math.inf, -math.inf, delta, "lanczos")
    found = NormBounds.certified(log_of(run.lower), math.inf, "lanczos")  # the lower bound of a subnormal norm is zero
    return found.with_probable(math.log(run.probable), run.delta, "lanczos")
