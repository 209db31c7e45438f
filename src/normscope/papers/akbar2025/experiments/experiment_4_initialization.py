"""Experiment 4: five layers from weights of scales between 1e-8 and 1e3, with and without BatchNorm."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.geometry.flow import Loss, Point, gradient_of
from normscope.papers.akbar2025.batched_networks import length, seed_range, seeded_normal, square_losses, weights
from normscope.papers.small_networks import gradient_descent
from normscope.papers.study import Evidence, Findings, Progress, StudyChart, StudyLine

TITLE = "Bad initial scales with and without BatchNorm"


@dataclass(frozen=True)
class _Setting:
    seeds: int
    steps: int
    samples: int = 64
    rate: float = 0.1
    widths: tuple[int, ...] = (4, 12, 12, 12, 12, 1)
    scales: tuple[float, ...] = (1e-8, 1e-6, 1e-4, 1e-2, 1.0, 1e1, 1e2, 1e3)


SETTINGS = {"smoke": _Setting(10, 60), "laptop": _Setting(20, 500)}
#: A network has trained if its loss fell below this share of the loss of predicting zero.
TRAINED = 0.5


@statement("akbar2025", "Experiment 4 (run)", holds="as an experiment; data and seeds are ours, the paper gives none")
def run(s: _Setting, seed: int, data_root: Path | None, progress: Progress) -> Findings:
    """Train five layers from bad initial scales: with BatchNorm, without, and with a rate proportional to ``|w|^2``."""
    x = seeded_normal(seed, s.seeds, s.samples, 4)
    target = torch.tanh(x[..., :1] - x[..., 1:2])
    zero = target.square().mean((1, 2)) / 2
    names = ("BatchNorm", "plain", "BatchNorm, rate times |w|^2")
    normalized, plain = (square_losses(x, target, norm=norm, activation=torch.relu) for norm in (True, False))
    found: dict[str, list[np.ndarray]] = {name: [] for name in (*names, "gradient")}
    for factor in s.scales:
        progress(f"weights times {factor:g}")
        start = weights(seed + 1, s.seeds, s.widths, math.sqrt(2))
        start = {name: value if name == "V" else factor * value for name, value in start.items()}
        one = dict.fromkeys(start, s.rate)
        squared = {n: s.rate * (1.0 if n == "V" else factor**2) for n in start}
        for name, losses, rate in zip(names, (normalized, plain, normalized), (one, one, squared), strict=True):
            found[name].append(_share(losses, gradient_descent(losses, start, rate, s.steps), zero))
        slopes = gradient_of(lambda p: normalized(p).sum(), start)
        found["gradient"].append(length({"W0": slopes["W0"]}).numpy())
    table = {name: np.stack(values) for name, values in found.items()}
    panels = (
        StudyChart("Loss after training over that of predicting zero", "scale of the weights", "share", tuple(
            StudyLine.over_seeds(n, s.scales, np.minimum(table[n], 10.0).T) for n in names
        ), log_x=True),
        StudyChart("First gradient of the first layer, BatchNorm", "scale of the weights", "norm",
              (StudyLine.over_seeds("measured", s.scales, table["gradient"].T),), log_x=True, log_y=True),
    )  # fmt: skip
    return {"activation": "ReLU"}, panels, _evidence(table, s)


def _share(losses: Loss, end: Point, zero: Tensor) -> np.ndarray:
    """Return the final loss relative to the loss of predicting zero; infinite if training diverged."""
    found: np.ndarray = (losses(end) / zero).numpy()
    return np.where(np.isfinite(found), found, np.inf)


def _evidence(table: dict[str, np.ndarray], s: _Setting) -> tuple[Evidence, ...]:
    place = {scale: i for i, scale in enumerate(s.scales)}
    small, unit, large = place[s.scales[0]], place[1.0], place[s.scales[-1]]
    trained = {name: (values < TRAINED).mean(1) for name, values in table.items()}
    shrink = table["gradient"][large] / table["gradient"][unit]
    free = table["BatchNorm, rate times |w|^2"]
    return (
        Evidence("without BatchNorm training fails from very large weights (not finite, or no progress)", "plain",
                 {"share of seeds that train": trained["plain"][large]}, trained["plain"][large] == 0),
        Evidence("without BatchNorm training fails from very small weights", "plain",
                 {"share of seeds that train": trained["plain"][small]}, trained["plain"][small] == 0),
        Evidence("with BatchNorm training proceeds from very large weights", "BatchNorm",
                 {"share of seeds that train": trained["BatchNorm"][large], **seed_range(table["BatchNorm"][large])},
                 trained["BatchNorm"][large] > 0.9),
        Evidence("with BatchNorm training proceeds from very small weights", "BatchNorm",
                 {"share of seeds that train": trained["BatchNorm"][small], **seed_range(table["BatchNorm"][small])},
                 trained["BatchNorm"][small] > 0.9),
        Evidence("with BatchNorm training proceeds from scale 1", "BatchNorm",
                 {"share of seeds that train": trained["BatchNorm"][unit]}, None),
        Evidence("the first gradient falls with the scale of the weights (largest scale over 1)", "BatchNorm",
                 {"predicted": 1.0 / s.scales[-1], **seed_range(shrink)}, None),
        Evidence("free of scale: with a rate times |w|^2 large weights train as those of scale 1", "BatchNorm",
                 {"largest difference of the loss share": np.abs(free[large] - free[unit]).max()}, None),
    )  # fmt: skip
