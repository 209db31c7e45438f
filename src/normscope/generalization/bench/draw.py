"""One draw of a problem with known risk: what a bound may look at, and the truth it must not be below."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Cells:
    """A partition of the inputs and what is true of a loss on it.

    Attributes:
        index: the cell of each sample.
        constants: Lipschitz constant of the loss on each cell.
        diameters: of each cell.
    """

    index: Indices
    constants: Array
    diameters: Array

    @property
    def counts(self) -> Indices:
        """Return the samples in each cell."""
        return np.bincount(self.index, minlength=len(self.constants))


@dataclass(frozen=True)
class Draw:
    """A sample, a model that was chosen with it, and its true risk.

    Attributes:
        inputs: the sample, one row each.
        labels: classes.
        losses: of the model on the sample, between 0 and 1.
        risk: expected loss of the model, known exactly.
        fresh: losses on samples that the model was not chosen with.
        cells: a partition chosen before the sample; labels are pure or of no account in its cells.
        after: a partition that may have been chosen after it; the same as ``cells`` where none was.
        dimension: VC dimension of the models that could have been chosen; infinite if all could.
        bits: with which the model can be named by a code fixed before the sample; infinite if it cannot.
        posterior: (mean loss on the sample, divergence from the prior, risk) of a randomized model, if there is one.
        weights: of a linear classifier with scores ``(0, w x)``, if it is one.
        margins: on the sample, of a linear classifier.
        unseen: inputs and cells of samples that the model was not chosen with, where distances are wanted.
        radius: no input has a larger norm, whatever the sample; infinite if some may.
        surrogate: (errors on the sample, bits, fresh inputs on which it decides otherwise, how many there are) of a
            model with a short name, if there is one.
        split: (mean loss on the second half of the sample, divergence from a prior of the first half, samples of the
            second) of the randomized model, if there is one.
    """

    inputs: Array
    labels: Indices
    losses: Array
    risk: float
    fresh: Array
    cells: Cells
    after: Cells
    dimension: float = float("inf")
    bits: float = float("inf")
    posterior: tuple[float, float, float] | None = None
    weights: Array | None = None
    margins: Array = field(default_factory=lambda: np.zeros(0))
    unseen: tuple[Array, Indices] | None = None
    radius: float = float("inf")
    surrogate: tuple[int, float, int, int] | None = None
    split: tuple[float, float, int] | None = None

    @property
    def samples(self) -> int:
        """Return how many samples there are."""
        return len(self.losses)

    @property
    def train_error(self) -> float:
        """Return the mean loss on the sample."""
        return float(self.losses.mean())
