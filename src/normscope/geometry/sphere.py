r"""Spheres: metric, tangent projection and Riemannian Hessian for weights of fixed length.

A weight that a normalizer follows matters only through its direction ``w/||w||``, so its natural space is a sphere. All
functions take tensors whose last axis is the vector.
"""

from torch import Tensor

from normscope.core.statement import statement


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """Return inner products along the last axis, which stays."""
    return (a * b).sum(-1, keepdim=True)


@statement("akbar2025", "Section 4.2 (metric)", holds="as stated; invariant under y -> c y with both directions")
def scale_invariant_metric(y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    r"""Return ``g_y(a, b) = a.b/y.y``, which does not change when ``y``, ``a`` and ``b`` are scaled together.

    >>> import torch
    >>> y, a = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 1.0])
    >>> float(scale_invariant_metric(y, a, a)) == float(scale_invariant_metric(3 * y, 3 * a, 3 * a)) == 0.25
    True
    """
    return (_inner(a, b) / _inner(y, y))[..., 0]


def project(x: Tensor, v: Tensor) -> Tensor:
    """Return the part of a direction that is orthogonal to the point.

    >>> import torch
    >>> project(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 3.0])).tolist()
    [0.0, 3.0]
    """
    return v - x * (_inner(x, v) / _inner(x, x))


@statement("normscope", "Sphere derivatives", holds="any smooth loss; for a scale-invariant one <w, grad> = 0")
def riemannian_hessian(x: Tensor, v: Tensor, gradient: Tensor, hessian_product: Tensor) -> Tensor:
    r"""Return the Hessian on the unit sphere along a tangent: ``P H v - <x, grad> v``.

    Args:
        x: the point, of length one.
        v: a tangent at it.
        gradient: the Euclidean gradient at ``x``.
        hessian_product: the Euclidean Hessian times ``v``.

    >>> import torch
    >>> x, v = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    >>> riemannian_hessian(x, v, torch.tensor([2.0, 0.0]), torch.tensor([5.0, 3.0])).tolist()
    [0.0, 1.0]
    """
    return project(x, hessian_product) - v * _inner(x, gradient)
