"""Polynomial regression with a known truth: every loss is exact, so that the error can be decomposed.

The extremes of quadratic functions on a ball, which the errors of linear models need, are exact too.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.core.display import Shown
from normscope.core.errors import InputError
from normscope.core.files import Saved
from normscope.core.json_form import SCHEMA_VERSION
from normscope.core.statement import statement
from normscope.generalization.decomposition import Decomposition, decompose

#: Nodes of Gauss-Legendre quadrature: exact for polynomials of degree below 400.
NODES = 200


@dataclass(frozen=True)
class Problem:
    """Inputs uniform on ``[-1, 1]``, ``y = y*(x) + noise``, square loss, family ``{w . phi(x): ||w|| <= B}``."""

    features: int  #: ``d``; ``phi`` are the first ``d`` Legendre polynomials, orthonormal for the distribution
    #: ``y*``, a smooth function of a tensor; by default ``sin(pi x)``
    truth: Callable[[Tensor], Tensor] = lambda x: torch.sin(math.pi * x)
    radius: float = 10.0  #: ``B``
    noise: float = 0.0  #: standard deviation of independent noise

    def __post_init__(self) -> None:
        if self.features < 1 or not self.radius > 0 or not self.noise >= 0:
            raise InputError("Expected at least one feature, a positive radius and non-negative noise.")

    def phi(self, x: Tensor) -> Tensor:
        """Return the features of inputs, one row each: ``sqrt(2 j + 1) P_j(x)``."""
        columns = [torch.ones_like(x), x]
        for j in range(1, self.features):
            columns.append(((2 * j + 1) * x * columns[j] - j * columns[j - 1]) / (j + 1))
        scales = torch.sqrt(2.0 * torch.arange(self.features, dtype=x.dtype) + 1)
        return torch.stack(columns[: self.features], 1) * scales


@dataclass(frozen=True)
class Quadratic:
    """A loss ``w^T A w - 2 b^T w + c`` of a linear model."""

    A: Tensor
    b: Tensor
    c: float

    def at(self, w: Tensor) -> float:
        """Return the loss of a weight."""
        return float(w @ self.A @ w - 2 * (self.b @ w)) + self.c


@dataclass(frozen=True, repr=False)
class Run(Shown, Saved):
    """A training run on the problem."""

    _kind = "decomposition"
    _layout = ("normscope.report.decomposition", "decomposition_sections")
    _rows = "parts"

    problem: Problem  #: distribution, truth and family
    samples: int  #: it was trained on
    steps: int  #: of gradient descent
    seed: int  #: of the data
    decomposition: Decomposition  #: where its error comes from
    trained: Tensor  #: weight of ``h_o``
    minimizer: Tensor  #: weight of ``h_o*``
    best: Tensor  #: weight of ``h*``
    largest_deviation: float  #: ``sup_h |F(P, h) - F(D, h)|`` over the family

    @property
    def parts(self) -> dict[str, float | None]:
        """Return the parts of the error by name."""
        return asdict(self.decomposition)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: the setting, the parts of the error and whether they add up."""
        parts, problem = self.decomposition, self.problem
        setting = {"features": problem.features, "samples": self.samples, "steps": self.steps}
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self._kind,
            "setting": setting | {"noise": problem.noise, "radius": problem.radius},
            "seed": self.seed,
            **self.parts,
            "slides_total": parts.slides_total,
            "largest_deviation": self.largest_deviation,
            "residuals": parts.residuals(),
            "adds_up": parts.adds_up(),
        }


def expected_loss(problem: Problem) -> Quadratic:
    """Return ``F(P, .)`` as a quadratic function of the weight, by quadrature; noise adds its variance."""
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(NODES))
    weights = weights / 2
    phi, y = problem.phi(nodes), problem.truth(nodes)
    return Quadratic(phi.T @ (weights[:, None] * phi), phi.T @ (weights * y), float(weights @ y**2) + problem.noise**2)


def training_loss(problem: Problem, x: Tensor, y: Tensor) -> Quadratic:
    """Return ``F(D, .)`` as a quadratic function of the weight."""
    phi = problem.phi(x)
    return Quadratic(phi.T @ phi / len(x), phi.T @ y / len(x), float(y @ y) / len(x))


def decompose_synthetic(
    features: int = 6, *, samples: int = 30, steps: int = 100, noise: float = 0.1, radius: float = 2.0, seed: int = 0
) -> Run:
    """Decompose the error of a model of ``sin(pi x)`` on [-1, 1], every term computed exactly.

    Args:
        features: polynomials in the family.
        samples: for training.
        steps: of gradient descent.
        noise: standard deviation of the noise.
        radius: bound on the norm of the weights.
        seed: of the data.

    >>> decompose_synthetic(4).decomposition.adds_up()
    True
    """
    return train_synthetic(Problem(features, radius=radius, noise=noise), samples, steps, seed)


