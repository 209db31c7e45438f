"""The spectral PAC-Bayes margin bound of Neyshabur, Bhojanapalli and Srebro, with every constant."""

from __future__ import annotations

import math
from collections.abc import Sequence

from normscope.core.errors import InputError
from normscope.core.numbers import check_fraction
from normscope.core.statement import statement
from normscope.core.value import Kind, Value, log_sum
from normscope.generalization.chain_layer import ChainLayer

#: ``42^2 e^2/2``, from the noise that keeps scores within a quarter of the margin.
_COEFFICIENT = 42**2 * math.e**2 / 2


@statement("neyshabur2018", "Theorem 1", holds="a ReLU chain, ||x|| <= B known before the data; any gamma")
def neyshabur_bound(layers: Sequence[ChainLayer], radius: float, margin: float, samples: int, delta: float) -> Value:
    r"""Return a bound on ``Pr[wrong] - (share of training samples with margin below gamma)``.

    .. math:: 4 \sqrt{\frac{KL + \ln(6 d m^{1 + 1/(2 d)}/\delta)}{m - 1}}, \quad
        KL = \frac{42^2 e^2}{2} \frac{d^2 B^2 h \ln(4 d h)}{\gamma^2}
        \prod_i \|W_i\|^2 \sum_i \frac{\|W_i\|_F^2}{\|W_i\|^2}

    Args:
        layers: of the chain, the last one giving the scores.
        radius: ``B``, the largest norm of an input, the constant of the bias included.
        margin: ``gamma``; by homogeneity the theorem is used at margin one for the scores over gamma, so any may be
            taken after the fact.
        samples: ``m``.
        delta: probability with which it may fail.

    Raises:
        InputError: if a number is out of its range.
    """
    check_fraction(delta, "delta, a probability,")
    if samples < 2 or not margin > 0 or not radius > 0 or not layers:
        raise InputError(f"Expected two samples, a layer, and a margin and radius above zero, got {samples}, {margin}.")
    depth, width = len(layers), max(max(x.width, x.fan_in) for x in layers)
    product = 2 * math.fsum(x.spectral for x in layers)
    spread = log_sum([2 * (x.frobenius - x.spectral) for x in layers], math.inf)
    fixed = _COEFFICIENT * depth**2 * radius**2 * width * math.log(4 * depth * width) / margin**2
    price = math.log(6 * depth / delta) + (1 + 1 / (2 * depth)) * math.log(samples)
    divergence = log_sum((math.log(fixed) + product + spread, math.log(price)), math.inf)
    log = math.log(4) + 0.5 * (divergence - math.log(samples - 1)) + 1e-12
    assumed = ("a ReLU chain", "norms of inputs bounded before the data", "the margin loss at gamma is added")
    return Value(log, Kind.PROBABILISTIC, statement="neyshabur2018 Theorem 1", assumptions=assumed, delta=delta)
