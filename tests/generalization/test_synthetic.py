"""The problem with a known truth: quadrature against closed forms and sampling; the split and its bound."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.generalization import Problem, train_synthetic
from normscope.generalization.synthetic import expected_loss, largest_magnitude_on_ball, least_on_ball, training_loss


def test_features_are_orthonormal() -> None:
    """Under the distribution of the inputs, so that expected losses are distances of weights."""
    loss = expected_loss(Problem(12))
    assert torch.allclose(loss.A, torch.eye(12, dtype=torch.float64), atol=1e-12)


def test_known_integrals() -> None:
    """For ``sin(pi x)``: mean square 1/2, and the coefficient of ``sqrt(3) x`` is ``sqrt(3)/pi``."""
    loss = expected_loss(Problem(2, noise=0.5))
    assert loss.c == pytest.approx(0.5 + 0.25, rel=1e-12)
    assert float(loss.b[0]) == pytest.approx(0.0, abs=1e-14)
    assert float(loss.b[1]) == pytest.approx(math.sqrt(3) / math.pi, rel=1e-12)


def test_expected_loss_against_sampling() -> None:
    """A million samples agree to their standard error."""
    problem = Problem(5, noise=0.3)
    source = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(10**6, generator=source, dtype=torch.float64) - 1
    y = problem.truth(x) + 0.3 * torch.randn(10**6, generator=source, dtype=torch.float64)
    w = torch.tensor([0.3, -1.0, 0.5, 0.2, 0.1], dtype=torch.float64)
    squares = (problem.phi(x) @ w - y) ** 2
    error = float(squares.std()) / 1000
    assert abs(expected_loss(problem).at(w) - float(squares.mean())) <= 5 * error
    assert training_loss(problem, x, y).at(w) == pytest.approx(float(squares.mean()), rel=1e-10)


@pytest.mark.parametrize("features", [1, 3, 8])
@pytest.mark.parametrize("samples", [3, 20, 200])
@pytest.mark.parametrize("steps", [0, 5, 500])
def test_parts_and_bound(features: int, samples: int, steps: int) -> None:
    """They add up; the signs are those of minimizers; the bound of the slides holds."""
    run = train_synthetic(Problem(features, radius=1.5, noise=0.2), samples, steps, seed=samples)
    parts = run.decomposition
    assert parts.adds_up()
    assert parts.approximation >= -1e-12
    assert parts.estimation >= -1e-12
    assert parts.optimization >= -1e-12
    assert parts.bound is not None
    assert abs(parts.estimation) <= parts.bound
    assert all(float(torch.linalg.vector_norm(w)) <= 1.5 * (1 + 1e-9) for w in (run.trained, run.minimizer, run.best))


def test_what_moves_which_part() -> None:
    """More features: less approximation error. More steps: less optimization error. More samples: less deviation."""
    few, many = (train_synthetic(Problem(d), 50, 100).decomposition for d in (2, 6))
    assert many.approximation < 0.1 * few.approximation
    short, long = (train_synthetic(Problem(6), 50, t).decomposition for t in (2, 500))
    assert long.optimization < 0.1 * short.optimization
    small, large = (train_synthetic(Problem(4), m, 100).largest_deviation for m in (30, 3000))
    assert large < small


@pytest.mark.turns(3)
def test_selection_is_negative_on_average() -> None:
    """The summary of the slides is above the error: over 60 data sets by more than five standard errors."""
    left_out = torch.tensor([
        train_synthetic(Problem(5, noise=0.3), 20, 200, seed=s).decomposition.selection for s in range(60)
    ])  # fmt: skip
    assert float(left_out.mean()) < -5 * float(left_out.std()) / math.sqrt(60)


def test_wrong_arguments() -> None:
    """No feature, no radius, no sample."""
    for make in (lambda: Problem(0), lambda: Problem(2, radius=0.0), lambda: Problem(2, noise=-1.0)):
        with pytest.raises(InputError):
            make()
    with pytest.raises(InputError, match="at least one sample"):
        train_synthetic(Problem(2), 0, 1)


def _ball(n: int, radius: float, source: torch.Generator) -> Tensor:
    """Return points in the ball and on the sphere."""
    p = torch.randn(4000, n, generator=source, dtype=torch.float64)
    p = p / torch.linalg.vector_norm(p, dim=1, keepdim=True)
    inner = p * torch.rand(4000, 1, generator=source, dtype=torch.float64) ** (1 / n)
    return radius * torch.cat([inner, p])


@pytest.mark.turns(3)
@pytest.mark.parametrize("case", ["indefinite", "definite", "negative", "zero", "hard", "no vector"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_no_point_is_lower(case: str, n: int) -> None:
    """Against thousands of points of the ball, and first-order conditions."""
    source = torch.Generator().manual_seed(n)
    for trial in range(6):
        A = torch.randn(n, n, generator=source, dtype=torch.float64)
        A = A + A.T
        b = torch.randn(n, generator=source, dtype=torch.float64)
        if case in ("definite", "negative"):
            A = A @ A * (1 if case == "definite" else -1)
        elif case == "zero":
            A = torch.zeros_like(A)
        elif case == "hard":
            v = torch.linalg.eigh(A)[1][:, 0]
            b = b - v * (v @ b)
        elif case == "no vector":
            b = torch.zeros_like(b)
        radius = 0.2 + 0.7 * trial
        w = least_on_ball(A, b, radius)
        assert float(torch.linalg.vector_norm(w)) <= radius * (1 + 1e-9)
        points = _ball(n, radius, source)
        others = ((points @ A) * points).sum(1) - 2 * points @ b
        here = float(w @ A @ w - 2 * b @ w)
        assert here <= float(others.min()) + 1e-9
        value = largest_magnitude_on_ball(A, b, 0.5, radius)
        assert value >= float((others + 0.5).abs().max()) - 1e-9
        assert value <= float((others + 0.5).abs().max()) + 0.35 * max(1.0, value)


def test_inside_it_is_the_linear_system() -> None:
    """A minimum inside the ball solves ``A w = b``."""
    A = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    b = torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert torch.allclose(least_on_ball(A, b, 100.0), torch.linalg.solve(A, b), rtol=1e-12)


def test_wrong_balls() -> None:
    """Shapes that do not fit, no radius."""
    with pytest.raises(InputError):
        least_on_ball(torch.eye(2), torch.ones(3), 1.0)
    with pytest.raises(InputError):
        least_on_ball(torch.eye(2), torch.ones(2), 0.0)