@statement("than2025slides", "Errors of a trained model", holds="a family of bounded linear models, square loss")
def train_synthetic(problem: Problem, samples: int, steps: int, seed: int = 0) -> Run:
    """Draw data, train by projected gradient descent from zero, and decompose the error of the trained model.

    Every term is known: ``F(P, .)`` by quadrature, ``h*`` and ``h_o*`` as minimizers of quadratics on a ball, and
    ``sup_h |F(P, h) - F(D, h)|`` as the largest magnitude of a quadratic on that ball.

    Args:
        problem: distribution, truth and family.
        samples: ``m``.
        steps: of gradient descent with step length one over the curvature.
        seed: of the data.

    >>> run = train_synthetic(Problem(features=4), samples=30, steps=50)
    >>> run.decomposition.adds_up(), run.decomposition.estimation <= run.decomposition.bound
    (True, True)
    """
    if samples < 1 or steps < 0:
        raise InputError(f"Expected at least one sample and no negative number of steps, got {samples} and {steps}.")
    source = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(samples, generator=source, dtype=torch.float64) - 1
    y = problem.truth(x) + problem.noise * torch.randn(samples, generator=source, dtype=torch.float64)
    expected, training = expected_loss(problem), training_loss(problem, x, y)
    best = least_on_ball(expected.A, expected.b, problem.radius)
    minimizer = least_on_ball(training.A, training.b, problem.radius)
    trained = torch.zeros(problem.features, dtype=torch.float64)
    length = 1 / max(float(torch.linalg.eigvalsh(training.A)[-1]), 1e-300)
    for _ in range(steps):
        trained = trained - length * (training.A @ trained - training.b)
        trained = trained * min(1.0, problem.radius / max(float(torch.linalg.vector_norm(trained)), 1e-300))
    deviation = largest_magnitude_on_ball(
        expected.A - training.A, expected.b - training.b, expected.c - training.c, problem.radius
    )
    parts = decompose(
        truth=problem.noise**2,
        best=expected.at(best),
        trained=expected.at(trained),
        trained_on_data=training.at(trained),
        minimizer_on_data=training.at(minimizer),
        largest_deviation=deviation,
    )
    return Run(problem, samples, steps, seed, parts, trained, minimizer, best, deviation)


#: Relative size below which a component of the linear term is taken as zero.
_TINY = 1e-14


@statement("normscope", "Proposition GEN-1", holds="symmetric matrices; up to rounding")
def least_on_ball(matrix: Tensor, vector: Tensor, radius: float) -> Tensor:
    """Return a minimizer of ``w^T A w - 2 b^T w`` over ``||w|| <= B``, for any symmetric ``A``.

    ``w`` is a minimizer if and only if ``(A + m I) w = b`` for some ``m >= 0`` with ``A + m I`` positive semidefinite
    and ``m (B - ||w||) = 0``. With the eigenvalues of ``A`` the norm of ``w(m)`` is a decreasing function of ``m``,
    whose crossing of ``B`` is found by bisection; where it stays below, an eigenvector of the least eigenvalue
    makes up the rest.

    >>> least_on_ball(torch.eye(2, dtype=torch.float64), torch.tensor([3.0, 4.0], dtype=torch.float64), 1.0).tolist()
    [0.6, 0.8]
    """
    if matrix.dim() != 2 or matrix.shape != (vector.numel(),) * 2 or not (math.isfinite(radius) and radius > 0):
        raise InputError(f"Expected a square matrix, a matching vector and a positive radius, got radius {radius}.")
    eigenvalues, basis = torch.linalg.eigh(matrix.double())
    rotated = basis.T @ vector.double()
    scale = max(float(eigenvalues.abs().max()), float(rotated.abs().max()), 1e-300)
    least = float(eigenvalues[0])

    def norm(shift: float) -> float:
        return float(torch.linalg.vector_norm(_divided(rotated, eigenvalues + shift, scale)))

    start = max(0.0, -least)
    inside = _divided(rotated, eigenvalues + start, scale)
    blocked = (eigenvalues + start <= _TINY * scale) & (rotated.abs() > _TINY * scale)
    if not bool(blocked.any()) and float(torch.linalg.vector_norm(inside)) <= radius:
        if least < 0:  # the minimum is on the sphere: go along a direction that costs nothing to first order
            free = math.sqrt(max(0.0, radius**2 - float(inside @ inside)))
            inside = inside.clone()
            inside[0] += free if float(inside[0]) >= 0 else -free
        return basis @ inside
    low, high = start, start + scale + float(torch.linalg.vector_norm(rotated)) / radius
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if norm(middle) > radius else (low, middle)
    return basis @ _divided(rotated, eigenvalues + high, scale)


def _divided(vector: Tensor, by: Tensor, scale: float) -> Tensor:
    """Return a quotient, zero where both parts vanish, huge where only the divisor does."""
    zero = by <= _TINY * scale
    small = zero & (vector.abs() <= _TINY * scale)
    return torch.where(small, torch.zeros_like(vector), vector / torch.where(zero, torch.full_like(by, 1e-300), by))


@statement("normscope", "Proposition GEN-1", holds="symmetric matrices; up to rounding")
def largest_magnitude_on_ball(matrix: Tensor, vector: Tensor, constant: float, radius: float) -> float:
    """Return ``max |w^T A w - 2 b^T w + c|`` over ``||w|| <= B``: the larger of its two extremes.

    >>> zero = torch.zeros(1, dtype=torch.float64)
    >>> largest_magnitude_on_ball(torch.eye(1, dtype=torch.float64), zero, -3.0, 2.0)
    3.0
    """
    extremes = []
    for sign in (1.0, -1.0):
        w = least_on_ball(sign * matrix, sign * vector, radius)
        extremes.append(float(w @ matrix.double() @ w - 2 * (vector.double() @ w)) + constant)
    return max(map(abs, extremes))
