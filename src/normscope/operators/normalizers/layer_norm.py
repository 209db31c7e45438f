r"""Layer normalization: ``y = gamma * (x - mean) / sqrt(var + eps) + beta`` over the last axes.

With ``P = I - 11^T/n``, ``y = P x``, ``sigma^2 = ||y||^2/n`` and ``kappa = eps/(sigma^2 + eps)`` the Jacobian is

    ``J = diag(gamma) (I - (1 - kappa) yy^T/||y||^2) P / sqrt(sigma^2 + eps)``.

Every constant is in the 2-norm, computed in float64 and rounded up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.core.rounding import UNIT, as_float64, quotient_up, require_nonnegative, sum_units, up
from normscope.core.statement import statement
from normscope.operators.normalizer import Normalizer, Symmetry, spread_constants
from normscope.operators.normalizers.moments import RowSpread, inverse_scale, standard_deviation
from normscope.operators.normalizers.secular_equation import centered_scale_norm, shrunk_scale_norm
from normscope.operators.registry import Call, rule
from normscope.operators.spread_division import Spread, normalized

#: Replaces the norm of a zero row, whose direction is then zero as it should be.
TINY = 1e-300


@dataclass(frozen=True)
class OutputRange:
    """Where the output of a normalizer lies, whatever its input."""

    radius: float  #: bound on the 2-norm of the output
    low: Tensor  #: lower bound of each output entry (or of each channel's entries)
    high: Tensor  #: upper bound of each output entry

    @classmethod
    def around(cls, shift: Tensor, scale: Tensor, square: int, radius: float) -> OutputRange:
        """Return the range of ``scale z + shift`` with entries ``|z_i|^2 <= square``, rounded outward."""
        reach = scale.abs() * math.sqrt(square) * (1.0 + 8.0 * UNIT)
        slack = 4.0 * UNIT * (shift.abs() + reach)
        return cls(radius, shift - reach - slack, shift + reach + slack)


@statement("than2025", "Lemma 23", holds="eps > 0 or sigma(x) > 0; gamma multiplies from the left")
def layer_norm_jacobian(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """Return the Jacobian ``diag(gamma)/s (I - yy^T/(||y||^2 + n eps)) P``, ``s = sqrt(sigma^2 + eps)``, at one vector.

    Returns:
        The dense n x n Jacobian in float64 (not rounded in any direction).

    >>> layer_norm_jacobian(torch.zeros(2), torch.ones(2), 1.0).tolist()
    [[0.5, -0.5], [-0.5, 0.5]]
    """
    point, scale = as_float64(x, "x").reshape(-1), as_float64(gamma, "gamma").reshape(-1)
    n = point.numel()
    y = point - point.mean()
    y = y - y.mean()
    variance = y.square().mean() + require_nonnegative(eps, "eps")
    if variance == 0:
        raise InputError("LayerNorm with eps = 0 is undefined at a constant vector. Use eps > 0.")
    eye = torch.eye(n, dtype=torch.float64)
    shrink = eye - torch.outer(y, y) / (n * variance)
    return scale[:, None] / variance.sqrt() * (shrink @ (eye - 1.0 / n))


@statement("normscope", "Proposition LN-2")
def layer_norm_each(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    r"""Return the spectral norm of the Jacobian at each vector of a batch.

    ``||J|| = sqrt(lambda_max(G (I - 11^T/n - (1 - kappa^2) yy^T/||y||^2) G)) / sqrt(sigma^2 + eps)``, ``G =
    diag(gamma)``. For constant ``|gamma| = c``: ``c / sqrt(sigma^2 + eps)`` if ``n >= 3``, ``c eps / (sigma^2 +
    eps)^{3/2}`` if ``n = 2`` and 0 if ``n = 1``. Where ``eps = sigma = 0`` the map is not defined: infinity.

    >>> layer_norm_each(torch.tensor([[0.0, 0.0, 3.0], [1.0, 1.0, 1.0]]), torch.ones(3), 1e-2)
    tensor([ 0.7053, 10.0000], dtype=torch.float64)
    """
    eps = require_nonnegative(eps, "eps")
    points, scale, lead = rows_of(x, gamma)
    return rows_at(points, scale, eps).reshape(lead)


def rows_at(points: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Return the Jacobian norms for float64 rows ``points`` and scales of shape (rows, n) or (1, n)."""
    rows, n = points.shape
    spread = standard_deviation(points)
    inverse = inverse_scale(spread.low, eps)
    if n == 1:
        return torch.zeros_like(inverse) if eps > 0 else torch.full_like(inverse, math.inf)
    scale = scale.expand(rows, n)
    if n == 2:
        return _pair_norm(scale, spread.low, inverse, eps)
    centre = torch.full((1, n), 1.0 / math.sqrt(n), dtype=torch.float64).expand(rows, n)
    return shrunk_norms(spread, scale, inverse, eps, (centre,))


