r"""Exact derivatives of standardization and of weight normalization.

Standardization is ``z^ = (z - mean)/s`` with ``s = sqrt(sigma^2 + eps)`` and ``sigma^2`` the biased variance of the
``m`` values: over the batch for BatchNorm, over the features for LayerNorm. Its derivatives are to second order.
"""

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.rounding import as_float64, require_nonnegative
from normscope.core.statement import statement


def standardized(z: Tensor, eps: float, dim: int = 0) -> tuple[Tensor, Tensor]:
    r"""Return ``z^ = (z - mean)/s`` and ``s = sqrt(sigma^2 + eps)`` along an axis; differentiable to every order.

    Args:
        z: the values.
        eps: the stabilizer, ``>= 0``.
        dim: the axis over which mean and variance are taken; it stays in ``s`` with length one.

    >>> values, scale = standardized(torch.tensor([1.0, 3.0]), 0.0)
    >>> values.tolist(), scale.tolist()
    ([-1.0, 1.0], [1.0])
    """
    centred = z - z.mean(dim, keepdim=True)
    scale = (centred.square().mean(dim, keepdim=True) + eps).sqrt()
    return centred / scale, scale


@statement("akbar2025", "Appendix A.1.1", holds="corrected: z^_n z^_k is divided by m; sigma^2 + eps > 0")
def standardization_core(z: Tensor, eps: float) -> Tensor:
    r"""Return ``Q = I - 11^T/m - z^z^^T/m``; the Jacobian of standardization is ``Q/s``.

    ``Q`` is an orthogonal projector iff ``eps = 0``: ``Q z^ = (eps/s^2) z^``.

    Args:
        z: the ``m`` values that are standardized together.
        eps: the stabilizer, ``>= 0``.

    Returns:
        The symmetric m x m matrix in float64.

    Raises:
        InputError: if the variance and ``eps`` are both zero, where the map is not defined.

    >>> standardization_core(torch.tensor([1.0, 3.0]), 0.0).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    values, _ = _standardized(z, eps)
    m = values.numel()
    return torch.eye(m, dtype=torch.float64) - 1.0 / m - torch.outer(values, values) / m


@statement("akbar2025", "Equation (1)", holds="corrected by the factor gamma; delta = dL/da; every eps >= 0")
def batch_norm_backward(delta: Tensor, z: Tensor, gamma: Tensor | float, eps: float) -> Tensor:
    r"""Return ``dL/dz_n = gamma/(m s) (m delta_n - sum delta - z^_n sum delta z^)`` for every channel.

    Args:
        delta: ``dL/da``, of the shape of ``z``.
        z: the pre-activations, samples first: (m,) or (m, channels).
        gamma: the scale, one number or one per channel.
        eps: the stabilizer, ``>= 0``.

    Returns:
        The gradient in float64, of the shape of ``z``; it sums to zero over the batch.

    Raises:
        InputError: if the shapes differ, or a channel is constant and ``eps`` is zero.

    >>> batch_norm_backward(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([-1.0, 0.0, 1.0]), 2.0, 0.0).round(decimals=4)
    tensor([ 0.4082, -0.8165,  0.4082], dtype=torch.float64)
    """
    back, values, scale = _checked(delta, z, eps, 0)
    if back.ndim > 2:
        shape = tuple(back.shape)
        raise InputError(f"Expected z of shape (m,) or (m, channels), got {shape}. Put samples and positions first.")
    gain = gamma if isinstance(gamma, float | int) else _scales(gamma, back.shape[1:].numel())
    mean, correlation = back.mean(0, keepdim=True), (back * values).mean(0, keepdim=True)
    return gain / scale * (back - mean - values * correlation)


@statement("akbar2025", "Section 3.2 (layer norm)", holds="corrected: z^_i before the sum, gamma_j inside the sums")
def layer_norm_backward(delta: Tensor, z: Tensor, gamma: Tensor, eps: float) -> Tensor:
    r"""Return ``dL/dz_i = (d gamma_i delta_i - sum gamma_j delta_j - z^_i sum gamma_j delta_j z^_j)/(d s)``.

    Args:
        delta: ``dL/da``, of the shape of ``z``.
        z: the pre-activations; the last axis holds the ``d`` features.
        gamma: the scale, one per feature.
        eps: the stabilizer, ``>= 0``.

    Returns:
        The gradient in float64, of the shape of ``z``; it sums to zero over the features.

    Raises:
        InputError: if the shapes differ, or a sample is constant and ``eps`` is zero.

    >>> layer_norm_backward(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]), torch.ones(2), 1.0).round(decimals=4)
    tensor([ 0.1768, -0.1768], dtype=torch.float64)
    """
    back, values, scale = _checked(delta, z, eps, -1)
    back = _scales(gamma, back.shape[-1]) * back
    mean, correlation = back.mean(-1, keepdim=True), (back * values).mean(-1, keepdim=True)
    return (back - mean - values * correlation) / scale


@statement("akbar2025", "Appendix A.1.2", holds="corrected; every delta, every eps >= 0; the loss a sum over samples")
def batch_norm_hessian(z: Tensor, delta: Tensor, curvature: Tensor, gamma: float, eps: float) -> Tensor:
    r"""Return ``d^2 L/dz^2`` of ``L = sum_n l_n(a_n)``, ``a = gamma z^ + beta``, one channel.

    ``(gamma^2/s^2) Q diag(l'') Q - (gamma/(m s^2)) (z^ (Q delta)^T + (Q delta) z^^T + (sum delta z^) Q)``

    Args:
        z: the ``m`` pre-activations of the channel.
        delta: ``l_n'(a_n)``.
        curvature: ``l_n''(a_n)``; ones for the square loss ``(a - y)^2/2``.
        gamma: the scale.
        eps: the stabilizer, ``>= 0``.

    Returns:
        The symmetric m x m matrix in float64.

    Raises:
        InputError: if the shapes differ, or the values are constant and ``eps`` is zero.

    >>> zero, one = torch.zeros(3), torch.ones(3)
    >>> batch_norm_hessian(torch.tensor([-1.0, 0.0, 1.0]), zero, one, 1.0, 0.0).round(decimals=4).tolist()[1]
    [-0.5, 1.0, -0.5]
    """
    back, values, scale = _checked(delta, z.reshape(-1), eps, 0)
    second = as_float64(curvature, "curvature").reshape(-1)
    if second.shape != values.shape:
        raise InputError(f"Expected curvature with {values.numel()} elements, one per sample, got {second.numel()}.")
    m = values.numel()
    core = standardization_core(z, eps)
    moved = core @ back
    mixed = torch.outer(values, moved)
    bent = mixed + mixed.mT + torch.dot(back, values) * core
    return gamma**2 / scale**2 * (core * second @ core) - gamma / (m * scale**2) * bent


@statement("akbar2025", "Appendix A.1.2 (spectrum)", holds="corrected; delta = 0, unit curvature, m >= 2")
def batch_norm_hessian_spectrum(z: Tensor, gamma: float, eps: float) -> Tensor:
    r"""Return the eigenvalues of ``(gamma^2/s^2) Q^2``, ascending.

    0 along ``1``, ``(gamma^2/s^2)(eps/s^2)^2`` along ``z^`` and ``gamma^2/s^2`` on the rest, ``m - 2`` times.

    Args:
        z: the ``m >= 2`` pre-activations of the channel.
        gamma: the scale.
        eps: the stabilizer, ``>= 0``.

    >>> batch_norm_hessian_spectrum(torch.tensor([-1.0, 0.0, 1.0, 0.0]), 1.0, 0.5).tolist()
    [0.0, 0.25, 1.0, 1.0]
    """
    values, scale = _standardized(z, eps)
    m = values.numel()
    if m == 1:
        raise InputError("One value has no variance. Pass at least two.")
    full = gamma**2 / float(scale) ** 2
    along = full * (eps / float(scale) ** 2) ** 2
    return torch.tensor([0.0, along, *([full] * (m - 2))], dtype=torch.float64)


@statement("akbar2025", "Section 3.2 (weight norm)", holds="corrected: the whole Jacobian, and one factor 1/||v|| less")
def weight_norm_gradients(v: Tensor, g: Tensor, weight_gradient: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return ``grad_v = (g/||v||)(I - v^v^^T) grad_w`` and ``grad_g = <v^, grad_w>`` for every row.

    Hence ``<v, grad_v> = 0``: the symmetry is ``v -> alpha v`` with ``g`` fixed.

    Args:
        v: the directions, one row per output.
        g: the gains, one per output.
        weight_gradient: the gradient with respect to the effective weight, of the shape of ``v``.

    Returns:
        The gradients with respect to ``v`` and ``g``, in float64.

    Raises:
        InputError: if the shapes do not fit or a row of ``v`` is zero.

    >>> grad_v, grad_g = weight_norm_gradients(torch.tensor([[3.0, 4.0]]), torch.ones(1), torch.tensor([[1.0, 0.0]]))
    >>> grad_v.round(decimals=4).tolist(), grad_g.round(decimals=4).tolist()
    ([[0.128, -0.096]], [0.6])
    """
    rows, back, gain = as_float64(v, "v"), as_float64(weight_gradient, "weight_gradient"), as_float64(g, "g")
    if rows.ndim != 2 or rows.shape != back.shape or gain.shape != rows.shape[:1]:
        shapes = f"{tuple(rows.shape)}, {tuple(gain.shape)} and {tuple(back.shape)}"
        raise InputError(
            "Expected v and the gradient of its weight to be matrices of one shape, and g to have one "
            f"entry per row; got {shapes}."
        )
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    if bool((norms == 0).any()):
        raise InputError("WeightNorm needs nonzero directions v: a zero row has no effective weight.")
    unit = rows / norms
    along = (unit * back).sum(1)
    return gain[:, None] / norms * (back - along[:, None] * unit), along


def _scales(gamma: Tensor, count: int) -> Tensor:
    """Return the scales in float64, one or as many as there are channels or features."""
    scales = as_float64(gamma, "gamma").reshape(-1)
    if scales.numel() not in (1, count):
        raise InputError(f"Expected gamma with {count} elements, got {scales.numel()}.")
    return scales


def _standardized(z: Tensor, eps: float, dim: int = 0, shape: torch.Size | None = None) -> tuple[Tensor, Tensor]:
    """Return the standardized values and their scale in float64, checked."""
    point = as_float64(z, "z")
    if shape is not None and point.shape != shape:
        raise InputError(f"Expected delta and z of one shape, got {tuple(shape)} and {tuple(point.shape)}.")
    if shape is None:
        point = point.reshape(-1)
    values, scale = standardized(point, require_nonnegative(eps, "eps"), dim)
    if bool((scale == 0).any()):
        raise InputError("Standardization with eps = 0 is undefined for constant values. Use eps > 0.")
    return values, scale


def _checked(delta: Tensor, z: Tensor, eps: float, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``delta``, the standardized values and their scale in float64."""
    back = as_float64(delta, "delta")
    return back, *_standardized(z, eps, dim, back.shape)
