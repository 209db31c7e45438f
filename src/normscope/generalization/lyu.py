"""The bound of Lyu, Li and Arora with spherical sharpness: the term that paper 001 hides in a constant."""

from __future__ import annotations

import math

from normscope.core.statement import statement
from normscope.core.value import Kind, Value


@statement("lyu2022", "as printed in than2025", holds="printed; made explicit as a PAC-Bayes bound, remainder left out")
def lyu_bound(parameters: int, noise: float, sharpness: float, samples: int, delta: float) -> Value:
    r"""Return ``tau mu^2/2 + sqrt((n/(2 mu^2) + ln(2 sqrt(m)/delta))/(2 m))``.

    The second term is the PAC-Bayes bound with prior ``N(0, mu^2/n I)`` and ``||W|| = 1``, whose divergence is
    ``n/(2 mu^2)``. The paper prints it as ``O(ln m)/(mu sqrt(m))``: the hidden factor is the root of the number of
    parameters.

    Args:
        parameters: ``n``.
        noise: ``mu``.
        sharpness: ``tau``, the largest Hessian eigenvalue at ``W/||W||``.
        samples: ``m``.
        delta: probability with which it may fail.

    >>> round(lyu_bound(11_000_000, 1.0, 0.0, 50_000, 0.05).value, 1)
    7.4
    """
    budget = parameters / (2 * noise**2) + math.log(2 * math.sqrt(samples) / delta)
    size = sharpness * noise**2 / 2 + math.sqrt(budget / (2 * samples))
    assumed = ("of the network with noise", "the third-order remainder is left out")
    return Value.of(size, Kind.PRINTED, statement="lyu2022 as printed in than2025", assumptions=assumed)
