r"""The dense Hessian of a loss of named parameters, and a bound on its smallest eigenvalue under scale invariance."""

import math

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.geometry.flow import Loss, Point, packed, unpacked


def dense_hessian(loss: Loss, point: Point) -> Tensor:
    """Return the symmetric Hessian over all parameters, flattened in the order of the point.

    >>> dense_hessian(lambda p: (p["a"] * p["b"]).sum(), {"a": torch.ones(1), "b": torch.ones(1)}).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    flat = packed(point).detach()
    matrix = torch.autograd.functional.hessian(lambda x: loss(unpacked(x, point)), flat)
    return (matrix + matrix.mT) / 2


def nullity(matrix: Tensor, relative: float = 1e-10) -> int:
    """Return how many eigenvalues of a symmetric matrix vanish: below ``relative`` times the largest in magnitude.

    >>> nullity(torch.diag(torch.tensor([1.0, 1e-14, 2.0], dtype=torch.float64)))
    1
    """
    sizes = torch.linalg.eigvalsh(matrix).abs()
    return int((sizes <= relative * sizes.max()).sum())


@statement(
    "akbar2025", "Section 6.1", holds="corrected: H w = -grad L, so the Hessian is indefinite off stationary points"
)
def smallest_eigenvalue_bound(gradient_curvature: float, gradient_norm: float, weight_norm: float) -> float:
    r"""Return an upper bound of the smallest eigenvalue of the Hessian of a scale-invariant loss.

    ``lambda_min <= (h - sqrt(h^2 + 4 ||grad||^2/||w||^2))/2``, ``h`` the curvature along the gradient: it is the
    smaller eigenvalue of ``[[0, -||grad||/||w||], [-||grad||/||w||, h]]``, the Hessian in the plane of ``w`` and
    ``grad``, because ``w^T H w = 0`` and ``H w = -grad``. Negative wherever the gradient is not zero.

    Args:
        gradient_curvature: ``h = g^^T H g^`` with the unit gradient ``g^``.
        gradient_norm: ``||grad||``.
        weight_norm: ``||w|| > 0``.

    Raises:
        InputError: if the weight is zero.

    >>> smallest_eigenvalue_bound(0.0, 2.0, 1.0)
    -2.0
    """
    if not weight_norm > 0.0:
        raise InputError("A scale-invariant loss is undefined at zero weight. Pass a positive norm.")
    ratio = gradient_norm / weight_norm
    root = math.hypot(gradient_curvature, 2.0 * ratio)
    # h - root without cancellation where h > 0
    return -2.0 * ratio**2 / (gradient_curvature + root) if gradient_curvature > 0 else (gradient_curvature - root) / 2
