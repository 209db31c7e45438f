r"""Spheres: points are blocks of a tensor, each a vector of fixed length; directions are orthogonal to them.

A weight that a normalizer follows matters only through its direction ``w/||w||``, so its natural space is a sphere. All
functions take tensors whose last axis is the vector.
"""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.core.statement import statement


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """Return inner products along the last axis, which stays."""
    return (a * b).sum(-1, keepdim=True)


def unit(x: Tensor) -> Tensor:
    """Return vectors of length one.

    >>> unit(torch.tensor([3.0, 4.0])).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


@statement("akbar2025", "Section 4.2 (metric)", holds="as stated; invariant under y -> c y with both directions")
def scale_invariant_metric(y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    r"""Return ``g_y(a, b) = a.b/y.y``, which does not change when ``y``, ``a`` and ``b`` are scaled together.

    >>> y, a = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 1.0])
    >>> float(scale_invariant_metric(y, a, a)) == float(scale_invariant_metric(3 * y, 3 * a, 3 * a)) == 0.25
    True
    """
    return (_inner(a, b) / _inner(y, y))[..., 0]


def project(x: Tensor, v: Tensor) -> Tensor:
    """Return the part of a direction that is orthogonal to the point.

    >>> project(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 3.0])).tolist()
    [0.0, 3.0]
    """
    return v - x * (_inner(x, v) / _inner(x, x))


def retract(x: Tensor, v: Tensor) -> Tensor:
    """Return ``x + v`` brought back to the length of ``x``: agrees with the exponential map to second order.

    >>> retract(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])).round(decimals=4).tolist()
    [1.7999999523162842, 2.4000000953674316]
    """
    return unit(x + v) * torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def exponential(x: Tensor, v: Tensor) -> Tensor:
    r"""Return the end of the great circle from ``x`` along the tangent ``v``, of length ``||v||``.

    >>> half_turn = exponential(torch.tensor([1.0, 0.0]), torch.tensor([0.0, torch.pi]))
    >>> half_turn.round(decimals=4).tolist()
    [-1.0, -0.0]
    """
    radius = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    length = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    angle = length / radius
    along = torch.where(length > 0, v / length.clamp_min(torch.finfo(v.dtype).tiny), v)
    return x * angle.cos() + along * radius * angle.sin()


def logarithm(x: Tensor, y: Tensor) -> Tensor:
    """Return the tangent at ``x`` whose exponential is ``y``, both of one length.

    >>> logarithm(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])).round(decimals=4)
    tensor([0.0000, 1.5708])
    """
    radius = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    towards = project(x, y)
    size = torch.linalg.vector_norm(towards, dim=-1, keepdim=True)
    angle = angles(x, y)[..., None]
    return torch.where(size > 0, towards / size.clamp_min(torch.finfo(x.dtype).tiny), towards) * angle * radius


def transport(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
    r"""Return a tangent at ``x`` carried to ``y`` along the great circle between them, without turning.

    ``v - (x^ + y^) <y^, v>/(1 + <x^, y^>)`` with the unit vectors; it is an isometry of the tangent spaces.

    >>> transport(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0])).tolist()
    [-2.0, 0.0]
    """
    one, two = unit(x), unit(y)
    return v - (one + two) * (_inner(two, v) / (1 + _inner(one, two)))


def angles(x: Tensor, y: Tensor) -> Tensor:
    """Return the angles between vectors, accurate also where they are tiny (Kahan's form).

    >>> angles(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 2.0])).round(decimals=4)
    tensor(0.7854)
    """
    one, two = unit(x), unit(y)
    across = torch.linalg.vector_norm(one - two, dim=-1)
    return 2 * torch.atan2(across, torch.linalg.vector_norm(one + two, dim=-1))


@statement("normscope", "Sphere derivatives", holds="any smooth loss; for a scale-invariant one <w, grad> = 0")
def riemannian_hessian(x: Tensor, v: Tensor, gradient: Tensor, hessian_product: Tensor) -> Tensor:
    r"""Return the Hessian on the unit sphere along a tangent: ``P H v - <x, grad> v``.

    Args:
        x: the point, of length one.
        v: a tangent at it.
        gradient: the Euclidean gradient at ``x``.
        hessian_product: the Euclidean Hessian times ``v``.

    >>> x, v = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    >>> riemannian_hessian(x, v, torch.tensor([2.0, 0.0]), torch.tensor([5.0, 3.0])).tolist()
    [0.0, 1.0]
    """
    return project(x, hessian_product) - v * _inner(x, gradient)
