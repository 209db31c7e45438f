"""What the rows of the table share: the network, its scores, the cells; and how a number becomes a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.analysis.bounds.cells import Cells, LocalConstants
from normscope.analysis.bounds.measured import Network
from normscope.analysis.bounds.noise import Posterior
from normscope.analysis.bounds.posterior import TrainedPosterior
from normscope.analysis.bounds.result import BoundRow
from normscope.analysis.bounds.scores import Scores
from normscope.core.value import Kind, Value, total

#: Shares of the training margins that are tried as gamma; each is allowed, since no bound here fixes gamma.
QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Setting:
    """What every row may use.

    Attributes:
        network: its norms and constants.
        train: scores on the training data.
        test: scores on the test data.
        delta: failure probability of each certificate.
        loss: name of the loss for Theorem 20.
        clip: of cross-entropy.
        box: least and largest inputs, fixed before the data.
        cells: how the data lies in the cells of the partition; raises why it cannot be used.
        local: certified constants on these cells.
        posterior: the network with noise.
        trained: a posterior that was trained for its bound; raises why there is none.
        data: training and test data themselves, for networks that are made from this one.
        tuned: why the test data is not fresh, if it is not.
    """

    network: Network
    train: Scores
    test: Scores
    delta: float
    loss: str
    clip: float | None
    box: tuple[Tensor, Tensor] | None
    cells: Callable[[], Cells]
    local: Callable[[], LocalConstants]
    posterior: Callable[[], Posterior]
    trained: Callable[[], TrainedPosterior]
    data: tuple[Any, Any]
    tuned: str = ""

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


def row_of(
    name: str,
    value: Value,
    s: Setting,
    *,
    of: str = "this network",
    note: str = "",
    details: Mapping[str, Any] | None = None,
    **more: Any,
) -> BoundRow:
    """Return a row."""
    return BoundRow.of_value(name, value, s.train.classes, of=of, reason=note, details={**(details or {}), **more})


def plus(first: Value, second: Value) -> Value:
    """Add a loss on the data to a gap; the statement is that of the gap."""
    return replace(total((first, second)), statement=second.statement, delta=second.delta)