def shrunk_norms(spread: RowSpread, scale: Tensor, inverse: Tensor, eps: float, others: tuple[Tensor, ...]) -> Tensor:
    """Return ``||diag(scale) B^{1/2}|| inverse`` per row, where B shrinks the direction of the input, and others."""
    kappa = eps * inverse.clamp(max=1e150) ** 2
    keep = torch.sqrt(((1.0 - kappa) * (1.0 + kappa)).clamp(0.0, 1.0))
    norm = torch.linalg.vector_norm(spread.direction, dim=-1).clamp_min(TINY)
    along = spread.direction / norm[:, None] * keep[:, None]
    error = 16.0 * spread.direction_error + 16.0 * sum_units(scale.shape[1]) * UNIT
    shrunk = shrunk_scale_norm(scale, (*others, along), error)
    return torch.where(torch.isinf(inverse), inverse, shrunk * inverse * (1.0 + 8.0 * UNIT))


def rows_of(x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
    """Return inputs and scale in float64 as matrices of rows, and the shape of the batch."""
    points, scale = as_float64(x, "x"), as_float64(gamma, "gamma")
    shape = scale.shape
    if points.shape[points.ndim - scale.ndim :] != shape or scale.ndim == 0:
        raise InputError(
            f"Expected the last axes of x to be those of gamma, got x of shape {tuple(points.shape)} "
            f"and gamma of shape {tuple(shape)}. Pass gamma with the normalized shape."
        )
    n = scale.numel()
    return points.reshape(-1, n), scale.reshape(1, n), points.shape[: points.ndim - scale.ndim]


@statement("normscope", "Proposition LN-2")
def layer_norm_at(x: Tensor, gamma: Tensor, eps: float) -> float:
    """Return the spectral norm of the Jacobian at a batch: the largest of :func:`layer_norm_each`.

    The vectors of a batch do not interact, so the Jacobian of the stack is block diagonal.

    >>> round(layer_norm_at(torch.tensor([3.0, -3.0]), torch.ones(2), 7.0), 6)
    0.109375
    """
    return float(layer_norm_each(x, gamma, eps).max())


@statement("normscope", "Proposition LN-3")
def layer_norm_global(gamma: Tensor, eps: float) -> float:
    """Return the Lipschitz constant on all inputs, ``||diag(gamma) P||_2 / sqrt(eps)``.

    It is attained at constant vectors. For ``eps = 0`` the map has no limit there: infinity.

    >>> round(layer_norm_global(torch.tensor([3.0, 2.0, 1.0, 0.5]), 1e-5), 4)
    856.2392
    >>> layer_norm_global(torch.ones(1), 1e-5)
    0.0
    """
    return layer_norm_on_floor(gamma, eps, 0.0)


@statement("normscope", "Proposition LN-4")
def layer_norm_on_floor(gamma: Tensor, eps: float, s: float) -> float:
    """Return the Lipschitz constant on ``{x : sigma(x) >= s}``, ``||diag(gamma) P||_2 / sqrt(s^2 + eps)``.

    The set is not convex, so a bound on the Jacobian would not do; the constant holds for every pair of its points
    and is attained by antipodal pairs. With ``r = ||y||`` and ``phi(r) = r/sqrt(r^2/n + eps)``, both ``phi(r)/r`` and
    ``phi'`` are at most ``1/sqrt(s^2 + eps)``, and ``||f_1 - f_2||^2 = (phi_1 - phi_2)^2 + 4 phi_1 phi_2 sin^2``.

    >>> round(layer_norm_on_floor(torch.ones(8), 1e-3, 0.5), 5)
    1.99601
    """
    eps, s = require_nonnegative(eps, "eps"), require_nonnegative(s, "s")
    if gamma.numel() == 1 and (eps > 0 or s > 0):
        return 0.0  # one element has no deviation: the map is constant, and the set is empty for s > 0
    return quotient_up(centered_scale_norm(gamma), math.hypot(s, math.sqrt(eps)))


@statement("normscope", "Proposition LN-5")
def layer_norm_on_ball(x: Tensor, radius: float, gamma: Tensor, eps: float) -> float:
    """Return a bound of the Lipschitz constant on the ball of ``radius`` around each vector of ``x``.

    On the ball ``sigma >= s = max(0, sigma(x) - radius/sqrt(n))``, so the bound of the floor ``s`` holds; for ``n =
    2`` the ball is convex and the derivative known: ``sqrt(mean gamma^2) eps / (s^2 + eps)^{3/2}``.

    >>> round(layer_norm_on_ball(torch.tensor([3.0, -3.0, 0.0]), 1.0, torch.ones(3), 0.0), 6)
    0.534148
    """
    eps, radius = require_nonnegative(eps, "eps"), require_nonnegative(radius, "radius")
    points, scale, _ = rows_of(x, gamma)
    return rows_on_ball(points, radius, scale, torch.tensor([centered_scale_norm(scale)], dtype=torch.float64), eps)


def rows_on_ball(points: Tensor, radius: float, scale: Tensor, scale_norm: Tensor, eps: float) -> float:
    """Return the largest bound over float64 rows, given each scale and its ``||diag(gamma) P||`` (or one for all)."""
    rows, n = points.shape
    floors = floor_on_ball(points, radius)
    inverse = inverse_scale(floors, eps)
    if n == 1:
        return 0.0 if eps > 0 else math.inf
    if n == 2:
        return float(_pair_norm(scale.expand(rows, 2), floors, inverse, eps).max())
    return float((scale_norm * inverse * (1.0 + 8.0 * UNIT)).max())


def _pair_norm(scale: Tensor, std_low: Tensor, inverse: Tensor, eps: float) -> Tensor:
    """Return the derivative norm ``sqrt(mean gamma^2) eps / (s^2 + eps)^{3/2}`` of two elements with ``sigma >= s``."""
    return radial_norm(torch.hypot(scale[:, 0], scale[:, 1]) * math.sqrt(0.5), std_low, inverse, eps)


def radial_norm(size: Tensor, low: Tensor, inverse: Tensor, eps: float) -> Tensor:
    """Return ``size eps / (s^2 + eps)^{3/2}`` where the spread is at least ``low``: the radial derivative."""
    if eps == 0:  # the output is a sign: locally constant
        return torch.where(low > 0, torch.zeros_like(inverse), torch.full_like(inverse, math.inf))
    # inverse <= 1/sqrt(eps) up to rounding, so the grouping cannot overflow
    return size * inverse * (math.sqrt(eps) * inverse) ** 2 * (1.0 + 64.0 * UNIT)


def floor_on_ball(points: Tensor, radius: float) -> Tensor:
    """Return per row a lower bound of the standard deviation on the ball: ``max(0, sigma - radius/sqrt(n))``."""
    low = standard_deviation(points).low
    return (low * (1.0 - 4.0 * UNIT) - up(radius / math.sqrt(points.shape[1]))).clamp_min(0.0)


@statement("normscope", "Proposition LN-6")
def layer_norm_range(gamma: Tensor, beta: Tensor | None, n: int | None = None) -> OutputRange:
    """Return where the output lies, whatever the input.

    ``||y|| <= sqrt(n) ||diag(gamma) P|| + ||beta||`` and ``|y_i - beta_i| <= |gamma_i| sqrt(n - 1)``: the normalized
    vector is centred and no longer than ``sqrt(n)``; its largest entry is that of ``sqrt(n) P e_i``.

    >>> round(layer_norm_range(torch.ones(4), None).radius, 9), layer_norm_range(torch.ones(5), None).high[0] >= 2.0
    (2.0, tensor(True))
    """
    scale = as_float64(gamma, "gamma")
    count = scale.numel() if n is None else n
    if scale.numel() == 1:
        scale = scale.reshape(1).expand(count)
    shift = torch.zeros_like(scale) if beta is None else as_float64(beta, "beta").expand(scale.shape)
    if scale.numel() != count:
        raise InputError(f"Expected gamma to have {count} elements, or one for all, got {scale.numel()}.")
    norm = up(float(torch.linalg.vector_norm(shift)), scale.numel() + 8.0)
    return OutputRange.around(shift, scale, count - 1, up(up(math.sqrt(count)) * centered_scale_norm(scale) + norm))


@statement("than2025", "Lemma 2", holds="printed without a scale; a bound for max |gamma| <= 1, and 1/sqrt(eps) on R^n")
def layer_norm_printed(std: float, eps: float) -> float:
    """Return the printed ``1/sqrt(std^2 + eps)``.

    It is the Jacobian norm at a point of that standard deviation for ``gamma = 1``, ``n >= 3``. The paper takes
    ``std`` as the minimum over all inputs, which is zero: the printed constant is then ``1/sqrt(eps)``.

    >>> round(layer_norm_printed(0.0, 1e-5), 4)
    316.2278
    """
    root = math.hypot(require_nonnegative(std, "std"), math.sqrt(require_nonnegative(eps, "eps")))
    return math.inf if root == 0 else 1.0 / root


def printed_is_bound(printed: float, certified: float) -> bool:
    """Return whether a printed value is an upper bound where the tight certified constant is known.

    The certified constant exceeds the true one by rounding only, so a printed value equal to the truth counts.

    >>> printed_is_bound(158.1, 223.6), printed_is_bound(1264.9, 316.2)
    (False, True)
    """
    return printed >= certified * (1.0 - 1e-11)


def trailing_spread(shape: tuple[int, ...], count: int, eps: float, *, centered: bool) -> Spread:
    """Return how an input that is normalized over its last ``count`` axes is divided."""
    return Spread(shape, tuple(range(len(shape) - count, len(shape))), eps, centered)


@rule("layer_norm", "native_layer_norm")
def layer_norm(call: Call) -> Any:
    """LayerNorm over the trailing axes."""
    x = call["input"]
    spread = trailing_spread(x.shape, len(call["normalized_shape"]), float(call["eps"]), centered=True)
    return normalized(call, x, spread, "layer_norm", call["weight"], call["bias"])


NORMALIZER = Normalizer(
    kind="layer_norm",
    formula="gamma (x - mean)/sqrt(var + eps) + beta, statistics of one sample or token",
    constants=spread_constants(
        "normscope F3", (lambda floor, eps: layer_norm_printed(float(floor.min()), eps), "than2025 Lemma 2")
    ),
    ops=("layer_norm", "native_layer_norm"),
    modules=(nn.LayerNorm,),
    module_spread=lambda module, shape: trailing_spread(shape, len(module.normalized_shape), module.eps, centered=True),
    symmetry=Symmetry("layer", row=True, shift=True),
    claims=lambda match, spread: match.centered,
    takes_any_axes=True,
)
