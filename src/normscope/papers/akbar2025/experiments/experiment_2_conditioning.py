"""Experiment 2: training and Hessian of a small regression network, with and without BatchNorm."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.core.statement import statement
from normscope.curvature.directions import Directions, row_groups
from normscope.curvature.problem import Problem
from normscope.curvature.quotient import quotient
from normscope.geometry.flow import Loss, Point
from normscope.papers.akbar2025.batched_networks import (
    NAMES,
    length,
    module,
    seed_range,
    seeded_normal,
    square_losses,
    weights,
)
from normscope.papers.small_networks import gradient_descent
from normscope.papers.study import Evidence, Findings, Progress, StudyChart, StudyLine

TITLE = "Training and Hessian with and without BatchNorm (Figure 8.1, right)"


@dataclass(frozen=True)
class _Setting:
    seeds: int
    steps: int
    samples: int = 128
    rate: float = 0.1
    widths: tuple[int, ...] = (2, 10, 10, 10, 1)
    rates: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


SETTINGS = {"smoke": _Setting(10, 150), "laptop": _Setting(20, 1000)}


@statement("akbar2025", "Experiment 2 (run)", holds="as an experiment; data and seeds are ours, the paper gives none")
def run(s: _Setting, seed: int, data_root: Path | None, progress: Progress) -> Findings:
    """Train three hidden layers of ten units with and without BatchNorm and measure their Hessians at the end."""
    x = seeded_normal(seed, s.seeds, s.samples, 2)
    target = torch.sin(2 * x[..., :1]) + 0.5 * x[..., 1:]
    start = weights(seed + 1, s.seeds, s.widths)
    curves: dict[bool, dict[str, np.ndarray]] = {}
    spectra: dict[bool, list[dict[str, float]]] = {}
    for norm in NAMES:
        progress(f"training {'with' if norm else 'without'} BatchNorm")
        losses = square_losses(x, target, norm=norm, activation=torch.tanh)
        end, curves[norm] = _trained(losses, start, s)
        progress(f"Hessians {'with' if norm else 'without'} BatchNorm")
        spectra[norm] = [_spectrum(end, k, x, target, norm) for k in range(s.seeds)]
        curves[norm]["bounded"] = np.array([_bounded(losses, start, rate, s) for rate in s.rates])
    facts = {"activation": "tanh", "batch_norm": "no affine part, no biases"}
    return facts, _panels(curves, spectra, s), _evidence(curves, spectra, s)


def _trained(losses: Loss, start: Point, s: _Setting) -> tuple[dict[str, Tensor], dict[str, np.ndarray]]:
    """Train; return the final weights, and the loss and gradient norm at every step: (steps, seeds)."""
    seen: list[tuple[Tensor, Tensor]] = []
    end = gradient_descent(
        losses, start, s.rate, s.steps, lambda point, slopes: seen.append((losses(point), length(slopes)))
    )
    loss, gradient = (torch.stack(values).numpy() for values in zip(*seen, strict=True))
    return end, {"loss": loss, "gradient": gradient}


def _bounded(losses: Loss, start: Point, rate: float, s: _Setting) -> float:
    """Return the share of seeds whose loss after training at a learning rate is finite and below the initial loss."""
    end = gradient_descent(losses, start, rate, s.steps // 2)
    return float((losses(end) < losses(start)).double().mean())


def _spectrum(end: Point, place: int, x: Tensor, target: Tensor, norm: bool) -> dict[str, float]:
    """Return the extreme eigenvalues of the Hessian at the end, raw and modulo the scales of normalized rows."""
    net = module(end, place, norm=norm, activation=nn.Tanh)
    with Problem(
        net, (x[place], target[place]), lambda out, y: (out - y).square().mean() / 2, batch=len(x[place])
    ) as p:
        rows = [block.name for block in p.blocks[:-1]] if norm else []
        known = Directions(p.point(), row_groups(p, rows))
        raw = quotient(p, Directions(p.point()), matrix="hessian", method="dense")
        free = quotient(p, known, matrix="hessian", method="dense")
        ball = quotient(p, known, matrix="hessian", method="dense", sphere=True)
    assert raw.spectrum is not None
    zeros = int((np.abs(raw.spectrum) < 1e-4 * np.abs(raw.spectrum).max()).sum())
    return {
        "largest": raw.largest, "zeros": zeros, "negative": float(raw.negative or 0), "condition": free.condition,
        "sphere": ball.largest, "sphere condition": ball.condition, "spectrum": raw.spectrum,  # type: ignore[dict-item]
    }  # fmt: skip


def _panels(curves: dict[bool, dict[str, np.ndarray]], spectra: Any, s: _Setting) -> tuple[StudyChart, ...]:
    """Return losses, gradient norms, spectra and stable rates."""
    every = list(range(0, s.steps, max(1, s.steps // 150)))

    def over_time(key: str) -> tuple[StudyLine, ...]:
        return tuple(StudyLine.over_seeds(NAMES[n], [1 + e for e in every], curves[n][key][every].T) for n in NAMES)

    largest = {n: [r["spectrum"][::-1][:30] for r in spectra[n]] for n in NAMES}
    ranks = [StudyLine.over_seeds(NAMES[n], range(1, 31), largest[n]) for n in NAMES]
    stable = tuple(StudyLine(NAMES[n], s.rates, tuple(curves[n]["bounded"].tolist())) for n in NAMES)
    return (
        StudyChart("Training loss", "step", "loss", over_time("loss"), log_y=True),
        StudyChart("Gradient norm", "step", "norm", over_time("gradient"), log_y=True),
        StudyChart("Largest 30 eigenvalues of the Hessian", "rank", "eigenvalue", tuple(ranks)),
        StudyChart("Seeds whose loss falls", "learning rate", "share", stable, log_x=True),
    )


def _evidence(curves: dict[bool, dict[str, np.ndarray]], spectra: Any, s: _Setting) -> tuple[Evidence, ...]:

    def ratio(key: str) -> np.ndarray:
        return np.array([b[key] / p[key] for b, p in zip(spectra[True], spectra[False], strict=True)])

    last = {n: curves[n]["loss"][-1] for n in NAMES}
    early = curves[True]["loss"][min(100, s.steps - 1)] < curves[False]["loss"][min(100, s.steps - 1)]
    spikes = {n: curves[n]["gradient"].max(0) / np.median(curves[n]["gradient"], axis=0) for n in NAMES}
    top, sphere, zeros = ratio("largest"), ratio("sphere"), [r["zeros"] for r in spectra[True]]
    groups = float(sum(s.widths[1:-1]))
    conditions = {n: [r["condition"] for r in spectra[n]] for n in NAMES}
    bounded = {n: curves[n]["bounded"] for n in NAMES}
    reach = {n: max((r for r, b in zip(s.rates, bounded[n], strict=True) if b > 0.5), default=0.0) for n in NAMES}
    return (
        Evidence("with BatchNorm the loss after 100 steps is lower", "both", {"share of seeds": early.mean(),
                 "final loss, BatchNorm": np.median(last[True]), "final loss, plain": np.median(last[False])},
                 early.mean() > 0.5),
        Evidence("the largest eigenvalue is five times smaller with BatchNorm (BatchNorm/plain)", "both",
                 {"paper": 0.2, **seed_range(top)}, np.median(top) <= 0.2),
        Evidence("the largest eigenvalue is smaller with BatchNorm at all", "both",
                 {"share of seeds": (top < 1).mean()}, (top < 1).mean() > 0.5),
        Evidence("free of scale: largest eigenvalue on the spheres over the plain one", "both",
                 seed_range(sphere), None),
        Evidence("the condition number without zero modes is 20 with BatchNorm", "BatchNorm",
                 {"paper": 20.0, **seed_range(conditions[True])}, np.median(conditions[True]) <= 40),
        Evidence("the condition number is 200 without BatchNorm", "plain",
                 {"paper": 200.0, **seed_range(conditions[False])}, 100 <= np.median(conditions[False]) <= 400),
        Evidence("the condition number is better with BatchNorm", "both",
                 {"share of seeds": np.mean(np.array(conditions[True]) < np.array(conditions[False]))},
                 np.mean(np.array(conditions[True]) < np.array(conditions[False])) > 0.9),
        Evidence("with BatchNorm the Hessian has many zeros (below 1e-4 of the largest)", "BatchNorm",
                 {"scale groups": groups, **seed_range(zeros)}, np.median(zeros) >= groups),
        Evidence("with BatchNorm the gradient norm has no spikes (largest over median, below the plain one)", "both",
                 {"BatchNorm": np.median(spikes[True]), "plain": np.median(spikes[False])},
                 np.median(spikes[True]) < np.median(spikes[False])),
        Evidence("BatchNorm tolerates larger learning rates (largest at which most seeds improve)", "both",
                 {"BatchNorm": reach[True], "plain": reach[False]}, reach[True] > reach[False]),
    )  # fmt: skip
