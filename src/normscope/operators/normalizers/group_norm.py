"""Group normalization: each group of channels of each sample is a layer normalization of its own.

With as many groups as channels it is instance normalization.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.core.rounding import as_float64, quotient_up, require_nonnegative, sum_units, tree_sum, up
from normscope.core.statement import statement
from normscope.operators.normalizer import Normalizer, Symmetry, spread_constants
from normscope.operators.normalizers.batch_norm import channel_scale, floors_like
from normscope.operators.normalizers.layer_norm import OutputRange, rows_at, rows_on_ball
from normscope.operators.normalizers.secular_equation import centered_scale_norm
from normscope.operators.registry import Call, rule
from normscope.operators.spread_division import Spread, normalized, per_channel


@statement("normscope", "Proposition GN-1")
@statement("normscope", "Proposition IN-1", holds="instance statistics: as many groups as channels")
def group_norm_each(x: Tensor, groups: int, gamma: Tensor | None, eps: float) -> Tensor:
    """Return the Jacobian norm of each group of each sample: layer normalization of ``n_g`` values.

    >>> group_norm_each(torch.zeros(1, 4, 3), 2, None, 0.25).shape
    torch.Size([1, 2])
    """
    points, scale = _rows(x, groups, gamma)
    return rows_at(points, scale, require_nonnegative(eps, "eps")).reshape(-1, groups)


@statement("normscope", "Proposition GN-1")
@statement("normscope", "Proposition IN-1", holds="instance statistics: as many groups as channels")
def group_norm_at(x: Tensor, groups: int, gamma: Tensor | None, eps: float) -> float:
    """Return the Jacobian norm at a batch, the largest over samples and groups (the Jacobian is block diagonal).

    >>> round(group_norm_at(torch.ones(1, 12), 4, None, 1e-5), 4)
    316.2278
    """
    return float(group_norm_each(x, groups, gamma, eps).max())


@statement("normscope", "Proposition GN-2")
@statement("normscope", "Proposition IN-2", holds="instance statistics: as many groups as channels")
def group_norm_global(gamma: Tensor, groups: int, eps: float, positions: int = 1) -> float:
    """Return the Lipschitz constant on all inputs, ``max_g ||diag(gamma_g) P_g|| / sqrt(eps)``.

    >>> round(group_norm_global(torch.ones(12), 4, 1e-5), 4)
    316.2278
    """
    return group_norm_on_floor(gamma, groups, eps, 0.0, positions)


@statement("normscope", "Proposition GN-3")
@statement("normscope", "Proposition IN-3", holds="instance statistics: as many groups as channels")
def group_norm_on_floor(gamma: Tensor, groups: int, eps: float, s: Tensor | float, positions: int = 1) -> float:
    """Return the Lipschitz constant on ``{sigma_g(x) >= s_g}``, ``max_g ||diag(gamma_g) P_g|| / sqrt(s_g^2 + eps)``.

    >>> round(group_norm_on_floor(torch.tensor([3.0, 3.0, 1.0, 1.0]), 2, 0.0, torch.tensor([6.0, 1.0])), 9)
    1.0
    """
    eps = require_nonnegative(eps, "eps")
    norms = torch.tensor(group_scale_norms(gamma, groups, positions), dtype=torch.float64)
    floors = floors_like(s, norms).tolist()
    size = gamma.numel() // groups * positions
    if size == 1:
        return 0.0 if eps > 0 or min(floors) > 0 else math.inf
    return max(quotient_up(n, math.hypot(f, math.sqrt(eps))) for n, f in zip(norms.tolist(), floors, strict=True))


@statement("normscope", "Proposition GN-4")
@statement("normscope", "Proposition IN-4", holds="instance statistics: as many groups as channels")
def group_norm_on_ball(x: Tensor, radius: float, groups: int, gamma: Tensor | None, eps: float) -> float:
    """Return a bound of the Lipschitz constant on the ball of ``radius`` around a batch of inputs.

    Each group keeps ``sigma_g >= max(0, sigma_g(x) - radius/sqrt(n_g))``.

    >>> round(group_norm_on_ball(torch.tensor([[3.0, -3.0, 0.0]]), 1.0, 1, None, 0.0), 6)
    0.534148
    """
    points, scale = _rows(x, groups, gamma)
    eps, radius = require_nonnegative(eps, "eps"), require_nonnegative(radius, "radius")
    samples, n = points.shape[0] // groups, points.shape[1]
    weights = torch.ones(x.shape[1]) if gamma is None else gamma
    norms = torch.tensor(group_scale_norms(weights, groups, n * groups // x.shape[1]), dtype=torch.float64)
    return rows_on_ball(points, radius, scale, norms.repeat(samples), eps)


@statement("normscope", "Proposition GN-5")
@statement("normscope", "Proposition IN-5", holds="instance statistics: as many groups as channels")
@statement("normscope", "Proposition BN-7", holds="batch statistics: a group is a channel, the batch its positions")
def group_norm_range(gamma: Tensor, beta: Tensor | None, groups: int, positions: int = 1) -> OutputRange:
    """Return where the output of one sample lies, whatever the input; bounds per channel.

    Each normalized group is centred with 2-norm at most ``sqrt(n_g)`` and entries within ``sqrt(n_g - 1)``.

    >>> round(group_norm_range(torch.ones(8), None, 2).radius, 9)
    2.828427125
    """
    scale = as_float64(gamma, "gamma").reshape(groups, -1)
    size = scale.shape[1] * positions
    shift = torch.zeros_like(scale) if beta is None else as_float64(beta, "beta").reshape(groups, -1)
    norms = torch.tensor(group_scale_norms(scale, groups, positions), dtype=torch.float64)
    length = norms * math.sqrt(size) + (tree_sum(shift**2) * positions).sqrt()
    radius = up(float(tree_sum(length**2).sqrt()), 2 * sum_units(scale.numel()) + 16.0)
    return OutputRange.around(shift.reshape(-1), scale.reshape(-1), size - 1, radius)


@statement("than2025", "Lemma 3", holds="printed without a scale; a bound for max |gamma| <= 1, loose up to C times")
def group_norm_printed(std_per_group: Tensor, eps: float) -> float:
    """Return the printed ``sum_k 1/sqrt(sigma_k^2 + eps)`` over the groups; the constant is the largest term.

    >>> round(group_norm_printed(torch.zeros(4), 1e-5), 1)
    1264.9
    """
    std = as_float64(std_per_group, "std_per_group").reshape(-1)
    root = torch.hypot(std, torch.full_like(std, require_nonnegative(eps, "eps")).sqrt())
    return float((1.0 / root).sum())


def group_scale_norms(gamma: Tensor, groups: int, positions: int) -> list[float]:
    """Return ``||diag(gamma_g) P_g||`` of each group; with two or more positions it is ``max |gamma_g|``.

    >>> group_scale_norms(torch.tensor([1.0, -2.0]), 2, 9)
    [1.0, 2.0]
    """
    if groups < 1 or gamma.numel() % groups:
        raise InputError(f"{gamma.numel()} channels cannot be divided into {groups} groups.")
    if positions < 1:
        raise InputError(f"Expected at least one position per channel, got {positions}.")
    per_group = as_float64(gamma, "gamma").reshape(groups, -1)
    if positions > 1:
        return per_group.abs().amax(dim=1).tolist()
    return [centered_scale_norm(g) for g in per_group]


def _rows(x: Tensor, groups: int, gamma: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return every group of every sample as a row, with the scale of its entries."""
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise InputError(
            f"Expected x of shape (samples, channels, *positions) with channels divisible by {groups}, "
            f"got {tuple(x.shape)}."
        )
    samples, channels = x.shape[:2]
    points = as_float64(x, "x").reshape(samples * groups, -1)
    weights = channel_scale(gamma, channels)
    positions = points.numel() // (samples * channels)
    scale = weights[:, None].expand(channels, positions).reshape(groups, -1)
    return points, scale.repeat(samples, 1)


