"""The norm of any linear map known by apply and adjoint."""

from __future__ import annotations

import math

from normscope.lipschitz.spectral.bounds import NormBounds
from normscope.lipschitz.spectral.dense import gram_matrix, gram_norm
from normscope.lipschitz.spectral.lanczos import APPLY_ERROR, lanczos_norm
from normscope.operators.linear_map import LinearMap

#: Dimensions up to which the Gram matrix is built and certified.
DENSE_UP_TO = 1536


def operator_norm(
    map: LinearMap,
    *,
    tolerance: float = 1e-2,
    delta: float = 1e-9,
    seed: int = 0,
    certified_fallback: float = math.inf,
    max_steps: int = 300,
) -> NormBounds:
    r"""Return bounds on the norm of a linear map.

    When the smaller of its two spaces has at most :data:`DENSE_UP_TO` dimensions, the Gram matrix is built and
    certified. Beyond, Lanczos gives the attained value and an upper bound with probability; the certificate is
    then the caller's.

    Args:
        map: the map, in float64.
        tolerance: the relative width to reach.
        delta: the probability with which the probabilistic upper bound may fail.
        seed: the seed of the start vector.
        certified_fallback: an upper bound the caller can prove, e.g. a product of norms.
        max_steps: the most Lanczos steps to make.

    Returns:
        The bounds. They assume that one application is computed to relative accuracy ``APPLY_ERROR`` in norm.

    Raises:
        ValueError: if the given certificate lies below a value the map attains.

    >>> from normscope.operators.linear_map import LinearMap
    >>> bounds = operator_norm(LinearMap.from_function(lambda x: x[1:] - x[:-1], (5,)))
    >>> exact = 2 * math.cos(math.pi / 10)
    >>> bounds.lower <= exact <= bounds.upper, bounds.width < 1e-9
    (True, True)
    """
    small = map if map.domain_dimension <= map.range_dimension else map.transpose
    if small.domain_dimension == 0:
        return NormBounds.exact(0.0, method="zero")
    log_fallback = math.log(certified_fallback) if certified_fallback > 0 else -math.inf
    if small.domain_dimension <= DENSE_UP_TO:
        gram = gram_matrix(small)
        scale = float(gram.diagonal().sum())
        bounds = gram_norm(small, gram, 2 * APPLY_ERROR * scale, APPLY_ERROR * math.sqrt(scale), seed=seed)
        return bounds.with_upper(_not_below(log_fallback, bounds.log_lower), "given")
    run = lanczos_norm(small, tolerance=tolerance, delta=delta, max_steps=max_steps, seed=seed, reorthogonalise=False)
    if run.ritz == 0.0:
        return NormBounds(-math.inf, log_fallback, -math.inf, 0.0 if log_fallback == -math.inf else delta, "lanczos")
    log_lower = math.log(run.lower)
    bounds = NormBounds.certified(log_lower, math.inf, "lanczos").with_upper(
        _not_below(log_fallback, log_lower), "given"
    )
    return bounds.with_probable(math.log(run.probable), run.delta, "lanczos")


def _not_below(log_fallback: float, log_lower: float) -> float:
    """Return the given certificate, raised to the attained value where rounding alone put it below."""
    return max(log_fallback, log_lower) if log_fallback > log_lower - 1e-9 else log_fallback
