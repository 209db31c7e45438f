"""Section 5.1: how many iterations training needs."""

from fractions import Fraction

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.core.value import Kind, Value
from normscope.papers.chains import chain
from normscope.papers.claim import Claims, Outcome, close, refuted
from normscope.papers.measure import confirm, confirm_bound, gaussian, gradient
from normscope.papers.than2025.complexity.iteration_counts import (
    corollary_18,
    corollary_19,
    goldstein,
    printed_lower_bounds,
    strongly_convex_lower,
    strongly_convex_upper,
)

CLAIMS = Claims("than2025")


def _steps_to(value: float, mu: float, slope: float, start: float) -> int:
    """Return after how many subgradient steps ``mu/2 x^2 + slope |x|`` is below a value, steps ``2/(mu (t + 1))``."""
    x, t = start, 0
    while 0.5 * mu * x * x + slope * abs(x) > value:
        t += 1
        x -= 2 / (mu * (t + 1)) * (mu * x + (slope if x > 0 else -slope))
    return t


@CLAIMS.add(
    "001-IC",
    "Section 5.1, iteration complexity",
    printed_lower_bounds,
    strongly_convex_upper,
    strongly_convex_lower,
    goldstein,
)
def _iteration_complexity() -> Outcome:
    """First-order methods need L^2/alpha^2 iterations for convex, L/alpha for strongly convex, and L/alpha for
    alpha-stationary points of nonsmooth nonconvex problems.

    Corrected: The first is right. Strongly convex: L^2/(mu alpha). The third: alpha-stationary points of Lipschitz
    functions cannot be found in finite time at all; rates are for (delta, alpha)-Goldstein points. All are about the
    worst function of a class.
    """
    mu, slope, start, alpha, s = 1.0, 1.0, 1.0, 1e-3, 1e-2
    steps = _steps_to(alpha, mu, slope, start)
    stretched = _steps_to(alpha, mu / s**2, slope / s, s * start)  # f(x / s): the same problem in another unit
    constants = [Value.of((mu * start + slope) / unit, Kind.CERTIFIED) for unit in (1.0, s)]
    limits = [strongly_convex_upper(L, mu / u**2, alpha).value for L, u in zip(constants, (1.0, s), strict=True)]
    confirm("L^2/(mu alpha) does not depend on the unit", limits[0], limits[1])
    confirm_bound("enough steps", limits[0], float(steps))
    printed = [printed_lower_bounds(L, alpha)["strongly convex"].value for L in constants]
    x, smallest = Fraction(1, 3), 1.0
    for t in range(1, 10_001):  # |x| in exact arithmetic: a third plus steps of powers of two misses the kink
        x -= (1 if x > 0 else -1) * Fraction(1, 2 ** t.bit_length())
        smallest = min(smallest, 0.0 if x == 0 else 1.0)
    measured = {
        "steps, strongly convex": steps,
        "steps, in units 100 times smaller": stretched,
        "L/alpha": printed[0],
        "L/alpha, in those units": printed[1],
        "least |f'| of |x| in 10000 steps": smallest,
    }
    because = "the count does not depend on the unit of x, L/alpha does; and |x| gives no point with |f'| < 1"
    depends = steps == stretched and not close(printed[0], printed[1])
    return refuted(depends and smallest == 1.0, measured, because)


def _gradient_sizes(weights: list[Tensor], data: Tensor, target: Tensor) -> list[float]:
    """Return the norms of the gradients of the square loss in every layer."""
    sizes = []
    for i in range(len(weights)):

        def loss(w: Tensor, i: int = i) -> Tensor:
            return ((chain([*weights[:i], w, *weights[i + 1 :]])(data) - target) ** 2).mean()

        sizes.append(float(gradient(loss, weights[i]).norm()))
    return sizes


@CLAIMS.add("001-C18", "Corollary 18", corollary_18)
def _corollary_18() -> Outcome:
    """Every method needs at least s_{i+1} ... s_K / alpha iterations, up to a constant, without normalizers.

    Corrected: Lower bounds speak of the worst function of a class, not of a given loss: all weights zero is a
    stationary point, found after no iteration. At most the upper bounds for the class scale with L.
    """
    data, target = gaussian(2100, 16, 5), gaussian(2101, 16, 5)
    zero = [torch.zeros(5, 5, dtype=torch.float64)] * 3
    sizes = _gradient_sizes(zero, data, target)
    claimed = 10.0**2 / 0.01
    measured = {
        "largest gradient at W = 0": max(sizes),
        "iterations": 0,
        "claimed, s = 10, alpha = 0.01": claimed,
    }
    return refuted(max(sizes) == 0.0 < claimed, measured, "W = 0 is in the family and stationary")


@CLAIMS.add("001-C19", "Corollary 19", corollary_19, goldstein)
def _corollary_19() -> Outcome:
    """Stationary points are found with s_{i+1} ... s_K / alpha^2 evaluations, and sigma^(-K+i-1) times that with
    BatchNorm.

    Corrected: The exponent of sigma is right (K - i + 1 factors, frozen statistics). The rate is not: the cited methods
    find (delta, alpha)-Goldstein points with O~(Delta L^2 / (delta alpha^3)) evaluations: the factor of sigma is
    squared.
    """
    depth, i, sigma, alpha = 6, 2, 3.0, 1e-3
    norms, inverse = [Value.of(2.0, Kind.CERTIFIED)] * (depth - i), Value.of(1 / sigma, Kind.CERTIFIED)
    plain_rate = corollary_19(norms, alpha).value
    reduction = corollary_19(norms, alpha, inverse, depth - i + 1).value / plain_rate
    confirm("the exponent", sigma ** -(depth - i + 1), reduction)
    data, target, weight = gaussian(2200, 32, 5), gaussian(2201, 32, 1), gaussian(2202, 1, 5)

    def steps(c: float, alpha: float) -> int:
        w, count = weight.clone(), 0
        while True:
            found = gradient(lambda v: c * F.huber_loss(data @ v.mT, target, delta=0.1), w)
            if float(found.norm()) <= c * alpha:
                return count
            w, count = w - (0.5 / c) * found, count + 1

    plain, scaled = steps(1.0, alpha), steps(4.0, alpha)
    one, four = Value.of(1.0, Kind.CERTIFIED), Value.of(4.0, Kind.CERTIFIED)
    printed = corollary_19([four], 4 * alpha).value / corollary_19([one], alpha).value
    cited = goldstein(four, 4.0, 0.1, 4 * alpha).value / goldstein(one, 1.0, 0.1, alpha).value
    confirm("the cited rate does not depend on the unit of the loss", cited, 1.0)
    measured = {
        "evaluations for the loss": plain,
        "evaluations for 4 times the loss, alpha 4 times as large": scaled,
        "ratio of L/alpha^2, as printed": printed,
        "ratio of Delta L^2/(delta alpha^3)": cited,
    }
    because = "the count does not depend on the unit of the loss, L/alpha^2 does"
    return refuted(plain == scaled > 0 and not close(printed, 1.0), measured, because)
