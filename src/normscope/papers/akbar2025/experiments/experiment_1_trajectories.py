"""Experiment 1 and Section 5.2: paths of the weight of a linear classifier in the plane, with and without BatchNorm."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.core.statement import statement
from normscope.geometry.derivatives import standardized
from normscope.geometry.flow import Loss, Point
from normscope.papers.akbar2025.batched_networks import NAMES, seed_range, seeded_normal
from normscope.papers.small_networks import gradient_descent
from normscope.papers.study import Evidence, Findings, Progress, StudyChart, StudyLine

#: By whether there is BatchNorm, and by the length of the start.
Paths = dict[tuple[bool, float], np.ndarray]
TITLE = "Paths of a weight with and without BatchNorm (Figures 5.1 and 8.1, left)"


@dataclass(frozen=True)
class _Setting:
    seeds: int
    steps: int
    samples: int = 40
    rate: float = 0.1
    norms: tuple[float, ...] = (0.1, 1.0, 5.0)


SETTINGS = {"smoke": _Setting(10, 150), "laptop": _Setting(50, 1500)}


@statement("akbar2025", "Experiment 1 (run)", holds="as an experiment; data and seeds are ours, the paper gives none")
def run(s: _Setting, seed: int, data_root: Path | None, progress: Progress) -> Findings:
    """Train linear classifiers on separable points of the plane from starts of several lengths, a right angle away."""
    x, label, truth = _data(seed, s)
    paths: Paths = {}
    equal: dict[float, np.ndarray] = {}
    for norm in s.norms:
        start = norm * torch.stack([-truth[:, 1], truth[:, 0]], 1)  # 90 degrees away
        for batch_norm in (True, False):
            progress(f"start of length {norm:g}, {'with' if batch_norm else 'without'} BatchNorm")
            paths[batch_norm, norm] = _path(_losses(x, label, batch_norm), start, s.rate, s.steps)
        equal[norm] = _path(_losses(x, label, True, eps=0.0), start, s.rate * norm**2, s.steps)
    right = {key: _accuracy(path, x, label) for key, path in paths.items()}
    return {}, _panels(paths, equal, s), _evidence(paths, equal, right, truth.numpy(), s)


def _data(seed: int, s: _Setting) -> tuple[Tensor, Tensor, Tensor]:
    """Return separable points, their labels and the direction that separates them."""
    angle = seeded_normal(seed, s.seeds, 1)[:, 0] * math.pi
    truth = torch.stack([angle.cos(), angle.sin()], 1)
    x = seeded_normal(seed + 500, s.seeds, s.samples, 2)
    label = torch.sign((x * truth[:, None]).sum(2))
    return x + 0.5 * label[..., None] * truth[:, None], label, truth


def _losses(x: Tensor, label: Tensor, batch_norm: bool, eps: float = 1e-5) -> Loss:
    def losses(point: Point) -> Tensor:
        z = (x * point["w"][:, None]).sum(2)
        return F.softplus(-label * (standardized(z, eps, 1)[0] if batch_norm else z)).mean(1)

    return losses


def _path(losses: Loss, start: Tensor, rate: float, steps: int) -> np.ndarray:
    """Train; return the weights before each step and after the last: (steps + 1, seeds, 2)."""
    seen: list[Tensor] = []
    end = gradient_descent(losses, {"w": start}, rate, steps, lambda point, slopes: seen.append(point["w"]))
    return torch.stack([*seen, end["w"]]).numpy()


def _accuracy(path: np.ndarray, x: Tensor, label: Tensor) -> np.ndarray:
    """Return the share of points on the right side at the end; BatchNorm moves the threshold to the mean."""
    z = (x * torch.as_tensor(path[-1])[:, None]).sum(2)
    return ((label * z > 0).double().mean(1)).numpy()


def _angles(path: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the angle to the separating direction along paths, in degrees: (steps + 1, seeds)."""
    cosine = (path * truth).sum(2) / np.linalg.norm(path, axis=2)
    return np.degrees(np.arccos(np.clip(cosine, -1, 1)))


def _panels(paths: Paths, equal: dict[float, np.ndarray], s: _Setting) -> tuple[StudyChart, ...]:
    """Return the paths of one seed, lengths over time, and angles at equal effective steps."""
    lines, lengths, angles = [], [], []
    every = list(range(0, s.steps + 1, max(1, s.steps // 100)))
    for (batch_norm, norm), path in paths.items():
        label = f"{NAMES[batch_norm]}, start {norm:g}"
        lines.append(
            StudyLine(label, tuple(path[:, 0, 0].tolist()), tuple(path[:, 0, 1].tolist()), dashed=not batch_norm)
        )
        ratio = np.linalg.norm(path, axis=2) / np.linalg.norm(path[0], axis=1)
        lengths.append(StudyLine.over_seeds(label, every, ratio[every].T, dashed=not batch_norm))
    for norm, path in equal.items():
        direction = path[every] / np.linalg.norm(path[every], axis=2, keepdims=True)
        turned = np.degrees(np.arccos(np.clip((direction * direction[:1]).sum(2), -1, 1)))
        angles.append(StudyLine.over_seeds(f"start {norm:g}", every, turned.T))
    return (
        StudyChart("Paths of w (one seed)", "w_1", "w_2", tuple(lines)),
        StudyChart("Length of w", "step", "length over length at the start", tuple(lengths), log_y=True),
        StudyChart("Angle turned, BatchNorm, rate proportional to |w|^2", "step", "degrees", tuple(angles)),
    )


def _evidence(
    paths: Paths, equal: dict[float, np.ndarray], right: Paths, truth: np.ndarray, s: _Setting
) -> list[Evidence]:
    ratios = {key: np.linalg.norm(p, axis=2) / np.linalg.norm(p[0], axis=1) for key, p in paths.items()}
    drift = {n: np.abs(ratios[True, n] - 1).max(0) for n in s.norms}
    bends = np.concatenate([np.diff(_angles(paths[True, n], truth), axis=0) for n in s.norms], axis=1)
    monotone = (bends <= 1e-9).all(0) | (np.abs(bends).cumsum(0)[-1] - np.abs(bends.sum(0)) < 1e-6)
    grown, shrunk = ratios[False, s.norms[0]][-1], ratios[False, s.norms[-1]][-1]
    turns = [_angles(path, truth) for path in equal.values()]
    aligned = {b: np.mean([right[b, n] for n in s.norms]) for b in (True, False)}
    return [
        *(Evidence(f"with BatchNorm |w| changes by less than 1 % (start of length {n:g})", "BatchNorm",
                   {"paper": 0.01, **seed_range(drift[n])}, drift[n].max() < 0.01) for n in s.norms),
        Evidence("with BatchNorm the path turns monotonically towards its end", "BatchNorm",
                 {"share of runs": monotone.mean()}, monotone.mean() > 0.95),
        Evidence("without BatchNorm |w| grows from small starts", "plain",
                 {"share of seeds": (grown > 1).mean(), **seed_range(grown)}, (grown > 1).all()),
        Evidence("without BatchNorm |w| shrinks from large starts", "plain",
                 {"share of seeds": (shrunk < 1).mean(), **seed_range(shrunk)}, (shrunk < 1).all()),
        Evidence("both align with the separating direction", "both",
                 {"accuracy, BatchNorm": aligned[True], "plain": aligned[False]}, min(aligned.values()) > 0.95),
        Evidence("free of scale: at equal rate/|w|^2 the angles do not depend on the length of the start", "BatchNorm",
                 {"largest difference, degrees": max(np.abs(t - turns[0]).max() for t in turns)}, None),
    ]  # fmt: skip
