"""Spheres: maps, transport and the Hessian against their definitions."""

from __future__ import annotations

import math

import torch

from normscope.geometry.sphere import (
    angles,
    exponential,
    logarithm,
    project,
    retract,
    riemannian_hessian,
    scale_invariant_metric,
    transport,
    unit,
)


def points(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points of length two and tangents at them."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * unit(torch.randn(5, 4, generator=generator, dtype=torch.float64))
    return x, project(x, torch.randn(5, 4, generator=generator, dtype=torch.float64))


def test_exponential_and_logarithm_are_inverse() -> None:
    x, v = points()
    y = exponential(x, v)
    assert torch.allclose(y.norm(dim=1), torch.full((5,), 2.0).double())
    assert torch.allclose(logarithm(x, y), v, atol=1e-12)
    assert torch.allclose(angles(x, y), v.norm(dim=1) / 2)
    assert torch.equal(exponential(x, torch.zeros_like(x)), x)


def test_retraction_agrees_to_second_order() -> None:
    x, v = points()
    errors = [float((retract(x, t * v) - exponential(x, t * v)).norm()) for t in (1e-2, 5e-3)]
    assert math.log2(errors[0] / errors[1]) > 2.9


def test_transport_is_an_isometry_between_tangents() -> None:
    x, v = points()
    y = exponential(x, points(1)[1])
    moved = transport(x, y, v)
    assert float((moved * y).sum(1).abs().max()) < 1e-12
    assert torch.allclose(moved.norm(dim=1), v.norm(dim=1))


def test_metric_is_scale_invariant() -> None:
    x, v = points()
    assert torch.allclose(scale_invariant_metric(x, v, v), scale_invariant_metric(3 * x, 3 * v, 3 * v))


def test_hessian_is_the_second_derivative_along_great_circles() -> None:
    torch.manual_seed(0)
    a = torch.randn(4, 4, dtype=torch.float64)
    a = a + a.mT
    x, v = (t[0] for t in points())
    x = x / 2

    def loss(at: torch.Tensor) -> torch.Tensor:
        return (at @ a @ at) / 2 + at.sum()

    def along(t: torch.Tensor) -> torch.Tensor:
        return loss(x * torch.cos(t * v.norm()) + v / v.norm() * torch.sin(t * v.norm()))

    second = torch.autograd.functional.hessian(along, torch.zeros((), dtype=torch.float64))
    found = riemannian_hessian(x, v, a @ x + 1, a @ v)
    assert torch.allclose((found * v).sum(), second)
    assert abs(float(found @ x)) < 1e-12
