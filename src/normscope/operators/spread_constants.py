"""The constants of a normalizer that divides each group by its own spread, scale included."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from normscope.core.value import Kind, Value
from normscope.operators.normalization import Spread, division_constant
from normscope.operators.normalizer import Constants, ConstantsOf, no_bound
from normscope.operators.normalizers.secular_equation import centered_scale_norm
from normscope.operators.site import Site

#: What a paper prints: the number, given the least spreads and eps, and where it stands.
Printed = tuple[Callable[[Tensor, float], float], str]


def spread_constants(
    statement: str, printed: Printed | None = None, *, across_batch: bool = False, fixed: ConstantsOf | None = None
) -> ConstantsOf:
    """Return the constants function of such a normalizer: ``||Gamma P|| / sqrt(s^2 + eps)``, s = 0 on all inputs.

    Args:
        statement: what proves it.
        printed: what a paper prints for it.
        across_batch: its groups reach across the batch, so that the mode of BatchNorm belongs to the value.
        fixed: the constants of the same normalizer with fixed statistics.
    """

    def constants(site: Site, floor: Tensor | None, mode: str) -> Constants:
        if site.running is not None and fixed is not None:
            return fixed(site, floor, mode)
        spread = site.spread
        if spread is None:
            return no_bound()
        batch = "batch" if across_batch else None
        shape = [1 if i != spread.channel_axis else n for i, n in enumerate(spread.view)]
        zero = torch.zeros(shape, dtype=torch.float64)
        proved = Value.of(scaled_constant(site, spread, zero), Kind.CERTIFIED, mode=batch, statement=statement)
        on_floor = None
        if floor is not None:
            number = scaled_constant(site, spread, floor)
            on_floor = Value.of(number, Kind.CERTIFIED, domain=_floor_name(floor), mode=batch, statement=statement)
        if printed is None:
            return Constants(proved, on_floor)
        number = printed[0](zero if floor is None else floor, site.eps)
        value = Value.of(number, Kind.PRINTED, mode=batch, statement=printed[1])
        against = proved if on_floor is None else on_floor
        return Constants(proved, on_floor, value, value.log >= against.log - 1e-12)

    return constants


def _floor_name(floor: Tensor) -> str:
    least = f"{float(floor.min()):.6g}"
    if float(floor.max()) > float(floor.min()):
        return f"standard deviations before it above those seen, each channel its own (the smallest is {least})"
    return f"std before it >= {least}"


def scaled_constant(site: Site, spread: Spread, floor: Tensor) -> float:
    """Return the constant of division and scale together, at the least spreads of the groups."""
    constants = division_constant(spread, floor).flatten()
    if bool(torch.isinf(constants).any()):
        return math.inf
    gamma = None if site.gamma is None else site.gamma.detach().double()
    if gamma is None or gamma.numel() == 1:
        scale = 1.0 if gamma is None else float(gamma.abs().max())
        return float(constants.max()) * scale * (1 + 1e-14)
    if spread.channel_axis is None:
        scale = centered_scale_norm(gamma.flatten()) if _centres_over(gamma, spread) else float(gamma.abs().max())
        return float(constants.max()) * scale * (1 + 1e-14)
    groups = spread.view[spread.channel_axis]
    per_group = gamma.flatten().reshape(groups, -1)
    norms = per_group.abs().amax(1)
    if spread.centered and per_group.shape[1] > 1:
        repeated = per_group.repeat_interleave(min(spread.size // per_group.shape[1], 3), dim=1)
        norms = torch.tensor([centered_scale_norm(g) for g in repeated], dtype=torch.float64)
    return float((norms * constants.expand(groups)).max()) * (1 + 1e-14)


def _centres_over(gamma: Tensor, spread: Spread) -> bool:
    """Return whether the scale has one entry per element of a centred group, so that the mean it removes is known.

    Its last axes are those that are averaged, and no other: as many entries along other axes are another thing.
    """
    rank = len(spread.view)
    varies = {axis for axis, length in enumerate(gamma.shape, rank - gamma.ndim) if length > 1}
    covered = {axis % rank for axis in spread.axes if spread.view[axis] > 1}
    return spread.centered and gamma.ndim <= rank and varies == covered and gamma.numel() == spread.size
