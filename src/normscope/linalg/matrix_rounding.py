"""Rounding error analysis: error constants, exact scaling by powers of two, and the Schur test."""

import math

import torch
from torch import Tensor

from normscope.core.errors import NonFiniteError
from normscope.core.statement import statement
from normscope.linalg.bounds import NormBounds
from normscope.operators.linear_map import LinearMap

#: Unit roundoff of float64, half the distance from 1 to the next number.
UNIT_ROUNDOFF = 2.0**-53


def gamma(operations: int, *, complex_arithmetic: bool = False) -> float:
    r"""Return :math:`\gamma_k = k u / (1 - k u)`, the error of ``k`` roundings in a row in float64.

    A sum of ``k`` products, in any order and with or without fused multiply-add, has error at most
    :math:`\gamma_k \sum |x_i| |y_i|`. For complex products each part is a sum of twice as many, and both parts together
    cost :math:`\sqrt 2 \gamma_{2k}`: three times the count covers it.

    Raises:
        ValueError: if ``k u >= 1``, where the analysis says nothing.

    >>> gamma(1) > 2.0**-53
    True
    """
    count = 3 * operations + 3 if complex_arithmetic else operations
    product = count * UNIT_ROUNDOFF
    if product >= 0.5:
        raise ValueError(f"Rounding analysis requires k u < 1/2, got k = {count}.")
    return product / (1.0 - product) * (1.0 + 4 * UNIT_ROUNDOFF)


def root_above(square: float) -> float:
    """Return an upper bound of the square root of a computed number, rounding included.

    >>> root_above(2.0) > math.sqrt(2.0)
    True
    """
    return math.sqrt(square) * (1.0 + 4 * UNIT_ROUNDOFF)


def binary_exponent(tensor: Tensor) -> int | None:
    """Return the exponent of the least power of two above all magnitudes, or ``None`` where every entry is zero.

    >>> binary_exponent(torch.tensor([-3.0, 1.0])), binary_exponent(torch.zeros(2))
    (2, None)
    """
    lowest, highest = torch.aminmax(tensor) if tensor.numel() else (0.0, 0.0)
    top = max(-float(lowest), float(highest))
    if not math.isfinite(top):
        raise NonFiniteError("Expected finite weights, got NaN or infinity. Check the weights of this layer.")
    return math.frexp(top)[1] if top else None


def divided(tensor: Tensor, exponent: int) -> Tensor:
    """Return a float64 tensor divided exactly by a power of two."""
    # In two halves: 2**-exponent alone overflows for subnormal weights.
    half = exponent // 2 if abs(exponent) >= 1_000 else 0
    scaled = tensor * math.ldexp(1.0, half - exponent)
    return scaled * math.ldexp(1.0, -half) if half else scaled


def to_unit_scale(tensor: Tensor) -> tuple[Tensor, float]:
    r"""Return the tensor in float64, divided exactly by a power of two so that its largest entry is in [1/2, 1).

    Squares of its entries then neither overflow nor vanish against the largest one.

    Returns:
        The scaled tensor and the natural logarithm of the power of two taken out (0 for the zero tensor).

    >>> scaled, log_factor = to_unit_scale(torch.tensor([4.0]))
    >>> scaled.item(), log_factor == math.log(8)
    (0.5, True)
    """
    wide = tensor.detach().to(torch.float64)
    exponent = binary_exponent(wide)
    return (wide, 0.0) if exponent is None else (divided(wide, exponent), exponent * math.log(2.0))


@statement("normscope", "Schur test", holds="every coefficient of the map is >= 0")
def schur_norm(map: LinearMap) -> NormBounds:
    r"""Return bounds on the norm of a map with non-negative coefficients.

    From above :math:`\|A\|_2^2 \le \max_i (A 1)_i \, \max_j (A^T 1)_j`. From below the larger of
    :math:`\|A 1\| / \|1\|` and the norm of the column with the largest sum; for pools, sums and copies of equal
    windows the two meet.

    Args:
        map: the map, in float64; both of its functions sum at most as many terms as a space has dimensions.

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
