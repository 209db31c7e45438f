"""Maps whose coefficients are not negative: averages, sums, copies. Their row and column sums bound them."""

from __future__ import annotations

import math

import torch

from normscope.core.statement import statement
from normscope.linalg.bounds import NormBounds
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF
from normscope.operators.linear_map import LinearMap


@statement("normscope", "Schur test", holds="every coefficient of the map is >= 0")
def schur_norm(map: LinearMap) -> NormBounds:
    r"""Return bounds on the norm of a map with non-negative coefficients.

    From above :math:`\|A\|_2^2 \le \max_i (A 1)_i \, \max_j (A^T 1)_j`. From below the larger of
    :math:`\|A 1\| / \|1\|` and the norm of the column with the largest sum; for pools, sums and copies of equal
    windows the two meet.

    Args:
        map: the map, in float64; both of its functions sum at most as many terms as a space has dimensions.

    Returns:
        The bounds.

    >>> pairs = LinearMap.from_function(lambda x: x.reshape(-1, 2).sum(1), (6,))
    >>> bounds = schur_norm(pairs)
    >>> bounds.lower <= math.sqrt(2) <= bounds.upper, bounds.width < 1e-11
    (True, True)
    """
    ones = torch.ones(map.domain_shape, dtype=torch.float64, device=map.device)
    rows = map.apply(ones)
    if rows.numel() == 0 or not bool((rows > 0).any()):
        return NormBounds.exact(0.0, method="zero")
    columns = map.adjoint(torch.ones(map.range_shape, dtype=torch.float64, device=map.device))
    upper = math.sqrt(float(rows.max()) * float(columns.max()))
    unit = torch.zeros(map.domain_dimension, dtype=torch.float64, device=map.device)
    unit[int(columns.flatten().argmax())] = 1.0
    column = float(torch.linalg.vector_norm(map.apply(unit.reshape(map.domain_shape))))
    lower = max(float(torch.linalg.vector_norm(rows)) / math.sqrt(map.domain_dimension), column)
    # Sums of n positive terms err by less than n u, whatever their order; so do the norms.
    slack = 2.0 * UNIT_ROUNDOFF * (map.domain_dimension + map.range_dimension + 8)
    return NormBounds.between(min(lower, upper), upper, "Schur test").widen(slack)
