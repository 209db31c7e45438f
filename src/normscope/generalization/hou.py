"""The bound of Hou et al. as paper 001 prints it: a scale, since its constants are not given there."""

from __future__ import annotations

import math

from normscope.core.statement import statement
from normscope.core.value import Kind, Value, log_sum


@statement("hou2023", "as printed in than2025", holds="printed; the constants of two terms are left out there")
def hou_bound(
    log_distance: float, log_worst: float, log_constant: float, cells: int, samples: int, delta: float
) -> Value:
    r"""Return ``sum_i (m_i/m) lambda_i max(1, L) + max_i lambda_i L sqrt(ln(4/delta)/m) + sqrt(N/m)``.

    Args:
        log_distance: natural logarithm of ``sum_i (m_i/m) lambda_i``.
        log_worst: of ``max_i lambda_i``.
        log_constant: of ``L``, the constant of the loss in the input.
        cells: ``N``.
        samples: ``m``.
        delta: probability with which it may fail.

    >>> round(hou_bound(0.0, 0.0, -1.0, 100, 10_000, 0.05).value, 4)
    1.1077
    """
    terms = (
        log_distance + max(0.0, log_constant),
        log_worst + log_constant + 0.5 * math.log(math.log(4 / delta) / samples),
        0.5 * math.log(cells / samples),
    )
    assumed = ("a constant term and the constant of sqrt(N/m) are left out",)
    return Value(log_sum(terms), Kind.PRINTED, statement="hou2023 as printed in than2025", assumptions=assumed)
