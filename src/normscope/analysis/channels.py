"""Hot channels: those a normalizer multiplies, or the data varies in, far more than the others."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from normscope.operators.site import Site
from normscope.operators.survey import Seen

#: How many times the median makes a channel hot, and how many are kept of each normalizer.
HOT, KEPT = 3.0, 5


def hot_channels(site: Site, seen: Seen | None) -> list[dict[str, Any]]:
    """Return the channels of a normalizer that stand out, hottest first.

    The factor of channel c is ``|gamma_c| / sqrt(s_c^2 + eps)``, s the running standard deviation, or else the least
    one the data showed, or zero. Its variance is that of the data before the normalizer.

    Args:
        site: the normalizer.
        seen: what the data showed before it, if there was data.

    Returns:
        For each ``channel`` its ``factor`` and, with data, its ``variance``, both also as ``..._over_median``.

    >>> site = Site("n", "x", "bn", "batch_norm", gamma=torch.tensor([1.0, 1.0, 8.0]), shape=(1, 3), eps=1.0,
    ...     running=(torch.zeros(3), torch.zeros(3)))
    >>> hot_channels(site, None)
    [{'channel': 2, 'factor': 8.0, 'factor_over_median': 8.0}]
    """
    factor = _factors(site, seen)
    variance = None if seen is None or seen.moments.count == 0 else seen.moments.variance.flatten().cpu()
    columns = {"factor": factor, "variance": variance}
    sizes = {t.numel() for t in columns.values() if t is not None}
    if len(sizes) > 1:  # the data was seen along another axis than the scale acts on
        columns["variance"] = None
    rows: list[tuple[float, dict[str, Any]]] = []
    ratios = {key: _over_median(t) for key, t in columns.items() if t is not None and t.numel() > 1}
    for channel in range(max((t.numel() for t in ratios.values()), default=0)):
        heat = max(float(ratio[channel]) for ratio in ratios.values())
        if heat > HOT:
            row: dict[str, Any] = {"channel": channel}
            for key, ratio in ratios.items():
                row |= {key: float(columns[key][channel]), f"{key}_over_median": float(ratio[channel])}  # type: ignore[index]
            rows.append((heat, row))
    return [row for _, row in sorted(rows, key=lambda item: -item[0])[:KEPT]]


def _factors(site: Site, seen: Seen | None) -> Tensor | None:
    """Return the factor of each channel, or ``None`` if there are no channels to tell apart."""
    gamma = None if site.gamma is None else site.gamma.detach().double().flatten().abs().cpu()
    if site.running is not None:
        variance = site.running[1].detach().double().flatten().cpu()
        scale = torch.ones_like(variance) if gamma is None else gamma
        return scale / (variance + site.eps).sqrt() if scale.numel() == variance.numel() else None
    if gamma is None or gamma.numel() < 2:
        return None
    floor = torch.zeros(1) if seen is None or seen.floor is None else seen.floor
    floor = floor.detach().double().flatten().cpu()
    if gamma.numel() % floor.numel():
        return gamma
    spread = floor.repeat_interleave(gamma.numel() // floor.numel())
    return gamma / (spread.square() + site.eps).sqrt() if site.eps > 0 or bool((spread > 0).all()) else gamma


def _over_median(values: Tensor) -> Tensor:
    """Return values over their median; what is larger than a zero median is infinitely larger.

    >>> _over_median(torch.tensor([0.0, 0.0, 1.0])).tolist()
    [1.0, 1.0, inf]
    """
    median = values.median()
    if float(median) > 0.0:
        return values / median
    return torch.where(values > median, math.inf, 1.0)
