"""Experiment 3: margins and flatness of 50-20-1 classifiers, with and without BatchNorm."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.core.statement import statement
from normscope.geometry.flow import Point
from normscope.papers.akbar2025.batched_networks import NAMES, output, seed_range, seeded_normal, weights
from normscope.papers.small_networks import gradient_descent
from normscope.papers.study import Evidence, Findings, Progress, StudyChart, StudyLine

TITLE = "Margins and flatness with and without BatchNorm (Figure 8.2)"


@dataclass(frozen=True)
class _Setting:
    seeds: int
    steps: int
    train: int = 100
    test: int = 400
    rate: float = 0.5
    noise: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
    draws: int = 5


SETTINGS = {"smoke": _Setting(10, 150), "laptop": _Setting(30, 1000, draws=20)}
EPS = 1e-5


@statement("akbar2025", "Experiment 3 (run)", holds="as an experiment; data and seeds are ours, the paper gives none")
def run(s: _Setting, seed: int, data_root: Path | None, progress: Progress) -> Findings:
    """Train 50-20-1 classifiers on labels of a random network, and measure margins and accuracy under noise."""
    x = seeded_normal(seed, s.seeds, s.train + s.test, 50)
    label = torch.sign(output(weights(seed + 7, s.seeds, (50, 5, 1)), x, norm=False, activation=torch.tanh)[..., 0])
    found: dict[bool, dict[str, Any]] = {}
    for norm in NAMES:
        progress(f"training {'with' if norm else 'without'} BatchNorm")
        start = weights(seed + 1, s.seeds, (50, 20, 1), math.sqrt(2))

        def losses(p: Point, norm: bool = norm) -> Tensor:
            out = output(p, x[:, : s.train], norm=norm, activation=torch.relu, eps=EPS)[..., 0]
            return F.softplus(-label[:, : s.train] * out).mean(1)

        end = gradient_descent(losses, start, s.rate, s.steps)
        found[norm] = _measured(end, x, label, norm, s, seed)
    return {"network": "50-20-1, ReLU"}, _panels(found, s), _evidence(found)


def _folded(point: Point, x: Tensor, norm: bool) -> tuple[Point, Tensor]:
    """Return the network with BatchNorm folded into its first layer, by the statistics of the training data.

    The result is a plain network: the output for a new point does not depend on the other points.
    """
    if not norm:
        return point, torch.zeros(len(x), 1, point["W0"].shape[1], dtype=x.dtype)
    z = x @ point["W0"].mT
    deviation = (z.var(1, correction=0) + EPS).sqrt()
    return {**point, "W0": point["W0"] / deviation[..., None]}, (z.mean(1) / deviation)[:, None]


def _measured(end: Point, x: Tensor, label: Tensor, norm: bool, s: _Setting, seed: int) -> dict[str, Any]:
    """Return margins, accuracies and robustness of every seed."""
    train, test = slice(0, s.train), slice(s.train, None)
    folded, shift = _folded(end, x[:, train], norm)
    scores = (torch.relu(x @ folded["W0"].mT - shift) @ folded["V"].mT)[..., 0]
    margins = label * scores
    norms = torch.linalg.matrix_norm(folded["W0"], 2) * folded["V"].flatten(1).norm(dim=1)
    ten = {**end, "W0": 10 * end["W0"]}  # with BatchNorm the same network
    return {
        "margins": margins[:, train].numpy(),
        "mean margin": margins[:, train].mean(1).numpy(),
        "certified": (margins[:, train].mean(1) / norms).numpy(),
        "train": (margins[:, train] > 0).double().mean(1).numpy(),
        "test": (margins[:, test] > 0).double().mean(1).numpy(),
        "noise": _noise(end, x[:, train], label[:, train], norm, s, seed, relative=False),
        "ten": _noise(ten, x[:, train], label[:, train], norm, s, seed, relative=False),
        "relative": _noise(end, x[:, train], label[:, train], norm, s, seed, relative=True),
    }


def _noise(end: Point, x: Tensor, label: Tensor, norm: bool, s: _Setting, seed: int, *, relative: bool) -> np.ndarray:
    """Return the training accuracy under noise on all weights: (seeds, sizes).

    Relative noise is measured by the length of each row, which makes it free of the scale of normalized rows.
    """
    found = np.zeros((len(x), len(s.noise)))
    for draw in range(s.draws):
        unit = {
            k: seeded_normal(seed + 9000 + 100 * draw + i, len(x), *v.shape[1:]) for i, (k, v) in enumerate(end.items())
        }
        if relative:
            unit = {k: u * end[k].norm(dim=2, keepdim=True) / math.sqrt(u.shape[2]) for k, u in unit.items()}
        for place, size in enumerate(s.noise):
            moved = {name: value + size * unit[name] for name, value in end.items()}
            out = output(moved, x, norm=norm, activation=torch.relu, eps=EPS)[..., 0]
            found[:, place] += (label * out > 0).double().mean(1).numpy() / s.draws
    return found


def _panels(found: dict[bool, dict[str, Any]], s: _Setting) -> tuple[StudyChart, ...]:
    """Return the distribution of margins, and accuracy against noise, raw and relative."""
    top = max(float(np.quantile(found[n]["margins"], 0.99)) for n in NAMES)
    edges = np.linspace(min(0.0, *(float(found[n]["margins"].min()) for n in NAMES)), top, 25)
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    histograms = tuple(
        StudyLine.over_seeds(NAMES[n], middles, [np.histogram(m, edges)[0] / len(m) for m in found[n]["margins"]])
        for n in NAMES
    )
    raw = [StudyLine.over_seeds(NAMES[n], s.noise, found[n]["noise"]) for n in NAMES]
    raw.append(StudyLine.over_seeds("BatchNorm, the same network with 10 W", s.noise, found[True]["ten"], dashed=True))
    relative = tuple(StudyLine.over_seeds(NAMES[n], s.noise, found[n]["relative"]) for n in NAMES)
    return (
        StudyChart("Margins y f(x) on training points", "margin", "share", histograms),
        StudyChart("Accuracy under noise", "standard deviation of the noise", "training accuracy", tuple(raw)),
        StudyChart("Accuracy under noise relative to rows", "noise relative to the row", "training accuracy", relative),
    )


def _evidence(found: dict[bool, dict[str, Any]]) -> tuple[Evidence, ...]:
    b, p = found[True], found[False]
    higher = b["mean margin"] > p["mean margin"]
    narrow = b["margins"].std(1) / b["mean margin"] < p["margins"].std(1) / p["mean margin"]
    # by the mean accuracy over noise levels
    flat, flat_free = (b[key].mean(1) > p[key].mean(1) for key in ("noise", "relative"))
    return (
        Evidence("both reach 100 % training accuracy", "both",
                 {"BatchNorm, least": b["train"].min(), "plain, least": p["train"].min()},
                 min(b["train"].min(), p["train"].min()) == 1.0),
        Evidence("the mean margin is 1.8 with BatchNorm", "BatchNorm", {"paper": 1.8, **seed_range(b["mean margin"])},
                 abs(np.median(b["mean margin"]) - 1.8) < 0.3),
        Evidence("the mean margin is 1.2 without", "plain", {"paper": 1.2, **seed_range(p["mean margin"])},
                 abs(np.median(p["mean margin"]) - 1.2) < 0.3),
        Evidence("margins are larger with BatchNorm", "both", {"share of seeds": higher.mean()}, higher.mean() > 0.9),
        Evidence("margins are more uniform with BatchNorm (deviation over mean)", "both",
                 {"share of seeds": narrow.mean()}, narrow.mean() > 0.9),
        Evidence("free of scale: margin over the product of norms, BatchNorm over plain", "both",
                 seed_range(b["certified"] / p["certified"]), None),
        Evidence("BatchNorm keeps its accuracy under larger noise on the parameters", "both",
                 {"share of seeds": flat.mean()}, flat.mean() > 0.9),
        Evidence("the same network with 10 W keeps it under still larger noise: the measure is not a property of the "
                 "network", "BatchNorm", {"mean accuracy": b["noise"].mean(), "with 10 W": b["ten"].mean()}, None),
        Evidence("free of scale: noise relative to rows, BatchNorm better", "both",
                 {"share of seeds": flat_free.mean()}, None),
        Evidence("BatchNorm generalizes better", "both", {"test accuracy, BatchNorm": np.median(b["test"]),
                 "plain": np.median(p["test"]), "share of seeds": (b["test"] > p["test"]).mean()},
                 (b["test"] > p["test"]).mean() > 0.9),
    )  # fmt: skip
