"""The spectral margin bound of Bartlett, Foster and Telgarsky, with every constant."""

from __future__ import annotations

import math
from collections.abc import Sequence

from normscope.core.errors import InputError
from normscope.core.numbers import check_fraction
from normscope.core.statement import statement
from normscope.core.value import Kind, Value, log_sum
from normscope.generalization.chain_layer import ChainLayer
from normscope.generalization.rademacher import deviation
from normscope.generalization.scale_grid import rounded_up

_BASE = math.sqrt(2)


@statement("bartlett2017", "spectral complexity", holds="reference matrices zero; a chain of 1-Lipschitz activations")
def spectral_complexity(layers: Sequence[ChainLayer]) -> float:
    r"""Return the logarithm of ``R_A = prod ||A_i||_2 (sum_i (||A_i^T||_{2,1}/||A_i||_2)^{2/3})^{3/2}``.

    >>> import torch
    >>> round(spectral_complexity([ChainLayer.of(torch.eye(2))] * 2), 6) == round(1.5 * math.log(2 * 4 ** (1 / 3)), 6)
    True
    """
    product = math.fsum(x.spectral for x in layers)
    return product + 1.5 * log_sum([2 / 3 * (x.two_one - x.spectral) for x in layers], math.inf)


@statement("bartlett2017", "Theorem 1.1", holds="constants and the union over trained norms by Proposition GEN-11")
def bartlett_bound(layers: Sequence[ChainLayer], inputs: float, margin: float, samples: int, delta: float) -> Value:
    r"""Return a bound on ``Pr[wrong] - (share of training samples with margin below gamma)``.

    .. math:: \frac{8}{n^{3/2}} + \frac{72 \ln n \sqrt{\ln(2 W^2)}\, \|X\|_F R_A}{\gamma n}
        + 3 \sqrt{\frac{\ln(2/(w \delta))}{2 n}}

    with ``prod ||A_i||/gamma`` and every ratio ``||A_i^T||_{2,1}/||A_i||`` rounded up to a power of ``sqrt(2)``.

    Args:
        layers: of the chain, the last one giving the scores.
        inputs: ``||X||_F``, the constant of the bias included.
        margin: ``gamma``.
        samples: ``n``.
        delta: probability with which it may fail.

    Raises:
        InputError: if a number is out of its range.
    """
    check_fraction(delta, "delta, a probability,")
    if samples < 2 or not margin > 0 or not layers:
        raise InputError(f"Expected two samples, a layer and a margin above zero, got {samples} and {margin}.")
    scale = rounded_up(math.fsum(x.spectral for x in layers) - math.log(margin), _BASE)
    ratios = [rounded_up(x.two_one - x.spectral, _BASE) for x in layers]
    complexity = scale.log + 1.5 * log_sum([2 / 3 * r.log for r in ratios], math.inf)
    width = max(max(x.width, x.fan_in) for x in layers)
    factor = 72 * math.log(samples) * math.sqrt(math.log(2.0 * width**2)) * inputs / samples
    price = scale.price + math.fsum(r.price for r in ratios) - math.log(delta)
    rest = 8 / samples**1.5 + deviation(samples, price)
    log = log_sum((math.log(factor) + complexity, math.log(rest)), math.inf)
    assumed = ("a chain with ReLU-like activations", "the margin loss at gamma on the training data is added")
    return Value(log, Kind.PROBABILISTIC, statement="bartlett2017 Theorem 1.1", assumptions=assumed, delta=delta)
