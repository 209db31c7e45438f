"""A contest of maps: which of several has the least norm, found out as cheaply as an estimate allows."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from normscope.linalg.lanczos import lanczos_norm
from normscope.operators.linear_map import LinearMap


def least_norm(
    contestants: Iterable[tuple[LinearMap, Tensor]], *, enough: float = 0.0, max_steps: int = 20
) -> tuple[float, int]:
    """Return the least estimated norm among several maps and the number of its map; estimates come from below.

    A vector that nearly attains the norm of a map they all extend is a very good start: a few steps find what many
    would from a random one. Ritz values only rise, so a map that has passed the best one so far is out of the race.

    Args:
        contestants: the maps, each with a start, which is laid into its smaller space as far as it fits.
        enough: the first map whose estimate is at most this ends the contest.
        max_steps: the most Lanczos steps for each.

    Returns:
        The estimate and the number.

    >>> maps = [LinearMap.from_matrix(torch.diag(torch.tensor([1.0, d]))) for d in (3.0, 2.0, 4.0)]
    >>> estimate, winner = least_norm((map, torch.ones(2)) for map in maps)
    >>> round(estimate, 6), winner
    (2.0, 1)
    """
    best, winner = math.inf, 0
    for number, (map, vector) in enumerate(contestants):
        small = map if map.domain_dimension <= map.range_dimension else map.transpose
        run = lanczos_norm(
            small,
            tolerance=1e-3,
            max_steps=max_steps,
            start=with_noise(_laid(vector, small.domain_shape), 0),
            target=best,
            reorthogonalise=False,
        )
        if run.ritz < best:
            best, winner = run.ritz, number
        if run.ritz <= enough:
            break
    return best, winner


def with_noise(vector: Tensor, seed: int) -> Tensor:
    """Return a flat unit vector plus a random one of half its length, for a start that leaves no direction out."""
    noise = torch.randn(vector.numel(), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return vector.flatten() + noise.to(vector.device) * (0.5 / math.sqrt(vector.numel()))


def _laid(vector: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the vector in the corner of a space of zeros, cut where it does not fit."""
    laid = torch.zeros(shape, dtype=torch.float64, device=vector.device)
    part = tuple(slice(0, min(a, b)) for a, b in zip(shape, vector.shape, strict=True))
    laid[part] = vector[part].to(torch.float64)
    return laid
