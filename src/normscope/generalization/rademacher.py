"""Margin bounds from Rademacher complexity, one layer peeled off after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from normscope.core.errors import InputError
from normscope.core.numbers import check_fraction
from normscope.core.statement import statement
from normscope.core.value import Kind, Value, log_sum
from normscope.generalization.chain_layer import ChainLayer
from normscope.generalization.scale_grid import rounded_up

_ASSUMED = ("a chain with ReLU-like activations", "the margin loss at gamma on the training data is added")


def deviation(samples: int, log_inverse_delta: float) -> float:
    """Return ``3 sqrt(ln(2/delta)/(2 m))``, the price of replacing expectations by the sample, twice.

    >>> round(deviation(50_000, math.log(20)), 4)
    0.0182
    """
    return 3 * math.sqrt((math.log(2) + log_inverse_delta) / (2 * samples))


@statement("normscope", "Proposition GEN-9", holds="positively homogeneous 1-Lipschitz activations; any gamma")
def peeled_margin_bound(
    log_scale: float, depth: int, classes: int, inputs: float, margin: float, samples: int, delta: float
) -> Value:
    r"""Return a bound on ``Pr[wrong] - (share of training samples with margin below gamma)``.

    .. math:: \frac{4 q}{m} \Big(\sqrt{2 (d \ln 2 + \ln k)} + 1\Big) \|X\|_F + 3 \sqrt{\frac{\ln(2/(w \delta))}{2 m}}

    with ``q = M/gamma`` rounded up to a power of two and ``w`` the weight of that power.

    Args:
        log_scale: natural logarithm of ``M``, the product of the layers' norms and the sum of those of the last rows.
        depth: ``d``, layers.
        classes: ``k``.
        inputs: ``||X||_F`` of the training inputs, the constant of the bias included.
        margin: ``gamma``.
        samples: ``m``.
        delta: probability with which it may fail.

    Raises:
        InputError: if a number is out of its range.

    >>> round(peeled_margin_bound(0.0, 2, 10, 100.0, 1.0, 10_000, 0.05).value, 3)
    0.194
    """
    check_fraction(delta, "delta, a probability,")
    if samples < 1 or not margin > 0 or depth < 1 or classes < 1:
        raise InputError(
            f"Expected samples, layers, classes and a margin above zero, got {samples}, {depth}, {margin}."
        )
    scale = rounded_up(log_scale - math.log(margin))
    factor = math.sqrt(2 * (depth * math.log(2) + math.log(classes))) + 1
    complexity = math.log(4 * factor * inputs / samples) + scale.log
    rest = deviation(samples, scale.price - math.log(delta))
    log = log_sum((complexity, math.log(rest)), math.inf)
    return Value(log, Kind.PROBABILISTIC, statement="normscope Proposition GEN-9", assumptions=_ASSUMED, delta=delta)


@statement("golowich2018", "Theorem 1", holds="with k outputs and trained norms by Proposition GEN-9")
def golowich_bound(layers: Sequence[ChainLayer], inputs: float, margin: float, samples: int, delta: float) -> Value:
    """Return the margin bound with Frobenius norms: ``M = prod_{l<d} ||W_l||_F sum_c ||w_c||``.

    Args:
        layers: of the chain, the last one giving the scores.
        inputs: ``||X||_F``, the constant of the bias included.
        margin: ``gamma``.
        samples: ``m``.
        delta: probability with which it may fail.
    """
    log = math.fsum([*(x.frobenius for x in layers[:-1]), layers[-1].two_one])
    return peeled_margin_bound(log, len(layers), layers[-1].width, inputs, margin, samples, delta)


@statement("cisneros2025", "Rademacher bound", holds="derived here; every layer's rows, not all of it, are bounded")
def row_norm_bound(layers: Sequence[ChainLayer], inputs: float, margin: float, samples: int, delta: float) -> Value:
    """Return the margin bound with ``sqrt(width) max_r ||w_r||`` for each hidden layer.

    Args:
        layers: of the chain, the last one giving the scores.
        inputs: ``||X||_F``, the constant of the bias included.
        margin: ``gamma``.
        samples: ``m``.
        delta: probability with which it may fail.
    """
    hidden = [x.row + 0.5 * math.log(x.width) for x in layers[:-1]]
    log = math.fsum([*hidden, layers[-1].two_one])
    return peeled_margin_bound(log, len(layers), layers[-1].width, inputs, margin, samples, delta)
