"""Theorem 20 of than2025 and its corollaries, printed and corrected: local Lipschitz constants bound the gap."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.numbers import check_fraction
from normscope.core.rounding import up
from normscope.core.statement import statement
from normscope.core.value import Kind, Value, product, total
from normscope.generalization.partition import Partition

_FIXED = "cells chosen before the data"
#: Unit roundoffs allowed for each term, generously.
_UNITS = 64.0


@statement("than2025", "Theorem 20", holds="the term g as printed; a bound for cells chosen before the data, not tight")
def g_paper(largest: float, occupied: int, cells: int, samples: int, delta: float) -> Value:
    """Return ``C [(sqrt(2) + 1) sqrt(t) + 2 t]`` with ``t = T ln(2 N/delta)/m``.

    Args:
        largest: ``C``, the largest loss.
        occupied: ``T``, cells with a sample.
        cells: ``N``, all cells.
        samples: ``m``.
        delta: failure probability.

    >>> round(g_paper(1.0, 5, 10, 1000, 0.05).value, 6)
    0.477771
    """
    _check(largest, occupied, cells, samples, delta)
    t = occupied * math.log(2 * cells / delta) / samples
    return _value(largest * ((math.sqrt(2) + 1) * math.sqrt(t) + 2 * t), delta, "than2025 Theorem 20")


@statement("normscope", "Proposition GEN-2", holds="cells chosen before the data, 0 <= loss <= C")
def g_tight(largest: float, occupied: int, cells: int, samples: int, delta: float) -> Value:
    """Return ``C [sqrt(2 t) + 2 t/3]`` with ``t = T ln(N/delta)/m``, about half of what is printed.

    >>> round(g_tight(1.0, 5, 10, 1000, 0.05).value, 6)
    0.247842
    """
    _check(largest, occupied, cells, samples, delta)
    t = occupied * math.log(cells / delta) / samples
    return _value(largest * (math.sqrt(2 * t) + 2 * t / 3), delta, "normscope Proposition GEN-2")


@statement("normscope", "Proposition GEN-3", holds="cells chosen before the data, 0 <= loss <= C")
def g_total_variation(largest: float, cells: int, samples: int, delta: float) -> Value:
    """Return ``C [sqrt(N/m)/2 + sqrt(ln(1/delta)/(2 m))]``: free of the data, best for few cells.

    >>> round(g_total_variation(1.0, 10, 1000, 0.05).value, 6)
    0.088702
    """
    _check(largest, 1, cells, samples, delta)
    size = largest * (0.5 * math.sqrt(cells / samples) + math.sqrt(math.log(1 / delta) / (2 * samples)))
    return _value(size, delta, "normscope Proposition GEN-3")


@statement("normscope", "Proposition GEN-12", holds="cells chosen before the data, 0 <= loss <= C")
def g_multinomial(largest: float, cells: int, samples: int, delta: float) -> Value:
    """Return ``C sqrt((N ln 2 + ln(1/delta))/(2 m))``, by a union over all sets of cells.

    >>> round(g_multinomial(1.0, 100, 50_000, 0.05).value, 4)
    0.0269
    """
    _check(largest, 1, cells, samples, delta)
    size = largest * math.sqrt((cells * math.log(2) + math.log(1 / delta)) / (2 * samples))
    return _value(size, delta, "normscope Proposition GEN-12")


def _check(largest: float, occupied: int, cells: int, samples: int, delta: float) -> None:
    if not (math.isfinite(largest) and largest >= 0):
        raise InputError(
            f"Expected a bounded loss, got a largest loss of {largest}. Clip the loss: cross-entropy is unbounded."
        )
    if not 1 <= occupied <= min(cells, samples):
        raise InputError(
            f"Expected occupied cells between 1 and the number of cells ({cells}) and samples ("
            f"{samples}), got {occupied}."
        )
    check_fraction(delta, "delta, a probability,")


def _value(x: float, delta: float, statement: str) -> Value:
    return Value.of(up(x, _UNITS), Kind.PROBABILISTIC, statement=statement, assumptions=(_FIXED,), delta=delta)


@dataclass(frozen=True)
class PartitionBound:
    """A bound on ``|F(P, h) - F(D, h)|``, for all models at once."""

    gap: Value  #: the bound: the local term plus the smaller of two terms, each with half of delta
    local: Value  #: ``sum_i (m_i/m) L_i D_i``
    tight: Value  #: ``g`` of occupied cells
    total_variation: Value  #: ``g`` of all cells
    printed: Value  #: the bound with the printed ``g`` and diameters
    largest: float  #: ``C``
    occupied: int  #: cells with a sample
    cells: int  #: all cells, counted for each label
    samples: int  #: ``m``

    @property
    def vacuous(self) -> bool:
        """Return whether the bound is no better than ``C``, the range of the loss."""
        return self.gap.value >= self.largest


@statement(
    "normscope", "Proposition GEN-4", holds="cells chosen before the data, 0 <= loss <= C, one label in each cell"
)
def partition_bound(
    partition: Partition,
    inputs: Tensor,
    constants: Sequence[float] | float,
    *,
    largest: float,
    delta: float,
    labels: Tensor | None = None,
    classes: int = 1,
) -> PartitionBound:
    """Return the corrected bound ``|F(P, h) - F(D, h)| <= sum_i (m_i/m) L_i D_i + g``.

    It is true with probability ``1 - delta``, for all models at once. Cells are convex and hold one label each;
    ``L_i`` is the constant of the loss in the input on the cell and ``D_i`` its diameter, which can be known where the
    average distance ``lambda_i`` of the theorem cannot. ``g`` is the smaller of :func:`g_tight` and
    :func:`g_total_variation`, each with ``delta/2``.

    Args:
        partition: of the inputs, chosen before the data.
        inputs: the data, one row each.
        constants: ``L_i`` for each cell of inputs and labels (label fastest), or one for all.
        largest: ``C``, finite.
        delta: failure probability.
        labels: of the inputs, from zero; none if labels are a function of the cell.
        classes: how many labels there are.

    Raises:
        InputError: if the partition depends on the data, ``C`` is not finite, or a number is out of its range.

    >>> from normscope.generalization.partition import grid
    >>> x = torch.linspace(0, 1, 1000)[:, None]
    >>> bound = partition_bound(grid([0.0], [1.0], [10]), x, 1.0, largest=1.0, delta=0.05)
    >>> round(bound.local.value, 6), bound.vacuous
    (0.1, False)
    """
    counts = partition.counts(inputs, labels, classes)
    cells, samples = partition.cells * classes, len(inputs)
    occupied = int((counts > 0).sum())
    local = _local(counts, _per_cell(constants, cells), partition.diameters, classes)
    tight = g_tight(largest, occupied, cells, samples, delta / 2)
    variation = g_total_variation(largest, cells, samples, delta / 2)
    least = min(tight, variation, key=lambda v: v.log)
    gap = total((local, least))
    printed = theorem_20_printed(local, g_paper(largest, occupied, cells, samples, delta))
    whole = Value(
        gap.log,
        Kind.PROBABILISTIC,
        "all models, this data",
        statement="normscope Proposition GEN-4",
        assumptions=(*gap.assumptions, "one label in each cell", "the loss is between 0 and C"),
        delta=delta,
    )
    return PartitionBound(whole, local, tight, variation, printed, largest, occupied, cells, samples)


@statement(
    "than2025", "Theorem 20", holds="printed; with distances that cannot be observed, for cells fixed before the data"
)
def theorem_20_printed(local: Value, g: Value) -> Value:
    """Return ``sum_i (m_i/m) lambda_i L_i + g``, the right side of equation (13) without the training loss.

    Args:
        local: the sum, with average distances or diameters.
        g: as printed.

    >>> round(theorem_20_printed(Value.of(1.0, Kind.CERTIFIED), Value.of(2.0, Kind.PROBABILISTIC)).value, 12)
    3.0
    """
    return Value(total((local, g)).log, Kind.PRINTED, statement="than2025 Theorem 20", assumptions=g.assumptions)


def _per_cell(constants: Sequence[float] | float, cells: int) -> Tensor:
    given = torch.tensor([constants] * cells if isinstance(constants, int | float) else list(constants)).double()
    if len(given) != cells or not bool((given >= 0).all()):
        raise InputError(
            f"Expected one constant for all cells or one for each of the {cells} cells, none of them negative."
        )
    return given


def _local(counts: Tensor, constants: Tensor, diameters: Tensor, classes: int) -> Value:
    """Return ``sum_i (m_i/m) L_i D_i`` over occupied cells, rounded up."""
    wide = diameters.expand(len(counts) // classes) if diameters.numel() == 1 else diameters
    taken = counts > 0
    terms = (counts.double() * constants * wide.repeat_interleave(classes).double())[taken].tolist()
    mean = math.fsum(terms) / int(counts.sum())
    return Value.of(up(mean, 16.0), Kind.CERTIFIED, domain="cells with samples")


@statement("than2025", "Corollary 22", holds="printed; a bound only for a plain chain and cells fixed before the data")
def corollary_22(loss_constant: Value, network: Value, distance: Value, g: Value) -> Value:
    r"""Return ``omega + g`` with ``omega = L_f ||h|| sum_i (m_i/m) lambda_i``.

    ``||h||`` is ``P_w sigma^-K`` for BatchNorm, ``P_w prod 1/sigma_k`` for LayerNorm and ``P_w`` without normalizer, as
    Corollaries 10 and 11 print them; or the product of folded norms ``prod ||diag(gamma/sigma) W||``, which does not
    move when a weight before a normalizer is rescaled.

    Args:
        loss_constant: ``L_f``, of the loss in the scores.
        network: ``||h||``.
        distance: ``sum_i (m_i/m) lambda_i``, or with diameters in place of ``lambda_i``.
        g: the statistical term.

    >>> one = Value.of(2.0, Kind.CERTIFIED)
    >>> round(corollary_22(one, one, one, one).value, 9)
    10.0
    """
    whole = total((product((loss_constant, network, distance)), g))
    return Value(whole.log, Kind.PRINTED, statement="than2025 Corollary 22", assumptions=g.assumptions)


@statement("than2025", "Corollary 21", holds="printed; cells and discontinuities fixed before the data")
def corollary_21(theorem_20: Value) -> Value:
    """Return the bound of Theorem 20 for a loss with jumps on a set of probability zero.

    For a trained network that set is not fixed before the data, and the statement is false then: cells drawn around
    the samples break it. A network that is Lipschitz has no jumps, and nothing is gained.

    Args:
        theorem_20: the right side of Theorem 20.

    >>> corollary_21(Value.of(2.0, Kind.PRINTED)).statement
    'than2025 Corollary 21'
    """
    return Value(theorem_20.log, Kind.PRINTED, statement="than2025 Corollary 21", assumptions=theorem_20.assumptions)
