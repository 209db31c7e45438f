"""Quadratics on balls: no point of the ball is lower, also where the matrix is indefinite or the case hard."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.generalization.trust_region import largest_magnitude_on_ball, least_on_ball


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


def test_wrong_arguments() -> None:
    """Shapes that do not fit, no radius."""
    with pytest.raises(InputError):
        least_on_ball(torch.eye(2), torch.ones(3), 1.0)
    with pytest.raises(InputError):
        least_on_ball(torch.eye(2), torch.ones(2), 0.0)
