"""Margin bounds of chains of layers from the norms of their matrices, with every constant.

A bias is one more column of its matrix. Products of Frobenius and of row norms come from Rademacher complexity,
peeling off one layer after another; spectral norms from covering numbers (Bartlett et al.) and PAC-Bayes (Neyshabur et
al.).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.numbers import check_fraction
from normscope.core.rounding import matrix_norm_sandwich
from normscope.core.statement import statement
from normscope.core.value import Kind, Value, log_sum
from normscope.generalization.union_bound import rounded_up


@dataclass(frozen=True)
class ChainLayer:
    """Natural logarithms of the norms of a layer's matrix ``A``."""

    spectral: float  #: of an upper bound of ``||A||_2``
    frobenius: float  #: of ``||A||_F``
    two_one: float  #: of ``||A^T||_{2,1}``, the sum of the Euclidean norms of the rows
    row: float  #: of the largest Euclidean norm of a row
    width: int  #: rows
    fan_in: int  #: columns
    name: str = ""  #: of the layer

    @classmethod
    def of(cls, matrix: Tensor, name: str = "") -> ChainLayer:
        """Return the norms of a dense matrix.

        >>> layer = ChainLayer.of(torch.eye(4))
        >>> round(layer.frobenius, 6), round(layer.two_one, 6), layer.width
        (0.693147, 1.386294, 4)
        """
        rows = torch.linalg.vector_norm(matrix.double(), dim=1)
        logs = torch.stack([torch.linalg.vector_norm(rows), rows.sum(), rows.max()]).log() + 1e-12
        frobenius, two_one, row = logs.tolist()
        spectral = math.log(matrix_norm_sandwich(matrix)[1])
        width, fan_in = matrix.shape
        return cls(spectral, frobenius, two_one, row, width, fan_in, name)


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
        delta: failure probability.

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
    """Return :func:`peeled_margin_bound` with Frobenius norms: ``M = prod_{l<d} ||W_l||_F sum_c ||w_c||``."""
    log = math.fsum([*(x.frobenius for x in layers[:-1]), layers[-1].two_one])
    return peeled_margin_bound(log, len(layers), layers[-1].width, inputs, margin, samples, delta)


@statement("cisneros2025", "Rademacher bound", holds="derived here; every layer's rows, not all of it, are bounded")
def row_norm_bound(layers: Sequence[ChainLayer], inputs: float, margin: float, samples: int, delta: float) -> Value:
    """Return :func:`peeled_margin_bound` with ``sqrt(width) max_r ||w_r||`` for each hidden layer."""
    hidden = [x.row + 0.5 * math.log(x.width) for x in layers[:-1]]
    log = math.fsum([*hidden, layers[-1].two_one])
    return peeled_margin_bound(log, len(layers), layers[-1].width, inputs, margin, samples, delta)


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
        delta: failure probability.
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
    return Value(log, Kind.PROBABILISTIC, statement="bartlett2017 Theorem 1.1", assumptions=_ASSUMED, delta=delta)


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
        delta: failure probability.
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
