"""Outward rounding: numbers that stay on the safe side of the real number they stand for.

Every certified constant of this package is computed in float64 and then moved up by a proved rounding error. The
unit roundoff is ``u = 2^-53``; one operation has relative error at most ``u``.
"""

import math
import sys
from fractions import Fraction

import torch
from torch import Tensor

from normscope.core.errors import InputError, NonFiniteError

#: Unit roundoff of float64.
UNIT = 2.0**-53
#: Smallest positive float64, the least upper bound a float can give to a positive number that underflowed.
TINIEST = 5e-324


def up(x: float, units: float = 8.0) -> float:
    """Return a float at least ``x (1 + units u)``, for ``x >= 0``.

    >>> 1.0 < up(1.0) < 1.0 + 1e-14
    True
    >>> up(0.0), up(math.inf)
    (0.0, inf)
    """
    # 1 + units u would be rounded itself, perhaps down
    return math.nextafter(x + x * (units * UNIT), math.inf) if x > 0 else x


def down(x: float, units: float = 8.0) -> float:
    """Return a float at most ``x (1 - units u)`` and at least zero, for ``x >= 0``.

    >>> 1.0 - 1e-14 < down(1.0) < 1.0
    True
    """
    return max(0.0, math.nextafter(x * (1.0 - units * UNIT), -math.inf)) if 0 < x < math.inf else x


def quotient_up(numerator: float, denominator: float) -> float:
    """Return an upper bound of ``numerator / denominator`` for non-negative floats; ``x / 0`` is infinity.

    The bound covers up to eight roundings in the arguments; ``0 / 0`` and ``inf / inf`` are infinity: nothing is
    claimed there.

    >>> quotient_up(1.0, 0.0), quotient_up(0.0, 2.0)
    (inf, 0.0)
    """
    if denominator == 0 or numerator == math.inf:
        return math.inf
    if numerator == 0:
        return 0.0
    return max(up(numerator / denominator, 16.0), TINIEST)


def product_up(*factors: float) -> float:
    """Return the smallest float at least ``|product of the factors|``, from exact rational arithmetic.

    It is infinity if a factor is not finite: nothing is claimed there.

    >>> product_up(3.0, 0.5), product_up(0.1, 0.1) >= 0.1 * 0.1
    (1.5, True)
    """
    if not all(map(math.isfinite, factors)):
        return math.inf
    exact = Fraction(1)
    for factor in factors:
        exact *= Fraction(abs(factor))
    if exact > sys.float_info.max:
        return math.inf
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def tree_sum(x: Tensor) -> Tensor:
    """Return the sum over the last axis by halving, whose error is at most ``depth(n) u sum |x_i|``.

    The bound ``ceil(log2 n) u`` (to first order) holds by construction, whatever the device does.

    >>> tree_sum(torch.arange(5.0)).item()
    10.0
    """
    while x.shape[-1] > 1:
        half = (x.shape[-1] + 1) // 2
        head, tail = x[..., :half], x[..., half:]
        x = head + (tail if tail.shape[-1] == half else torch.nn.functional.pad(tail, (0, 1)))
    return x[..., 0]


def sum_units(n: int) -> float:
    """Return how many unit roundoffs a :func:`tree_sum` of ``n`` terms, and eight operations around it, may lose.

    >>> sum_units(1024)
    18.0
    """
    return math.ceil(math.log2(max(n, 1))) + 8.0


def as_float64(x: Tensor, name: str) -> Tensor:
    """Return a real tensor as float64 on the CPU, detached; every narrower float is represented exactly.

    An empty or complex tensor, NaN and infinity are refused.

    >>> as_float64(torch.ones(2, dtype=torch.bfloat16), "gamma").dtype
    torch.float64
    """
    if x.is_complex() or x.numel() == 0:
        raise InputError(
            f"Expected {name} to be a real tensor with at least one element, got {x.dtype} of shape {tuple(x.shape)}."
        )
    y = x.detach().to(device="cpu", dtype=torch.float64)
    if not bool(torch.isfinite(y).all()):
        raise NonFiniteError(f"Expected {name} to be finite, got NaN or infinity. Look for the layer that diverged.")
    return y


def require_nonnegative(x: float, name: str) -> float:
    """Return ``x`` as a float if it is finite and non-negative."""
    if not (math.isfinite(x) and x >= 0):
        raise InputError(f"Expected {name} to be a finite number >= 0, got {x}.")
    return float(x)


def matrix_norm_sandwich(matrix: Tensor) -> tuple[float, float]:
    """Return proved lower and upper bounds of the spectral norm ``||A||_2``, from a full singular value decomposition.

    With computed ``U, S, V``: ``||A|| <= ||U|| s_1 ||V|| + ||A - U S V^T||_F`` and ``||U||^2 <= 1 + ||U^T U - I||_F``;
    every residual is enlarged by the rounding error of the product that forms it. The lower bound is ``2 s_1 - upper``,
    which the same perturbation argument gives. A single row or column is measured by its Euclidean norm.

    Usually they are within ``1e-12`` of each other.

    >>> lower, upper = matrix_norm_sandwich(torch.diag(torch.tensor([3.0, -4.0])))
    >>> lower <= 4.0 <= upper and upper - lower < 1e-12
    True
    """
    A = as_float64(matrix, "the matrix")
    largest = float(A.abs().max())
    if largest == 0:
        return 0.0, 0.0
    scale = 2.0 ** max(math.frexp(largest)[1] - 1, -1022)
    A = A / scale
    if min(A.shape) == 1:
        norm = math.sqrt(float(tree_sum(A.reshape(-1) ** 2)))
        units = sum_units(A.numel())
        return _scaled_outward(scale, down(norm, units), up(norm, units))
    U, S, Vh = torch.linalg.svd(A, full_matrices=False)
    eye = torch.eye(S.numel(), dtype=A.dtype)
    top = float(S[0])
    slack = 4.0 * max(A.shape) * UNIT
    # each computed product of orthonormal factors errs by at most slack * ||.||_F ||.||_F
    skew = [float(torch.linalg.matrix_norm(gram - eye)) + slack * S.numel() for gram in (U.mT @ U, Vh @ Vh.mT)]
    residual = float(torch.linalg.matrix_norm(A - (U * S) @ Vh))
    residual += slack * float(torch.linalg.vector_norm(S)) * math.sqrt(S.numel())
    # a thousandth more covers the rounding of these Frobenius norms for up to 1e12 entries
    factor = math.sqrt((1.0 + 1.001 * skew[0]) * (1.0 + 1.001 * skew[1]))
    upper = up(top * factor + 1.001 * residual)
    return _scaled_outward(scale, down(2.0 * top - upper), upper)


def _scaled_outward(scale: float, lower: float, upper: float) -> tuple[float, float]:
    """Return bounds times a power of two, moved outward by one float: a subnormal product is rounded."""
    return max(0.0, math.nextafter(scale * lower, -math.inf)), math.nextafter(scale * upper, math.inf)
