"""The inputs of every bound in the table: the network, its scores on the data, the cells; and how a row is made."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.bounds.cells import CellStatistics, LocalConstants, cell_statistics, local_constants
from normscope.analysis.bounds.folded_network import NoisePosterior, noise_posterior
from normscope.analysis.bounds.measured_network import MeasuredNetwork
from normscope.analysis.bounds.result import BoundRow, NotRequestedError
from normscope.analysis.bounds.scores import Scores
from normscope.analysis.bounds.trained_posterior import TrainedPosterior, trained_posterior
from normscope.core.value import Kind, Value, total
from normscope.generalization.partition import Partition

#: Shares of the training margins that are tried as gamma; each is allowed, since no bound here fixes gamma.
QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, eq=False)
class BoundsContext:
    """The inputs of every bound; what is expensive is computed on first use, or raises a :class:`RefusedError`.

    Fields without a description are arguments of :func:`~normscope.analysis.bounds.run.bounds`.
    """

    network: MeasuredNetwork  #: its norms and constants
    train: Scores  #: scores on the training data
    test: Scores  #: scores on the test data
    delta: float
    loss: str
    clip: float | None
    box: tuple[Tensor, Tensor] | None
    partition: Partition | None
    data: tuple[Any, Any]  #: training and test data, for networks that are derived from this one
    model: nn.Module
    start: nn.Module | None = None
    seconds: float = 0.0  #: to train a posterior for its bound
    seed: int = 0
    not_fresh: str = ""  #: why the test data is not independent of the network, if it is not

    @functools.cached_property
    def cells(self) -> CellStatistics:
        """Return the counts and distances of the data in the cells of the partition."""
        return cell_statistics(self.partition, self.train, self.test)

    @functools.cached_property
    def local(self) -> LocalConstants:
        """Return certified Lipschitz constants on these cells."""
        counts = self.cells.counts
        assert self.partition is not None  # else there are no counts
        return local_constants(self.network, self.partition, counts, self.train.classes)

    @functools.cached_property
    def noisy(self) -> NoisePosterior:
        """Return a Gaussian posterior around the weights."""
        self.network.say("noise in the weights")
        train, labels = self.train, self.train.labels[self.train.chosen]
        return noise_posterior(self.network.folded, train.some, labels, train.errors / train.samples, self.seed)

    @functools.cached_property
    def trained(self) -> TrainedPosterior:
        """Return a posterior that is trained to make its bound small."""
        if not self.seconds:
            raise NotRequestedError("pass the seconds to train a randomized network, posterior= or --posterior")
        network = self.network
        return trained_posterior(
            self.model, network.captured, self.data, self.seconds, network.context.program, self.seed, network.say,
            self.start,
        )  # fmt: skip

    @property
    def gammas(self) -> list[float]:
        """Return the margins to try."""
        levels = torch.tensor(QUANTILES, dtype=torch.float64)
        found = torch.quantile(self.train.margins, levels) if self.train.samples < 1e7 else self.train.margins[:1]
        return sorted({float(g) for g in found if g > 0}) or [1.0]

    @property
    def error(self) -> Value:
        """Return the training error."""
        return Value.of(self.train.errors / self.train.samples, Kind.CERTIFIED)


#: The name of a bound, and the function that computes its row, or several rows for its variants.
RowMaker = tuple[str, Callable[[BoundsContext], BoundRow | list[BoundRow]]]


def row_of(
    name: str,
    value: Value,
    s: BoundsContext,
    *,
    of: str = "this network",
    note: str = "",
    details: Mapping[str, Any] | None = None,
    **more: Any,
) -> BoundRow:
    """Return the row of a bound; ``more`` is added to the details."""
    return BoundRow.of_value(name, value, s.train.classes, of=of, reason=note, details={**(details or {}), **more})


def plus(first: Value, second: Value) -> Value:
    """Add a loss on the data to a gap; the statement is that of the gap."""
    return replace(total((first, second)), statement=second.statement, delta=second.delta)
