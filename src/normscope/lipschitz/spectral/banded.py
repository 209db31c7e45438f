"""Exact norms of convolutions on small maps: their Gram matrix is banded, and a banded Cholesky proves the norm."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.linalg import LinAlgError, cholesky_banded

from normscope.lipschitz.spectral.cholesky import cholesky_margin
from normscope.lipschitz.spectral.geometry import Axis
from normscope.operators.linear_map import LinearMap


def coupling(axes: Sequence[Axis], *, of_outputs: bool) -> tuple[list[int], list[int]]:
    """Return the sizes of the places of one side, and how far apart two places can be that share a place beyond.

    Two inputs meet in an output if they are at most ``d (k - 1)`` apart; two outputs meet in an input if they are at
    most ``d (k - 1) / s`` apart.

    >>> coupling([Axis(8, 4, 3, 2, 1, 1)], of_outputs=True)
    ([4], [1])
    """
    if of_outputs:
        return [a.output_size for a in axes], [min(a.reach // a.stride, a.output_size - 1) for a in axes]
    return [a.size for a in axes], [min(a.reach, a.size - 1) for a in axes]


def bandwidth(sizes: Sequence[int], reach: Sequence[int], channels: int) -> int:
    """Return the number of subdiagonals of the Gram matrix, places in row-major order, channels within a place.

    >>> bandwidth([4, 4], [1, 1], 2)
    11
    """
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    return channels * sum(r * s for r, s in zip(reach, strides, strict=True)) + channels - 1


def banded_cost(axes: Sequence[Axis], channels: int, *, of_outputs: bool) -> float:
    """Return the multiplications of the banded factorisation, ``N b^2``."""
    sizes, reach = coupling(axes, of_outputs=of_outputs)
    return float(math.prod(sizes) * channels) * float(bandwidth(sizes, reach, channels) + 1) ** 2


def banded_gram(map: LinearMap, sizes: Sequence[int], reach: Sequence[int]) -> np.ndarray:
    """Return the lower band of ``A^T A`` in the storage of LAPACK: row i - j, column j.

    Places further apart than twice the reach do not see each other's answers, so one application to a comb of places
    gives the columns of all of them.

    Args:
        map: the map A from (channels, *sizes).
        sizes: the sizes of its domain.
        reach: how far apart two places may be that the Gram matrix couples, per axis.
    """
    channels = map.domain_shape[0]
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    band = np.zeros((bandwidth(sizes, reach, channels) + 1, math.prod(sizes) * channels))
    steps = [2 * r + 1 for r in reach]
    shifts = list(itertools.product(*(range(-r, r + 1) for r in reach)))
    c_in, c_out = np.meshgrid(np.arange(channels), np.arange(channels), indexing="ij")
    for colour in itertools.product(*(range(min(s, n)) for s, n in zip(steps, sizes, strict=True))):
        comb = torch.zeros(list(sizes), dtype=torch.float64, device=map.device)
        comb[tuple(slice(c, None, s) for c, s in zip(colour, steps, strict=True))] = 1.0
        probes = torch.eye(channels, dtype=torch.float64, device=map.device).reshape(
            channels, channels, *(1,) * len(sizes)
        )
        answers = map.adjoint_batch(map.apply_batch(probes * comb)).cpu().numpy()
        places = np.argwhere(comb.cpu().numpy() > 0)
        for shift in shifts:
            other = places + np.asarray(shift)
            inside = np.all((other >= 0) & (other < np.asarray(sizes)), axis=1)
            here, there = places[inside] @ strides, other[inside] @ strides
            values = answers[(slice(None), slice(None), *other[inside].T)]  # (in, out, places)
            column = here[None, None, :] * channels + c_in[:, :, None]
            row = there[None, None, :] * channels + c_out[:, :, None]
            below = row >= column
            band[(row - column)[below], column[below]] = values[below]
    return band


def banded_certificate(
    map: LinearMap, sizes: Sequence[int], reach: Sequence[int], lower: float, *, gram_error: float, widest: float
) -> float:
    r"""Return a certified upper bound on the norm of a map with banded Gram matrix, or infinity.

    A successful factorisation of :math:`\tau I - A^T A` proves :math:`\|A\|^2 \le \tau + c + e` with the margin c of
    the factorisation and the error e of the Gram matrix; inner products have at most b + 1 terms.

    Args:
        map: the map A from (channels, *sizes), in float64.
        sizes: the sizes of its domain.
        reach: how far apart coupled places may be.
        lower: an attained value; the closer it is to the norm, the tighter the bound.
        gram_error: a bound on the spectral norm of the error made in forming the Gram matrix.
        widest: the largest relative distance above ``lower`` that is tried.

    >>> from normscope.lipschitz.spectral.geometry import zero_padded_map
    >>> axes = [Axis(5, 5, 3, 1, 1, 1)]
    >>> box = zero_padded_map(torch.ones(1, 1, 3, dtype=torch.float64), axes)
    >>> exact = 1 + 2 * math.cos(math.pi / 6)
    >>> bound = banded_certificate(box, *coupling(axes, of_outputs=False), exact, gram_error=1e-14, widest=1e-3)
    >>> exact <= bound < exact + 1e-6
    True
    """
    band = banded_gram(map, sizes, reach)
    diagonal = band[0].copy()
    np.negative(band, out=band)
    margin = 2e-8
    while margin <= widest:
        tau = (lower * (1.0 + margin)) ** 2
        band[0] = tau - diagonal
        if bool((band[0] > 0).all()):
            try:
                factor = cholesky_banded(band, lower=True, check_finite=False)
            except LinAlgError:
                factor = None
            if factor is not None and bool(np.isfinite(factor[0]).all()):
                trace = float(band[0].sum()) * (1.0 + 1e-12)
                slack = cholesky_margin(band.shape[0] + 1, trace)
                return math.sqrt((tau + slack + gram_error) * (1.0 + 2.0**-48))
        margin *= 8.0
    return math.inf
