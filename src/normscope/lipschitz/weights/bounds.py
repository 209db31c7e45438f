"""Certified constants in the weights on one domain: of small changes, and of changes of any size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from normscope.core.statement import statement
from normscope.core.value import exact_sum, log_of, log_sum
from normscope.lipschitz.composition import Composition
from normscope.lipschitz.weights.factors import Sample
from normscope.lipschitz.weights.sensitivity import MovedRanges, Sensitivity
from normscope.lipschitz.weights.uses import Use, Weights
from normscope.operators.nonlinear import INF

#: Rounding of the logarithms themselves, added to every total.
LOG_ROUNDING = 1e-12


@dataclass(frozen=True)
class Outputs:
    """Constants ``||h, y||`` of every use on one domain, as logarithms."""

    small: tuple[float, ...]  #: for small changes, at the weights as they are
    #: for each weight, those of its uses for changes of any size, in the order of its uses; ``None`` where no such
    #: bound is known
    any_size: tuple[tuple[float, ...] | None, ...]


def output_constants(weights: Weights, composition: Composition) -> Outputs:
    """Return the constants of the network with respect to the result of every use of a weight."""
    known = [i for i, use in enumerate(weights.uses) if use.place is not None]
    places = [place for use in weights.uses if (place := use.place) is not None]
    sensitivity = Sensitivity(weights.program, places, composition)
    small = [INF] * len(weights.uses)
    for index, (certified, _, _) in zip(known, sensitivity.total(), strict=True):
        small[index] = _up(certified)
    where = {index: k for k, index in enumerate(known)}
    memo: dict[tuple[int, ...], tuple[float, ...]] = {}  # a weight and its bias share their place

    def any_size(leaf: int) -> tuple[float, ...] | None:
        """Return constants that hold for every change of one weight, or ``None``.

        What the weight meets must not move with it, and what it moves must be bounded wherever a range is used.
        """
        uses = weights.of(leaf)
        if any(i not in where or weights.uses[i].kind == "constant" for i in uses):
            return None
        spots = [where[i] for i in uses]
        if any(sensitivity.depends(sensitivity.places[a], [b]) for a in spots for b in spots if a != b):
            return None
        if not sensitivity.uses_ranges_of(spots):
            return tuple(small[i] for i in uses)
        key = tuple(sensitivity.places[k].id for k in spots)
        if key not in memo:
            moved = MovedRanges(composition, sensitivity, spots)
            again = Sensitivity(weights.program, [sensitivity.places[k] for k in spots], moved)
            memo[key] = tuple(_up(certified) for certified, _, _ in again.total())
        return memo[key]

    return Outputs(tuple(small), tuple(any_size(leaf) for leaf in range(len(weights.leaves))))


def _up(log: float) -> float:
    """Round a logarithm up by more than the composition can have lost."""
    return log if math.isinf(log) else log + LOG_ROUNDING * max(1.0, abs(log))


def input_factors(weights: Weights, sample: Sample | None, composition: Composition) -> list[float]:
    """Return the logarithm of ``||dW -> dy||`` for every use: measured at a sample, or bounded on a domain."""
    factors = [_input_factor(use, i, sample, composition) for i, use in enumerate(weights.uses)]
    for i, use in enumerate(weights.uses):
        if use.kind == "constant" and use.through is not None:  # dW -> dc -> dy
            factors[i] = _up(log_of(use.copies) + factors[use.through]) if use.copies else -INF
    return factors


def _input_factor(use: Use, index: int, sample: Sample | None, composition: Composition) -> float:
    if use.kind == "recurrent" and use.source is not None:
        norm = composition.range(use.source).norm
        return INF if norm == INF else log_of(norm * use.copies * (1 + 2.0**-50))
    if use.kind == "recurrent bias" and use.place is not None:
        return log_of(math.sqrt(use.place.numel / max(1, use.place.shape[-1])) * use.copies * (1 + 2.0**-50))
    met = None if sample is None else sample.met.get(index)
    return INF if met is None or math.isinf(met.norm) else log_of(met.norm * use.copies * (1 + 2.0**-50))


@statement("normscope", "Proposition W-3", holds="the activations as given; small changes, or one use of the weight")
def weight_constant(outputs: Sequence[float], factors: Sequence[float]) -> float:
    """Return the logarithm of ``sum_u ||h, y_u|| ||dW -> dy_u||`` over the uses of one weight.

    Args:
        outputs: logarithms of ``||h, y_u||``.
        factors: logarithms of ``||dW -> dy_u||``.

    >>> round(math.exp(weight_constant([math.log(2.0), 0.0], [math.log(3.0), math.log(4.0)])), 9)
    10.0
    """
    pairs = zip(outputs, factors, strict=True)
    return log_sum([-INF if -INF in pair else exact_sum(pair, INF) for pair in pairs], INF)


@statement("normscope", "Proposition W-6", holds="small changes, at the weights as they are")
def joint_constant(constants: Sequence[float]) -> float:
    """Return the logarithm of ``sqrt(sum_i L_i^2)``, the constant in all weights together.

    Args:
        constants: logarithms of the constants ``L_i`` in each weight.

    >>> round(math.exp(joint_constant([math.log(3.0), math.log(4.0)])), 9)
    5.0
    """
    return log_sum((2 * log for log in constants), INF) / 2
