"""The published bound for trained networks "without any modification": false, and kept to be refuted."""

from __future__ import annotations

import math
from collections.abc import Sequence

from normscope.core.statement import statement
from normscope.core.value import Kind, Value
from normscope.generalization.cell_terms import g_paper


@statement("thanphan2025", "Theorem 3.2", holds="printed; false for a model that was chosen with the samples")
def than_phan_bound(counts: Sequence[int], delta: float = 0.01, alpha: float = 100.0, miss: float = 0.04) -> Value:
    r"""Return ``C sqrt(u alpha ln gamma) + g_2(delta/2)`` with ``C = 1`` and ``gamma = miss^(-1/alpha)``.

    ``u = gamma/(2 n) + (gamma^2/2) sum_i (n_i/n)^2 + gamma^2 sqrt((2/n) ln(2 K/delta))`` and ``g_2`` is the term
    of Theorem 20. It claims to bound the gap of a trained model with probability ``1 -
    miss - delta``, and depends on the model not at all; a model that is right exactly on its samples has gap one.

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
