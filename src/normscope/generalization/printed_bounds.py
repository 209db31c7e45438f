"""Bounds as printed in papers, some without constants or false: for comparison only, none is a certificate."""

import math
from collections.abc import Iterable, Sequence

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.core.value import Kind, Value, log_sum, product
from normscope.generalization.theorem_20 import g_paper


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
        delta: failure probability.

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
        delta: failure probability.

    >>> round(lyu_bound(11_000_000, 1.0, 0.0, 50_000, 0.05).value, 1)
    7.4
    """
    budget = parameters / (2 * noise**2) + math.log(2 * math.sqrt(samples) / delta)
    size = sharpness * noise**2 / 2 + math.sqrt(budget / (2 * samples))
    assumed = ("of the network with noise", "the third-order remainder is left out")
    return Value.of(size, Kind.PRINTED, statement="lyu2022 as printed in than2025", assumptions=assumed)


@statement("thanphan2025", "Theorem 3.2", holds="printed; false for a model that was chosen with the samples")
def than_phan_bound(counts: Sequence[int], delta: float = 0.01, alpha: float = 100.0, miss: float = 0.04) -> Value:
    r"""Return ``C sqrt(u alpha ln gamma) + g_2(delta/2)`` with ``C = 1`` and ``gamma = miss^(-1/alpha)``.

    ``u = gamma/(2 n) + (gamma^2/2) sum_i (n_i/n)^2 + gamma^2 sqrt((2/n) ln(2 K/delta))`` and ``g_2`` is the term
    of Theorem 20. It claims to bound the gap of a trained model with probability ``1 -
    miss - delta``, and does not depend on the model at all; a model that is right only on its samples has gap one.

    Args:
        counts: samples in each of the ``K`` cells.
        delta: of the statistical term.
        alpha: as in the paper.
        miss: ``gamma^-alpha``.

    >>> round(than_phan_bound([2000] * 25).value, 4)
    0.5364
    """
    n, cells = sum(counts), len(counts)
    occupied = sum(c > 0 for c in counts)
    gamma = miss ** (-1 / alpha)
    squares = math.fsum((c / n) ** 2 for c in counts)
    u = gamma / (2 * n) + gamma**2 / 2 * squares + gamma**2 * math.sqrt(2 / n * math.log(2 * cells / delta))
    g = g_paper(1.0, occupied, cells, n, delta / 2).value
    size = math.sqrt(u * alpha * math.log(gamma)) + g
    return Value.of(size, Kind.PRINTED, statement="thanphan2025 Theorem 3.2", delta=delta + miss)


@statement(
    "gonon2024", "Theorem 3.1", holds="printed; constants as in the authors' code, since the text was not available"
)
def path_norm_bound(
    log_path_norm: float,
    *,
    depth: int,
    kernel: int,
    inputs: int,
    outputs: int,
    largest: float,
    samples: int,
    poolings: int = 0,
    lipschitz: float = 1.0,
) -> Value:
    r"""Return ``(4 B/sqrt(n)) sqrt(D ln((3 + 2 P) K) + ln(((3 + 2 P)/(1 + P)) (d_in + 1) d_out))`` times the path norm.

    Args:
        log_path_norm: natural logarithm of the L1 path norm, normalizers folded.
        depth: ``D``.
        kernel: ``K``, most entries of a kernel in one channel.
        inputs: ``d_in``.
        outputs: ``d_out``.
        largest: ``B``, largest entry of an input.
        samples: ``n``.
        poolings: ``P``, kinds of max-pooling.
        lipschitz: of the loss in the scores.

    >>> kinds = dict(depth=18, kernel=9, inputs=3 * 224**2, outputs=1000, poolings=1)
    >>> round(path_norm_bound(0.0, **kinds, largest=2.64, samples=1_281_167).value, 3)
    0.088
    """
    if min(depth, kernel, inputs, outputs, samples) < 1 or largest < 0:
        raise InputError(f"Expected positive sizes, got {(depth, kernel, inputs, outputs, samples)}.")
    choices = 3 + 2 * poolings
    inside = depth * math.log(choices * kernel) + math.log(choices / (1 + poolings) * (inputs + 1) * outputs)
    factor = 4 * largest * lipschitz * math.sqrt(inside / samples)
    log = log_path_norm + math.log(factor) if factor > 0 else -math.inf
    assumed = ("constants from the authors' code", "no union bound over the path norm")
    return Value(log, Kind.PRINTED, statement="gonon2024 Theorem 3.1", assumptions=assumed)


@statement(
    "than2025slides", "Weight norm", holds="printed as an order; margins, constants and factors of depth left out"
)
def weight_norm_rates(norms: Iterable[Value], samples: int) -> Value:
    """Return ``prod ||W_k||/sqrt(m)``, with Frobenius norms (Golowich et al.) or spectral ones (Bartlett et al.).

    Args:
        norms: one for each layer.
        samples: ``m``.

    >>> round(weight_norm_rates([Value.of(3.0, Kind.CERTIFIED)] * 2, 9).value, 9)
    3.0
    """
    if samples < 1:
        raise InputError(f"Expected at least one sample, got {samples}.")
    log = product(norms).log - 0.5 * math.log(samples)
    assumed = ("an order: margins, constants and further factors are left out",)
    return Value(log, Kind.PRINTED, statement="than2025slides Weight norm", assumptions=assumed)
