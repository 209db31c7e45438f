"""Instance normalization: each channel of each sample is normalized over its positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.rounding import as_float64, require_nonnegative
from normscope.core.statement import statement
from normscope.graph.recognise import Match
from normscope.operators.normalization import Spread, fixed_statistics, normalizer, per_channel
from normscope.operators.normalizer import Normalizer, Symmetry
from normscope.operators.normalizers.batch_norm import (
    batch_norm_batch_on_floor,
    floors_like,
    grouped_range,
    running_constants,
)
from normscope.operators.normalizers.group_norm import (
    GROUP_PRINTED,
    group_norm_at,
    group_norm_each,
    group_norm_on_ball,
)
from normscope.operators.normalizers.layer_norm import OutputRange
from normscope.operators.registry import Call, rule
from normscope.operators.spread_constants import spread_constants


@statement("normscope", "Proposition IN-1", holds="instance statistics; with running statistics it is batch norm")
def instance_norm_each(x: Tensor, gamma: Tensor | None, eps: float) -> Tensor:
    """Return the Jacobian norm of each channel of each sample.

    ``|gamma_c| / sqrt(sigma_nc^2 + eps)`` for three or more positions, ``|gamma_c| eps / (sigma_nc^2 + eps)^{3/2}`` for
    two and 0 for one.

    >>> instance_norm_each(torch.tensor([[[0.0, 2.0, 4.0]]]), None, 0.0)
    tensor([[0.6124]], dtype=torch.float64)
    """
    return group_norm_each(x, x.shape[1], gamma, eps)


@statement("normscope", "Proposition IN-1", holds="instance statistics; with running statistics it is batch norm")
def instance_norm_at(x: Tensor, gamma: Tensor | None, eps: float) -> float:
    """Return the Jacobian norm at a batch: the largest of :func:`instance_norm_each`.

    >>> round(instance_norm_at(torch.zeros(2, 3, 4), torch.tensor([1.0, -2.0, 0.5]), 1e-2), 9)
    20.0
    """
    return group_norm_at(x, x.shape[1], gamma, eps)


@statement("normscope", "Proposition IN-2")
def instance_norm_global(gamma: Tensor, eps: float, positions: int = 2) -> float:
    """Return the Lipschitz constant on all inputs, ``max_c |gamma_c| / sqrt(eps)`` (0 for a single position).

    >>> round(instance_norm_global(torch.tensor([1.0, -2.0]), 1e-2), 9)
    20.0
    """
    return instance_norm_on_floor(gamma, eps, 0.0, positions)


@statement("normscope", "Proposition IN-3")
def instance_norm_on_floor(gamma: Tensor, eps: float, s: Tensor | float, positions: int = 2) -> float:
    """Return the Lipschitz constant on ``{sigma_nc(x) >= s_c}``, ``max_c |gamma_c| / sqrt(s_c^2 + eps)``.

    >>> round(instance_norm_on_floor(torch.tensor([1.0, -2.0]), 0.0, torch.tensor([0.5, 4.0])), 9)
    2.0
    """
    floors = floors_like(s, as_float64(gamma, "gamma").reshape(-1))
    if positions == 1 and (require_nonnegative(eps, "eps") > 0 or float(floors.min()) > 0):
        return 0.0
    return batch_norm_batch_on_floor(gamma, eps, floors)


@statement("normscope", "Proposition IN-4")
def instance_norm_on_ball(x: Tensor, radius: float, gamma: Tensor | None, eps: float) -> float:
    """Return a bound of the Lipschitz constant on the ball of ``radius`` around a batch of inputs.

    >>> round(instance_norm_on_ball(torch.tensor([[[3.0, -3.0, 0.0]]]), 1.0, None, 0.0), 6)
    0.534148
    """
    return group_norm_on_ball(x, radius, x.shape[1], gamma, eps)


@statement("normscope", "Proposition IN-5")
def instance_norm_range(gamma: Tensor, beta: Tensor | None, positions: int) -> OutputRange:
    """Return where the output of one sample lies: each channel is a normalized vector of ``positions`` values.

    >>> round(instance_norm_range(torch.ones(4), None, 16).radius, 9)
    8.0
    """
    scale = as_float64(gamma, "gamma").reshape(-1)
    shift = torch.zeros_like(scale) if beta is None else as_float64(beta, "beta").reshape(-1)
    return grouped_range(scale, shift, positions, positions)


def instance_spread(shape: tuple[int, ...], eps: float) -> Spread:
    """Return how an input of a shape (samples, channels, *positions) is divided."""
    return Spread(shape, tuple(range(2, len(shape))), eps, True, channel_axis=1)


@rule("instance_norm")
def instance_norm(call: Call) -> Any:
    """InstanceNorm: one channel of one sample; with running statistics it is a fixed affine map."""
    x = call["input"]
    gamma, beta = (per_channel(call[name], len(x.shape)) for name in ("weight", "bias"))
    if not call["use_input_stats"]:
        return fixed_statistics(call, x, call["running_mean"], call["running_var"], float(call["eps"]), gamma, beta)
    return normalizer(call, x, instance_spread(x.shape, float(call["eps"])), "instance_norm", gamma, beta)


def _module_spread(module: nn.InstanceNorm2d, shape: tuple[int, ...]) -> Spread:
    return instance_spread(shape, module.eps)


def _claims(match: Match, spread: Spread) -> bool:
    return match.centered and len(spread.view) == 4 and spread.axes == (2, 3)


NORMALIZER = Normalizer(
    kind="instance_norm",
    formula="gamma (x - mean)/sqrt(var + eps) + beta, statistics of one channel of one sample",
    constants=spread_constants("normscope F5", GROUP_PRINTED, fixed=running_constants),
    ops=("instance_norm",),
    modules=(nn.modules.instancenorm._InstanceNorm,),
    module_spread=_module_spread,
    symmetry=Symmetry("neuron", shift=True),
    adaptive="adaptive_instance_norm",
    claims=_claims,
)