def group_spread(shape: tuple[int, ...], groups: int, eps: float) -> Spread:
    """Return how an input of a shape (samples, channels, *positions) is divided."""
    return Spread((shape[0], groups, math.prod(shape[1:]) // groups), (2,), eps, True, channel_axis=1)


@rule("group_norm", "native_group_norm")
def group_norm(call: Call) -> Any:
    """GroupNorm: groups of channels of one sample."""
    x = call["input"]
    spread = group_spread(x.shape, int(call.get("num_groups", call.get("group"))), float(call["eps"]))
    gamma, beta = (per_channel(call[name], len(x.shape)) for name in ("weight", "bias"))
    return normalized(call, x, spread, "group_norm", gamma, beta)


#: What is printed for groups, and where.
GROUP_PRINTED = (group_norm_printed, "than2025 Lemma 3")
NORMALIZER = Normalizer(
    kind="group_norm",
    formula="gamma (x - mean)/sqrt(var + eps) + beta, statistics of a group of channels of one sample",
    constants=spread_constants("normscope F4", GROUP_PRINTED),
    ops=("group_norm", "native_group_norm"),
    modules=(nn.GroupNorm,),
    module_spread=lambda module, shape: group_spread(shape, module.num_groups, module.eps),
    symmetry=Symmetry("group", row=True, shift=True),
)
