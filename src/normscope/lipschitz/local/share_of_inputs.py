"""From values at sampled points to a confidence statement about a share of all inputs."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from normscope.core.errors import InputError
from normscope.core.statement import statement


def check(share: float, confidence: float) -> None:
    """Check that a share and a confidence are between zero and one.

    Raises:
        InputError: if one of them is not.
    """
    for name, value in (("share", share), ("confidence", confidence)):
        if not 0 < value < 1:
            raise InputError(f"Expected a {name} between 0 and 1, got {value}.")


@statement(
    "normscope",
    "LOCAL-4",
    holds="points drawn independently from the distribution of the inputs, not used for training",
)
def covering_rank(count: int, share: float, confidence: float) -> int | None:
    r"""Return the k for which the k-th smallest of n values covers a share of all with a confidence, or ``None``.

    The smallest k with :math:`P[\mathrm{Bin}(n, p) \le k - 1] \ge 1 - \alpha`, the Clopper-Pearson bound read the
    other way: if fewer than a share p of all inputs had a value of at most :math:`L_{(k)}`, at least k of n would lie
    below it too rarely.

    Args:
        count: n, the number of points.
        share: p.
        confidence: :math:`1 - \alpha`.

    >>> covering_rank(90, 0.95, 0.99), covering_rank(89, 0.95, 0.99), covering_rank(300, 0.95, 0.99)
    (90, None, 294)
    """
    check(share, confidence)
    probabilities = special.bdtr(np.arange(count), count, share)
    k = int(np.searchsorted(probabilities, confidence))
    return k + 1 if k < count else None


@statement(
    "normscope",
    "LOCAL-4",
    holds="points drawn independently from the distribution of the inputs, not used for training",
)
def covered_share(count: int, rank: int, confidence: float) -> float:
    """Return the largest share that the ``rank``-th smallest of ``count`` values covers with a confidence.

    >>> round(covered_share(90, 90, 0.99), 4), round(covered_share(120, 108, 0.99), 3)
    (0.9501, 0.818)
    """
    check(0.5, confidence)
    if rank < 1:
        return 0.0
    return float(special.betaincinv(rank, count - rank + 1, 1 - confidence))


def covering_value(values: Sequence[float], share: float, confidence: float) -> float | None:
    """Return a number that at least a share of all inputs stay below, with a confidence; infinite values count.

    >>> covering_value([1.0] * 200 + [math.inf], 0.95, 0.99), covering_value([1.0] * 10, 0.95, 0.99)
    (1.0, None)
    """
    rank = covering_rank(len(values), share, confidence)
    return None if rank is None else sorted(values)[rank - 1]


def points_needed(share: float, confidence: float) -> int:
    """Return the least number of points from which anything can be said about a share with a confidence.

    >>> points_needed(0.95, 0.99)
    90
    """
    check(share, confidence)
    least = max(1, math.ceil(math.log(1 - confidence) / math.log(share) - 1e-12))
    return least if covering_rank(least, share, confidence) else least + 1
