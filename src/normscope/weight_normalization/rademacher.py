r"""Rademacher complexity and the generalization gap of weight-normalized networks: no width, the root of the depth."""

import math
from collections.abc import Sequence

from normscope.core.errors import InputError
from normscope.core.rounding import up
from normscope.core.statement import statement


@statement("normscope", "Proposition WN-11", holds="no bias, phi(0) = 0")
def rademacher_bound(
    depth: int, output_norm: float, data_norm: float, samples: int, layer_factors: Sequence[float] | None = None
) -> float:
    r"""Return :math:`\hat R \le \rho\, \|X\|_F \prod_l k_l \left(\sqrt{2 L \ln 2} + 1\right)/n`.

    In the paper's form every layer factor :math:`k_l` is 1, because all rows have norm :math:`1/\sqrt m`. In general it
    is :math:`a\sqrt{m_l} \max_i \|w_i\|`, with ``w_i`` the effective weight vectors and ``a`` the slope of the
    activation, which need not be smooth but must be zero at zero. There must be no bias.

    Args:
        depth: ``L``, the number of hidden layers.
        output_norm: ``rho``, fixed before the data are seen (see :func:`grid_radius`).
        data_norm: ``||X||_F``, the root of the sum of the squared norms of the inputs.
        samples: ``n``.
        layer_factors: ``k_l``; ones if not given.

    >>> round(rademacher_bound(10, 1.0, 100.0, 10_000), 6)
    0.047233
    """
    if samples < 1 or depth < 0:
        raise InputError(f"Expected at least one sample and a depth of at least 0, got {samples} and {depth}.")
    factor = math.prod(layer_factors) if layer_factors is not None else 1.0
    return up(output_norm * factor * data_norm * (math.sqrt(2.0 * depth * math.log(2.0)) + 1.0) / samples, 64.0 + depth)


@statement("normscope", "Proposition WN-12", holds="the square loss, bounded targets and predictions")
def generalization_gap_bound(
    complexity: float, prediction_norm: float, samples: int, delta: float, *, target_norm: float = 1.0, outputs: int = 1
) -> float:
    r"""Return an upper bound of expected minus mean square loss, with probability at least ``1 - delta``.

    :math:`4 B \hat R + 3 B^2 \sqrt{\ln(2/\delta)/(2n)}`, :math:`B` = prediction plus target norm: the loss is at most
    :math:`B^2` and :math:`2B`-Lipschitz in the prediction. With several outputs the contraction costs a factor
    :math:`\sqrt 2`, and the complexity is the sum over the outputs.

    Args:
        complexity: the empirical Rademacher complexity; over several outputs, the sum of theirs.
        prediction_norm: an upper bound of the norm of every prediction, on the whole population.
        samples: ``n``.
        delta: the probability of failing.
        target_norm: an upper bound of the norm of every target.
        outputs: how many outputs the network has.

    >>> gap = generalization_gap_bound(rademacher_bound(10, 1.0, 50_000**0.5, 50_000), 1.0, 50_000, 0.05)
    >>> round(gap, 2)
    0.24
    """
    if not 0 < delta < 1 or samples < 1:
        raise InputError(f"Expected delta between 0 and 1 and at least one sample, got {delta} and {samples}.")
    size = prediction_norm + target_norm
    spread = 1.0 if outputs == 1 else math.sqrt(2.0)
    slow = 3.0 * size**2 * math.sqrt(math.log(2.0 / delta) / (2.0 * samples))
    return up(4.0 * size * spread * complexity + slow, 64.0)


@statement("normscope", "Corollary WN-13", holds="a union bound over radii 2^j")
def grid_radius(norm: float, delta: float) -> tuple[float, float]:
    r"""Return the least radius :math:`2^j \ge` ``norm`` and its share :math:`\delta\, 2^{-|j|}/3` of the probability.

    A bound for one fixed radius does not hold for a radius read off the trained network; a bound for all radii
    :math:`2^j` at once does, and the shares of ``delta`` sum to ``delta``.

    Args:
        norm: of the trained output layer.
        delta: the probability of failing for all radii together.

    >>> grid_radius(3.0, 0.75)
    (4.0, 0.0625)
    """
    if not norm > 0 or not math.isfinite(norm):
        raise InputError(f"Expected a positive norm of the output layer, got {norm}.")
    j = math.frexp(norm)[1]
    if math.ldexp(1.0, j - 1) >= norm:
        j -= 1
    return math.ldexp(1.0, j), delta * 2.0 ** -abs(j) / 3.0
