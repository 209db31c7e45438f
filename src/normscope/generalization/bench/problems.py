"""Problems whose risk is known exactly, each with a model that is chosen after the sample is seen.

Inputs are uniform on [0, 1] except for the Gaussian mixture and the disc. The fixed partition is a grid of ten
intervals, separate for each label where labels matter. One problem has a partition drawn after the data: a union of
tiny intervals around the samples, and the rest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, rel_entr

#: Samples of a draw, fresh samples beside them, and cells of the grid.
SAMPLES, FRESH, GRID = 20_000, 1_000, 10
#: Thresholds that may be chosen.
PLACES = (np.arange(64) + 0.5) / 64
_TINY = 1e-9
_STEEP = 1e12
Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class PartitionCells:
    """A partition of the inputs, with Lipschitz constants of a loss on its cells."""

    index: Indices  #: the cell of each sample
    constants: Array  #: Lipschitz constant of the loss on each cell
    diameters: Array  #: of each cell

    @property
    def counts(self) -> Indices:
        """Return the samples in each cell."""
        return np.bincount(self.index, minlength=len(self.constants))


@dataclass(frozen=True)
class Draw:
    """A sample, a model that was chosen with it, and its true risk."""

    inputs: Array  #: the sample, one row each
    labels: Indices  #: classes
    losses: Array  #: of the model on the sample, between 0 and 1
    risk: float  #: expected loss of the model, known exactly
    fresh: Array  #: losses on samples that the model was not chosen with
    cells: PartitionCells  #: a partition chosen before the sample; each cell has one label, or labels do not matter
    after: PartitionCells  #: a partition that may have been chosen after it; the same as ``cells`` where none was
    dimension: float = float("inf")  #: VC dimension of the models that could have been chosen; infinite if all could
    #: length of the model's code, fixed before the sample; infinite if there is none
    bits: float = float("inf")
    #: (mean loss on the sample, divergence from the prior, risk) of a randomized model, if there is one
    posterior: tuple[float, float, float] | None = None
    weights: Array | None = None  #: of a linear classifier with scores ``(0, w x)``, if it is one
    margins: Array = field(default_factory=lambda: np.zeros(0))  #: on the sample, of a linear classifier
    #: inputs and cells of samples that the model was not chosen with, where distances are wanted
    unseen: tuple[Array, Indices] | None = None
    radius: float = float("inf")  #: no input has a larger norm, whatever the sample; infinite if some may
    #: (errors on the sample, bits, fresh inputs on which it decides otherwise, how many there are) of a model with a
    #: short name, if there is one
    surrogate: tuple[int, float, int, int] | None = None
    #: (mean loss on the second half of the sample, divergence from a prior of the first half, samples of the second) of
    #: the randomized model, if there is one
    split: tuple[float, float, int] | None = None

    @property
    def samples(self) -> int:
        """Return how many samples there are."""
        return len(self.losses)

    @property
    def train_error(self) -> float:
        """Return the mean loss on the sample."""
        return float(self.losses.mean())


Problem = Callable[[np.random.Generator], Draw]


def memorizer(rng: np.random.Generator) -> Draw:
    """A model that is right only at its samples: training error zero, risk one."""
    x = rng.random(SAMPLES)
    zero, y = np.zeros(SAMPLES), np.zeros(SAMPLES, dtype=np.int64)
    return _draw(x, y, zero, 1.0, np.ones(FRESH), constant=_STEEP)


def partition_after(rng: np.random.Generator) -> Draw:
    """Loss zero near samples and one elsewhere: constant on each of two cells that were drawn after the data."""
    x = rng.random(SAMPLES)
    ends = np.sort(x)
    near = np.minimum(np.diff(ends), 2 * _TINY).sum() + min(ends[0], _TINY) + min(1 - ends[-1], _TINY)
    zero, y = np.zeros(SAMPLES), np.zeros(SAMPLES, dtype=np.int64)
    after = PartitionCells(y, np.zeros(2), np.ones(2))
    fresh = rng.random(FRESH)
    at = np.searchsorted(ends, fresh)
    gaps = np.minimum(np.abs(fresh - ends[np.clip(at, 0, SAMPLES - 1)]), np.abs(fresh - ends[np.clip(at - 1, 0, None)]))
    return _draw(x, y, zero, 1.0 - float(near), gaps > _TINY, constant=1 / _TINY, after=after)


def random_labels(rng: np.random.Generator) -> Draw:
    """Coin flips as labels, and the best of 2^10 tables over the grid: every model has risk one half."""
    x, y = rng.random(SAMPLES), rng.integers(0, 2, SAMPLES)
    place = _place(x)
    ones = np.bincount(place, weights=y, minlength=GRID)
    table = 2 * ones > np.bincount(place, minlength=GRID)
    fresh = rng.integers(0, 2, FRESH)
    return _draw(x, y, table[place] != y, 0.5, fresh, constant=0.0, pure=True, bits=GRID, dimension=GRID)


def constant(rng: np.random.Generator) -> Draw:
    """A model that always says zero; labels are one with a probability that is known."""
    risk = 0.02
    x, y = rng.random(SAMPLES), (rng.random(SAMPLES) < risk).astype(np.int64)
    fresh = rng.random(FRESH) < risk
    return _draw(x, y, y, risk, fresh, constant=0.0, pure=True, bits=0, dimension=1)


def nearest_neighbour(rng: np.random.Generator) -> Draw:
    """The label of the nearest sample; a tenth of all labels is flipped, so the model memorizes noise."""
    noise = 0.1
    x = np.sort(rng.random(SAMPLES))
    y = _flipped(rng, x > 0.5, noise)
    ends = np.concatenate([[0.0], (x[1:] + x[:-1]) / 2, [1.0]])
    left = np.clip(0.5 - ends[:-1], 0, np.diff(ends))  # of each sample's interval the part below one half
    wrong = np.where(y == 1, left, np.diff(ends) - left)
    risk = float(noise + (1 - 2 * noise) * wrong.sum())
    u = rng.random(FRESH)
    nearest = y[np.clip(np.searchsorted(ends, u) - 1, 0, SAMPLES - 1)]
    mistaken = nearest != _flipped(rng, u > 0.5, noise)
    draw = _draw(x, y, np.zeros(SAMPLES), risk, mistaken, constant=_STEEP, pure=True)
    errors = _errors_of_thresholds(x, y)
    best = int(np.argmin(errors))
    apart = int(((u > PLACES[best]) != nearest).sum())
    return replace(draw, surrogate=(round(errors[best] * SAMPLES), 6, apart, FRESH))


def gaussian_mixture(rng: np.random.Generator) -> Draw:
    """Two Gaussians in ten dimensions and the line through their sample means: the risk is a normal tail."""
    d = 10
    mean = np.full(d, 1.0 / math.sqrt(d))
    y = rng.integers(0, 2, SAMPLES)
    x = rng.standard_normal((SAMPLES, d)) + np.outer(2 * y - 1, mean)
    w = (x * (2 * y - 1)[:, None]).mean(0)
    margins = (2 * y - 1) * (x @ w)
    risk = float(ndtr(-(w @ mean) / np.linalg.norm(w)))
    z = rng.standard_normal((FRESH, d)) + mean
    cells = PartitionCells(y.astype(np.int64), np.full(2, _STEEP), np.full(2, np.inf))
    fresh = (z @ w <= 0).astype(float)
    return Draw(x, y, (margins <= 0).astype(float), risk, fresh, cells, cells, dimension=d, weights=w, margins=margins)


def oscillation(rng: np.random.Generator) -> Draw:
    """Waves ``(1 + sin(2 pi k x + p))/2`` as losses, the best of 64 phases: Lipschitz, risk exactly one half."""
    waves = 3
    x = rng.random(SAMPLES)
    phases = np.arange(64) * (2 * math.pi / 64)
    angle = 2 * math.pi * waves * x
    means = 0.5 + 0.5 * (np.sin(angle).mean() * np.cos(phases) + np.cos(angle).mean() * np.sin(phases))
    phase = phases[int(np.argmin(means))]
    losses = 0.5 + 0.5 * np.sin(angle + phase)
    u = rng.random(FRESH)
    fresh = 0.5 + 0.5 * np.sin(2 * math.pi * waves * u + phase)
    zero = np.zeros(SAMPLES, dtype=np.int64)
    draw = _draw(x, zero, losses, 0.5, fresh, constant=math.pi * waves, bits=6)
    return replace(draw, unseen=(u[:, None], _place(u)))


def thresholds(rng: np.random.Generator) -> Draw:
    """64 thresholds, labels with noise: the best one, and a randomized one whose risk and divergence are sums."""
    noise = 0.1
    x = rng.random(SAMPLES)
    y = _flipped(rng, x > 0.5, noise)
    half = SAMPLES // 2
    errors, first, second = (
        _errors_of_thresholds(x[part], y[part]) for part in (slice(None), slice(half), slice(half, None))
    )
    risks = noise + (1 - 2 * noise) * np.abs(PLACES - 0.5)
    q, prior = (np.exp(-200.0 * (e - e.min())) for e in (errors, first))
    q, prior = q / q.sum(), prior / prior.sum()
    divergence, moved = (float(rel_entr(q, p).sum()) for p in (np.full(64, 1 / 64), prior))
    best = int(np.argmin(errors))
    losses = (x > PLACES[best]) != y
    u = rng.random(FRESH)
    fresh = (u > PLACES[best]) != _flipped(rng, u > 0.5, noise)
    posterior = (float(q @ errors), max(0.0, divergence), float(q @ risks))
    draw = _draw(x, y, losses, float(risks[best]), fresh, constant=_STEEP, pure=True, bits=6, dimension=1)
    split = (float(q @ second), max(0.0, moved), SAMPLES - half)
    return replace(draw, posterior=posterior, split=split)


def disc(rng: np.random.Generator) -> Draw:
    """Points of a disc, noisy labels by the side of a line, and the line through the means; the risk is an angle."""
    noise = 0.1
    size, angle = np.sqrt(rng.random(SAMPLES)), 2 * math.pi * rng.random(SAMPLES)
    x = np.stack([size * np.cos(angle), size * np.sin(angle)], 1)
    y = _flipped(rng, x[:, 0] > 0, noise)
    w = (x * (2 * y - 1)[:, None]).mean(0)
    margins = (2 * y - 1) * (x @ w)
    off = abs(math.atan2(w[1], w[0])) / math.pi
    z = rng.random(FRESH) * 2 * math.pi
    side = np.cos(z) * w[0] + np.sin(z) * w[1] > 0
    fresh = (_flipped(rng, np.cos(z) > 0, noise) != side).astype(float)
    cells = PartitionCells(y, np.full(2, _STEEP), np.full(2, 2.0))
    linear = {"dimension": 2, "weights": w, "margins": margins, "radius": 1.0}
    return Draw(x, y, (margins <= 0).astype(float), noise + (1 - 2 * noise) * off, fresh, cells, cells, **linear)


def _errors_of_thresholds(x: Array, y: Indices) -> Array:
    order = np.argsort(x)
    ones = np.concatenate([[0], np.cumsum(y[order])])
    below = np.searchsorted(x[order], PLACES)
    return np.asarray((ones[below] + (len(x) - below) - (ones[-1] - ones[below])) / len(x))


#: Problems by name.
PROBLEMS: dict[str, Problem] = {
    "memorizer": memorizer,
    "partition after the data": partition_after,
    "random labels": random_labels,
    "constant": constant,
    "nearest neighbour": nearest_neighbour,
    "Gaussian mixture": gaussian_mixture,
    "oscillation": oscillation,
    "thresholds": thresholds,
    "disc": disc,
}


def _flipped(rng: np.random.Generator, labels: NDArray[np.bool_], noise: float) -> Indices:
    """Return labels as integers, each flipped with a given probability."""
    return ((rng.random(len(labels)) < noise) != labels).astype(np.int64)


def _place(x: Array) -> Indices:
    """Return the cell of the grid of each number in [0, 1]."""
    return np.minimum((x * GRID).astype(np.int64), GRID - 1)


def _draw(
    x: Array,
    y: Indices,
    losses: NDArray[Any],
    risk: float,
    fresh: NDArray[Any],
    *,
    constant: float,
    pure: bool = False,
    after: PartitionCells | None = None,
    bits: float = math.inf,
    dimension: float = math.inf,
) -> Draw:
    """Assemble a draw on [0, 1]; with ``pure``, each label has its own cells of the grid."""
    index = _place(x) * 2 + y if pure else _place(x)
    cells = PartitionCells(index, np.full(GRID * (1 + pure), constant), np.full(GRID * (1 + pure), 1 / GRID))
    return Draw(x[:, None], y, losses.astype(float), risk, fresh.astype(float), cells, after or cells, dimension, bits)
