r"""Batch normalization: with frozen statistics a diagonal map, with those of the batch a map of the stacked batch.

With running statistics ``y_c = gamma_c (x_c - mean_c)/sqrt(var_c + eps) + beta_c``. With batch statistics each channel
is a layer normalization of its ``m = batch * positions`` values, and the input is the whole batch in the 2-norm.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.core.rounding import TINIEST, UNIT, as_float64, require_nonnegative, up
from normscope.core.statement import statement
from normscope.core.value import Kind, Value
from normscope.operators.normalizer import Constants, Normalizer, Symmetry, proved, spread_constants
from normscope.operators.normalizers.layer_norm import rows_at, rows_on_ball
from normscope.operators.normalizers.moments import inverse_scale
from normscope.operators.registry import Call, rule
from normscope.operators.site import Site
from normscope.operators.spread_division import Spread, fixed_statistics, normalized, per_channel, with_statistics


def batch_norm_scale(gamma: Tensor | None, running_var: Tensor, eps: float) -> Tensor:
    """Return the diagonal ``gamma_c / sqrt(var_c + eps)`` that batch normalization multiplies by, in float64.

    This is what is folded into the linear map before it: ``diag(scale) W``. It is rounded to nearest; each entry has
    relative error at most ``4 u``.

    >>> batch_norm_scale(torch.tensor([2.0]), torch.tensor([4.0]), 0.0).tolist()
    [1.0]
    """
    variance = as_float64(running_var, "running_var").reshape(-1)
    scale = channel_scale(gamma, variance.numel())
    total = variance + require_nonnegative(eps, "eps")
    if bool((variance < 0).any()) or bool((total == 0).any()):
        raise InputError(
            f"Expected variances >= 0 and variance + eps > 0, got variance {float(variance.min())} and "
            f"eps {eps}. The running statistics are damaged or were never filled."
        )
    return scale / total.sqrt()


@statement("normscope", "Proposition BN-1", holds="running statistics")
@statement("normscope", "Proposition PN-1", holds="PowerNorm with the running quadratic mean as variance")
def batch_norm_running(gamma: Tensor | None, running_var: Tensor, eps: float) -> float:
    """Return the Lipschitz constant with frozen statistics, ``max_c |gamma_c| / sqrt(var_c + eps)``.

    The Jacobian is diagonal, the same at every input, so this is also its norm at every point.

    >>> round(batch_norm_running(torch.tensor([0.3, -2, 1, 5, 0.1]), torch.tensor([0.01, 0.25, 1, 4, 9]), 1e-5), 7)
    3.99992
    """
    scale = batch_norm_scale(gamma, running_var, eps)
    if gamma is not None and not bool(gamma.any()):
        return 0.0
    return max(up(float(scale.abs().max())), TINIEST)


@statement("normscope", "Proposition BN-2", holds="running statistics")
def batch_norm_frobenius(gamma: Tensor | None, running_var: Tensor, eps: float, positions: int = 1) -> float:
    """Return the Frobenius norm of the Jacobian, ``sqrt(positions) ||gamma / sqrt(var + eps)||_2`` (not a constant).

    >>> round(batch_norm_frobenius(None, torch.tensor([9.0, 16.0]), 0.0), 4)
    0.4167
    """
    scale = batch_norm_scale(gamma, running_var, eps)
    return up(math.sqrt(positions) * float(torch.linalg.vector_norm(scale)), scale.numel() + 16.0)


@statement(
    "than2025",
    "Lemma 1",
    holds="printed without a scale; a Frobenius norm, up to sqrt(n) above the constant for |gamma| <= 1",
)
def batch_norm_printed(running_var: Tensor, eps: float) -> float:
    """Return the printed ``||(1/sqrt(var_1 + eps), ..., 1/sqrt(var_n + eps))||_2``.

    It is stated as an equality, and holds as one for ``n = 1`` only.

    >>> round(batch_norm_printed(torch.tensor([9.0, 16.0]), 0.0), 4)
    0.4167
    """
    return float(torch.linalg.vector_norm(batch_norm_scale(None, running_var, eps)))


@statement("than2025slides", "BN", holds="printed; a Frobenius norm, up to sqrt(n) above the constant")
def batch_norm_slides(gamma: Tensor, running_var: Tensor, eps: float) -> float:
    """Return the printed ``||gamma / sqrt(var + eps)||_2``, an upper bound of the constant, not its value.

    >>> round(batch_norm_slides(torch.tensor([2.0, 2.0]), torch.tensor([9.0, 16.0]), 0.0), 4)
    0.8333
    """
    return float(torch.linalg.vector_norm(batch_norm_scale(gamma, running_var, eps)))


@statement("normscope", "Proposition BN-3", holds="batch statistics, stacked batch")
def batch_norm_batch_each(x: Tensor, gamma: Tensor | None, eps: float) -> Tensor:
    """Return, per channel, the Jacobian norm at a stacked batch.

    ``|gamma_c| / sqrt(s_c^2 + eps)`` for ``m >= 3`` values in the channel, ``|gamma_c| eps / (s_c^2 + eps)^{3/2}`` for
    ``m = 2`` and 0 for ``m = 1``.

    >>> batch_norm_batch_each(torch.tensor([[0.0], [2.0], [4.0]]), None, 0.0)
    tensor([0.6124], dtype=torch.float64)
    """
    eps = require_nonnegative(eps, "eps")
    points = _channels(x)
    scale = channel_scale(gamma, points.shape[0]).abs()
    ones = torch.ones(1, points.shape[1], dtype=torch.float64)
    return _times(scale, rows_at(points, ones, eps))


@statement("normscope", "Proposition BN-3", holds="batch statistics, stacked batch")
def batch_norm_batch_at(x: Tensor, gamma: Tensor | None, eps: float) -> float:
    """Return the Jacobian norm at a stacked batch: the largest of :func:`batch_norm_batch_each`.

    >>> round(batch_norm_batch_at(torch.tensor([[3.0], [-3.0]]), None, 7.0), 6)
    0.109375
    """
    return float(batch_norm_batch_each(x, gamma, eps).max())


@statement("normscope", "Proposition BN-4", holds="batch statistics, stacked batch of at least two values per channel")
def batch_norm_batch_global(gamma: Tensor, eps: float) -> float:
    """Return the Lipschitz constant on all batches, ``max_c |gamma_c| / sqrt(eps)``.

    Attained where the channel is constant over the batch (``m >= 2`` values per channel; with one value the map is
    constant and the bound still holds).

    >>> round(batch_norm_batch_global(torch.ones(3), 1e-5), 4)
    316.2278
    """
    return batch_norm_batch_on_floor(gamma, eps, 0.0)


@statement("normscope", "Proposition BN-5", holds="batch statistics, stacked batch of at least two values per channel")
def batch_norm_batch_on_floor(gamma: Tensor, eps: float, s_per_channel: Tensor | float) -> float:
    """Return the Lipschitz constant on ``{s_c(x) >= s_c for all c}``, ``max_c |gamma_c| / sqrt(s_c^2 + eps)``.

    It holds for every pair of batches of that set, which is not convex, and is attained by antipodal pairs.

    >>> round(batch_norm_batch_on_floor(torch.tensor([1.0, -4.0]), 0.0, torch.tensor([1.0, 8.0])), 9)
    1.0
    """
    scale = as_float64(gamma, "gamma").reshape(-1).abs()
    floors = floors_like(s_per_channel, scale)
    return float(_times(scale, inverse_scale(floors, require_nonnegative(eps, "eps"))).max())


@statement("normscope", "Proposition BN-6", holds="batch statistics, stacked batch")
def batch_norm_batch_on_ball(x: Tensor, radius: float, gamma: Tensor | None, eps: float) -> float:
    """Return a bound of the Lipschitz constant on the ball of ``radius`` around a stacked batch.

    Each channel keeps ``s_c >= max(0, s_c(x) - radius/sqrt(m))``; two values per channel have a known derivative.

    >>> round(batch_norm_batch_on_ball(torch.tensor([[3.0], [-3.0], [0.0]]), 1.0, None, 0.0), 6)
    0.534148
    """
    eps, radius = require_nonnegative(eps, "eps"), require_nonnegative(radius, "radius")
    points = _channels(x)
    scale = channel_scale(gamma, points.shape[0])
    return rows_on_ball(points, radius, scale[:, None].expand_as(points), scale.abs(), eps)


def floors_like(floors: Tensor | float, scale: Tensor) -> Tensor:
    """Return floors of standard deviations as a float64 tensor of the shape of ``scale``."""
    values = as_float64(torch.as_tensor(floors), "the floor of the standard deviation")
    if bool((values < 0).any()) or values.numel() not in (1, scale.numel()):
        raise InputError(
            f"Expected floors of standard deviations >= 0, one or {scale.numel()} of them; got "
            f"{values.numel()} with minimum {float(values.min())}."
        )
    return values.reshape(-1).expand(scale.numel()).reshape(scale.shape)


def _times(scale: Tensor, norm: Tensor) -> Tensor:
    """Return ``scale * norm`` rounded up, zero where the scale is zero unless the map is not defined there."""
    product = (scale * norm * (1.0 + 4.0 * UNIT)).clamp_min(TINIEST)
    zero = ((scale == 0) | (norm == 0)) & ~torch.isinf(norm)
    return torch.where(torch.isinf(norm), norm, torch.where(zero, torch.zeros_like(product), product))


def channel_scale(gamma: Tensor | None, channels: int) -> Tensor:
    """Return the scale of each channel in float64, ones for ``None``."""
    if gamma is None:
        return torch.ones(channels, dtype=torch.float64)
    scale = as_float64(gamma, "gamma").reshape(-1)
    if scale.numel() != channels:
        raise InputError(f"Expected gamma to have one entry per channel, got {scale.numel()} for {channels} channels.")
    return scale


def _channels(x: Tensor) -> Tensor:
    """Return a batch of shape (batch, channels, *positions) as a float64 matrix with one row per channel."""
    if x.ndim < 2:
        raise InputError(f"Expected a batch of shape (batch, channels, *positions), got {tuple(x.shape)}.")
    return as_float64(x, "x").transpose(0, 1).reshape(x.shape[1], -1)


OPS = (
    "batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
    "cudnn_batch_norm", "_batch_norm_no_update", "_batch_norm_with_update",
)  # fmt: skip


def batch_spread(shape: tuple[int, ...], eps: float) -> Spread:
    """Return how a batch of a shape (samples, channels, *positions) is divided by its own statistics."""
    return Spread(shape, (0, *range(2, len(shape))), eps, True, channel_axis=1)


@rule(*OPS)
def batch_norm(call: Call) -> Any:
    """BatchNorm: an affine map with running statistics, otherwise a normalizer of the stacked batch."""
    x = call.get("input", call.get("self"))
    gamma, beta = (per_channel(call.arguments.get(name), len(x.shape)) for name in ("weight", "bias"))
    uses_batch = bool(call.get("training", "with_update" in call.node.op)) or call.arguments.get("running_mean") is None
    if "no_training" in call.node.op or "no_update" in call.node.op:
        uses_batch = False
    if uses_batch:
        return normalized(call, x, batch_spread(x.shape, float(call["eps"])), "batch_norm", gamma, beta)
    out = fixed_statistics(call, x, call["running_mean"], call["running_var"], float(call["eps"]), gamma, beta)
    return with_statistics(call, out)


def running_constants(site: Site, floor: Tensor | None, mode: str) -> Constants:
    """Return the constants with fixed statistics: ``max |gamma| / sqrt(var + eps)``; Lemma 1 prints the l2 norm."""
    variance = site.running[1].detach().double().flatten()  # type: ignore[index]
    gamma = None if site.gamma is None else site.gamma.detach().double().flatten()
    if bool((variance + site.eps == 0).any()):  # a division by zero: torch gives infinity and NaN
        return proved(math.inf, "normscope F1", mode)
    found = proved(batch_norm_running(gamma, variance, site.eps), "normscope F1", mode)
    scale, where = torch.ones_like(variance) if gamma is None else gamma, (variance, site.eps)
    printed = Value.of(batch_norm_printed(*where), Kind.PRINTED, mode=mode, statement="than2025 Lemma 1")
    slides = Value.of(batch_norm_slides(scale, *where), Kind.PRINTED, mode=mode, statement="than2025slides BN")
    return Constants(found.proved, None, printed, printed.log >= found.proved.log, slides)


def _printed_on_floor(floor: Tensor, eps: float) -> float:
    """Return Lemma 1 at the least spreads of a batch; without eps and with a spread of zero there is no number."""
    variance = floor.flatten().square()
    return batch_norm_printed(variance, eps) if bool((variance + eps > 0).all()) else math.inf


NORMALIZER = Normalizer(
    kind="batch_norm",
    formula="gamma (x - mean)/sqrt(var + eps) + beta, statistics of a channel of the batch, or fixed ones",
    constants=spread_constants(
        "normscope F2", (_printed_on_floor, "than2025 Lemma 1"), across_batch=True, fixed=running_constants
    ),
    ops=OPS,
    modules=(nn.modules.batchnorm._BatchNorm,),
    module_spread=lambda module, shape: batch_spread(shape, module.eps),
    symmetry=Symmetry("neuron", shift=True),
    across_batch=True,
    adaptive="adaptive_instance_norm",
    claims=lambda match, spread: match.centered and len(spread.view) > 1 and spread.axes[:1] == (0,),
)
