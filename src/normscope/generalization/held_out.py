"""Bounds from held-out samples: the exact Clopper-Pearson limit of the error, and distances for Theorem 20."""

import math

import torch
from scipy.stats import beta
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.numbers import check_fraction
from normscope.core.rounding import up
from normscope.core.statement import statement
from normscope.core.value import Kind, Value

#: Relative error of the inverse of the incomplete beta function, and of sums, generously, in unit roundoffs.
_BETA, _SUMS = 1e5, 1e4


@statement("clopper1934", "upper limit", holds="samples drawn after the classifier was chosen")
def clopper_pearson(errors: int, samples: int, delta: float) -> Value:
    r"""Return the largest error probability ``p`` with ``P(Bin(n, p) <= k) >= delta``.

    It is the quantile ``1 - delta`` of a Beta distribution with parameters ``k + 1`` and ``n - k``, and exceeds the
    true error with probability at least ``1 - delta``.

    Args:
        errors: ``k``, how many of the samples are wrong.
        samples: ``n``, drawn independently of the classifier.
        delta: failure probability.

    >>> round(clopper_pearson(600, 10_000, 0.05).value, 4)
    0.0641
    """
    check_fraction(delta, "delta, a probability,")
    if samples < 1 or not 0 <= errors <= samples:
        raise InputError(f"Expected at least one sample and 0 <= errors <= samples, got {errors} of {samples}.")
    limit = 1.0 if errors == samples else min(1.0, up(float(beta.isf(delta, errors + 1, samples - errors)), _BETA))
    assumed = ("the samples are independent of how the classifier was chosen",)
    return Value.of(limit, Kind.PROBABILISTIC, statement="clopper1934 upper limit", assumptions=assumed, delta=delta)


@statement(
    "normscope", "Proposition GEN-21", holds="held-out inputs independent of the data, a random part of the data"
)
def held_out_local_term(
    variation: Tensor, cell: Tensor, other: Tensor, counts: Tensor, largest: Tensor, delta: float
) -> Value:
    r"""Return a bound on ``sum_i (m_i/m) lambda_i L_i``, the local term with average distances, from held-out inputs.

    .. math:: \sum_i \frac{m_i}{m} \bar v_i
        + \sqrt{\frac12 \ln\frac2\delta \sum_i \Big(\frac{m_i r_i}{m}\Big)^2 \frac1{a_i}}
        + \sqrt{\frac12 \ln\frac2\delta \sum_i \Big(\frac{m_i r_i}{m}\Big)^2 \frac1{b_i}}

    ``v(s, x) <= L_i |x - s|`` bounds how much the loss differs between a sample ``s`` and a held-out input ``x`` of one
    cell ``i``, and ``r_i`` is its largest value there. The mean of ``v`` is over the ``a_i`` samples of the cell that
    are used and its ``b_i`` held-out inputs; where there are none, ``r_i`` is taken. If all samples are used,
    the first root is left out and the second has ``1/delta``. Never more than ``sum_i (m_i/m) r_i``.

    Args:
        variation: ``v``, one row for each sample that is used, one column for each held-out input.
        cell: of each of these samples, drawn at random from all.
        other: of each held-out input.
        counts: ``m_i``, samples in each cell.
        largest: ``r_i`` of each cell.
        delta: failure probability.

    Raises:
        InputError: if the shapes do not fit, or a number is out of its range.

    >>> zero = torch.zeros(4, dtype=torch.long)
    >>> v = torch.full((4, 4), 0.1)
    >>> term = held_out_local_term(v, zero, zero, torch.tensor([4]), torch.tensor([0.2]), 0.5)
    >>> round(term.value, 4)  # 0.1 + 0.2 sqrt(ln 2/8)
    0.1589
    """
    check_fraction(delta, "delta, a probability,")
    m, cells = int(counts.sum()), len(counts)
    if variation.shape != (len(cell), len(other)) or len(largest) != cells or not 0 < len(cell) <= m:
        raise InputError(f"Expected a row for each sample and a column for each input, got {tuple(variation.shape)}.")
    v, most = variation.double(), largest.double()
    same = cell[:, None] == other[None, :]
    if bool((v * same > most[cell][:, None] * (1 + 1e-9)).any()) or not bool((most >= 0).all()):
        raise InputError("Expected variations between zero and the largest of their cell.")
    looked, held = (torch.bincount(c, minlength=cells).double() for c in (cell, other))
    sums = torch.zeros(cells, dtype=torch.float64).index_add(0, cell, (v * same).sum(1))
    known = (looked > 0) & (held > 0)
    mean = torch.where(known, sums / (looked * held).clamp_min(1), most)
    share = counts.double() / m
    part = delta if len(cell) == m else delta / 2
    weight = torch.where(known, (share * most).square(), 0.0)
    term = float((share * mean).sum()) + _root(weight / held.clamp_min(1), part)
    if len(cell) < m:
        term += _root(weight / looked.clamp_min(1), part)
    term = min(term, float((share * most).sum()))  # the value without any inputs
    assumed = ("held-out inputs not used before",)
    return Value.of(
        up(term, _SUMS), Kind.PROBABILISTIC, statement="normscope Proposition GEN-21", assumptions=assumed, delta=delta
    )


def _root(squares: Tensor, delta: float) -> float:
    """Return the deviation that an average exceeds with probability at most delta, by Hoeffding's inequality."""
    return math.sqrt(0.5 * math.log(1 / delta) * float(squares.sum()))
