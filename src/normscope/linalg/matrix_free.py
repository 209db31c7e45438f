"""The norm of any linear map known by apply and adjoint."""

from __future__ import annotations

import math

from normscope.linalg.bounds import NormBounds
from normscope.linalg.lanczos import lanczos_norm
from normscope.operators.linear_map import LinearMap


def operator_norm(
    map: LinearMap, *, tolerance: float = 1e-2, delta: float = 1e-9, seed: int = 0, max_steps: int = 300
) -> NormBounds:
    r"""Return an attained value and a probable upper bound on the norm of a linear map; a certificate is the caller's.

    Args:
        map: the map, in float64.
        tolerance: the relative width to reach.
        delta: the probability with which the upper bound may fail.
        seed: the seed of the start vector.
        max_steps: the most Lanczos steps to make.

    Returns:
        The bounds. They assume that one application is computed to relative accuracy ``APPLY_ERROR`` in norm.

    >>> bounds = operator_norm(LinearMap.from_function(lambda x: x[1:] - x[:-1], (50,)))
    >>> bounds.lower <= 2 * math.cos(math.pi / 100) <= bounds.probable, bounds.upper
    (True, inf)
    """
    small = map if map.domain_dimension <= map.range_dimension else map.transpose
    if small.domain_dimension == 0:
        return NormBounds.exact(0.0, method="zero")
    run = lanczos_norm(small, tolerance=tolerance, delta=delta, max_steps=max_steps, seed=seed, reorthogonalise=False)
    if run.ritz == 0.0:  # a random vector is mapped to zero
        return NormBounds(-math.inf, math.inf, -math.inf, delta, "lanczos")
    found = NormBounds.certified(math.log(run.lower), math.inf, "lanczos")
    return found.with_probable(math.log(run.probable), run.delta, "lanczos")
