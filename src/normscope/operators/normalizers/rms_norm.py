r"""Root-mean-square normalization: ``y = gamma * x / sqrt(||x||^2/n + eps)``, no centring.

With ``r^2 = ||x||^2/n + eps`` and ``kappa = eps/r^2`` the Jacobian is ``diag(gamma)/r (I - (1 - kappa) xx^T/||x||^2)``.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.rounding import UNIT, as_float64, quotient_up, require_nonnegative, up
from normscope.core.statement import statement
from normscope.operators.normalizer import Normalizer, Symmetry, spread_constants
from normscope.operators.normalizers.layer_norm import OutputRange, radial_norm, rows_of, shrunk_norms, trailing_spread
from normscope.operators.normalizers.moments import inverse_scale, root_mean_square
from normscope.operators.registry import Call, rule
from normscope.operators.spread_division import Spread, normalized


def rms_norm_eps(eps: float | None, dtype: torch.dtype) -> float:
    """Return the stabilizer PyTorch uses: ``eps`` itself, or the machine epsilon of the computation for ``None``.

    Half precision is computed in float32 by PyTorch, and its default is the epsilon of float32.

    >>> rms_norm_eps(None, torch.float32) == 2.0**-23
    True
    """
    if eps is not None:
        return require_nonnegative(eps, "eps")
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


@statement("normscope", "Proposition RMS-1")
def rms_norm_each(x: Tensor, gamma: Tensor, eps: float | None = None) -> Tensor:
    r"""Return the spectral norm of the Jacobian at each vector of a batch.

    ``||J|| = sqrt(lambda_max(G (I - (1 - kappa^2) xx^T/||x||^2) G)) / r``, ``G = diag(gamma)``. For constant
    ``|gamma| = c``: ``c/r`` if ``n >= 2`` and ``c eps/r^3`` if ``n = 1``. Infinity at zero for ``eps = 0``.

    >>> rms_norm_each(torch.tensor([[3.0, 4.0]]), torch.ones(2), 0.0)
    tensor([0.2828], dtype=torch.float64)
    """
    stabilizer = rms_norm_eps(eps, x.dtype)
    points, scale, lead = rows_of(x, gamma)
    rows, n = points.shape
    spread = root_mean_square(points)
    inverse = inverse_scale(spread.low, stabilizer)
    if n == 1:
        return radial_norm(scale[0, 0].abs(), spread.low, inverse, stabilizer).reshape(lead)
    return shrunk_norms(spread, scale.expand(rows, n), inverse, stabilizer, ()).reshape(lead)


@statement("normscope", "Proposition RMS-1")
def rms_norm_at(x: Tensor, gamma: Tensor, eps: float | None = None) -> float:
    """Return the spectral norm of the Jacobian at a batch: the largest of :func:`rms_norm_each`.

    >>> round(rms_norm_at(torch.zeros(4), torch.ones(4)), 3)
    2896.309
    """
    return float(rms_norm_each(x, gamma, eps).max())


@statement("normscope", "Proposition RMS-2")
def rms_norm_global(gamma: Tensor, eps: float | None = None, dtype: torch.dtype = torch.float32) -> float:
    """Return the Lipschitz constant on all inputs, ``max |gamma| / sqrt(eps)``, attained at zero.

    >>> round(rms_norm_global(torch.tensor([1.0, -2.0]), 1e-6), 6)
    2000.0
    """
    return rms_norm_on_floor(gamma, rms_norm_eps(eps, dtype), 0.0)


@statement("normscope", "Proposition RMS-3")
@statement("normscope", "Proposition FRN-1", holds="the root mean square of each channel of each sample")
def rms_norm_on_floor(gamma: Tensor, eps: float, s: float) -> float:
    """Return the Lipschitz constant on ``{x : rms(x) >= s}``, ``max |gamma| / sqrt(s^2 + eps)``.

    It holds for every pair of points of that set, which is not convex, and is attained by antipodal pairs.

    >>> round(rms_norm_on_floor(torch.ones(3), 1.0, 1.0), 6)
    0.707107
    """
    top = float(as_float64(gamma, "gamma").abs().max())
    root = math.hypot(require_nonnegative(s, "s"), math.sqrt(require_nonnegative(eps, "eps")))
    return quotient_up(top, root)


@statement("normscope", "Proposition RMS-4")
def rms_norm_on_ball(x: Tensor, radius: float, gamma: Tensor, eps: float | None = None) -> float:
    """Return a bound of the Lipschitz constant on the ball of ``radius`` around each vector of ``x``.

    On the ball ``rms >= s = max(0, rms(x) - radius/sqrt(n))``; for ``n = 1`` the derivative there is known.

    >>> round(rms_norm_on_ball(torch.tensor([3.0, 4.0]), 1.0, torch.ones(2), 0.0), 6)
    0.353553
    """
    stabilizer = rms_norm_eps(eps, x.dtype)
    radius = require_nonnegative(radius, "radius")
    points, scale, _ = rows_of(x, gamma)
    n = points.shape[1]
    low = root_mean_square(points).low.min()
    floor = (low * (1.0 - 4.0 * UNIT) - up(radius / math.sqrt(n))).clamp_min(0.0)
    if n == 1:
        return float(radial_norm(scale[0, 0].abs(), floor, inverse_scale(floor, stabilizer), stabilizer))
    return rms_norm_on_floor(scale, stabilizer, float(floor))


@statement("normscope", "Proposition RMS-5")
def rms_norm_range(gamma: Tensor, beta: Tensor | None = None) -> OutputRange:
    """Return where the output lies, whatever the input.

    ``||y|| <= sqrt(n) max |gamma| + ||beta||`` and ``|y_i - beta_i| <= sqrt(n) |gamma_i|``.

    >>> round(rms_norm_range(torch.ones(4)).radius, 9)
    2.0
    """
    scale = as_float64(gamma, "gamma")
    shift = torch.zeros_like(scale) if beta is None else as_float64(beta, "beta").reshape(scale.shape)
    norm = up(float(torch.linalg.vector_norm(shift)), scale.numel() + 8.0)
    largest = float(scale.abs().max()) * math.sqrt(scale.numel()) * (1.0 + 8.0 * UNIT)
    return OutputRange.around(shift, scale, scale.numel(), up(largest + norm))


@rule("rms_norm", "_fused_rms_norm")
def rms_norm(call: Call) -> Any:
    """RMSNorm over the trailing axes; without eps torch uses a machine epsilon."""
    x = call["input"]
    value = call.value[0] if isinstance(call.value, tuple | list) else call.value
    eps = rms_norm_eps(call.arguments.get("eps"), value.dtype)
    spread = trailing_spread(x.shape, len(call["normalized_shape"]), float(eps), centered=False)
    return normalized(call, x, spread, "rms_norm", call["weight"])


def _module_spread(module: nn.RMSNorm, shape: tuple[int, ...]) -> Spread:
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    return trailing_spread(shape, len(module.normalized_shape), rms_norm_eps(module.eps, dtype), centered=False)


NORMALIZER = Normalizer(
    kind="rms_norm",
    formula="gamma x/sqrt(mean(x^2) + eps), the mean over one sample or token",
    constants=spread_constants("normscope F6"),
    ops=("rms_norm", "_fused_rms_norm"),
    modules=(nn.RMSNorm,),
    module_spread=_module_spread,
    symmetry=Symmetry("layer"),
    claims=lambda match, spread: not match.centered and match.root_of == "mean",
    takes_any_axes=True,
)
