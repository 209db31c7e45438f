"""Spheres: metric and Hessian against their definitions."""

from __future__ import annotations

import torch

from normscope.geometry.sphere import project, riemannian_hessian, scale_invariant_metric


def points(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points of length two and tangents at them."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.nn.functional.normalize(torch.randn(5, 4, generator=generator, dtype=torch.float64))
    return x, project(x, torch.randn(5, 4, generator=generator, dtype=torch.float64))


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
